"""Offsets as users write them: a number, the beginning, the end, a distance from the end, or a time."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from stablelog.cli.admin import start_and_end
from stablelog.cli.output import fail
from stablelog.client.blocking.admin import Admin
from stablelog.types import TopicPartition

OFFSET_MAX: Final = (1 << 63) - 1
TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
Kind = Literal["earliest", "latest", "offset", "before_end", "time"]
WORDS: Final[dict[str, Kind]] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "end": "latest",
}
FORMS: Final = "earliest (beginning), latest (end), an offset, -N for N offsets before the end, or @TIME"
TIME_FORMS: Final = "milliseconds since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z; without a zone, UTC"


class OffsetSpec(NamedTuple):
    """An offset as a user has written it (such as `earliest`, `-10` or a time), in parsed form.

    `value` is the offset, the distance from the end, or the time in ms, depending on `kind`. It is 0 for the beginning
    and the end of a partition.
    """

    kind: Kind
    value: int = 0


class ResolvedOffset(NamedTuple):
    """The offset that an `OffsetSpec` (an offset as users write it, such as a time) stands for in one partition,
    limited to the range from `start` to `end`.
    """

    offset: int
    start: int
    end: int


def parse_offset(text: str, option: str) -> OffsetSpec:
    """Parse the text of an offset that a user has written, such as "earliest" or "-10".

    Args:
        text: what the user has written.
        option: the name of the option, for the error message.

    Raises:
        UnavailableError: the text is not valid.
    """
    if text in WORDS:
        return OffsetSpec(WORDS[text])
    if text.startswith("@"):
        return OffsetSpec("time", parse_time_ms(text[1:], f"{option} @"))
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or abs(int(text)) > OFFSET_MAX:
        fail(f"{option} {text} is not valid: {FORMS}")
    return OffsetSpec("before_end", -int(text)) if text[0] == "-" else OffsetSpec("offset", int(text))


def parse_time_ms(text: str, option: str) -> int:
    """Parse a time, in ms since 1970 or in ISO 8601. Return it in ms since 1970.

    Args:
        text: what the user has written.
        option: the name of the option and what follows it up to the time, for the error message.

    Raises:
        UnavailableError: the text is not valid.
    """
    if re.fullmatch(r"[0-9]{1,15}", text) and int(text) <= TIME_MS_MAX:
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option}{text} is not valid: a time is {TIME_FORMS}")
    zoned = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    time_ms = round(zoned.timestamp() * 1000)
    if time_ms < 0:
        fail(f"{option}{text} is not valid: the time is before 1970")
    return time_ms


def find_offsets(
    admin: Admin, spec: OffsetSpec, targets: Iterable[TopicPartition], isolation: str
) -> dict[TopicPartition, ResolvedOffset]:
    """Return the offset that `spec` stands for in each partition. A time stands for the first record at or after it, or
    for the end if there is none.

    Args:
        admin: administers the cluster.
        spec: the offset as the user has written it.
        targets: the partitions to search. Each must have a leader.
        isolation: read_committed, for which a partition ends at the last stable offset, or read_uncommitted.

    Raises:
        RefusedError: a partition does not exist.
        UnavailableError: no response within the deadline.
    """
    targets = list(targets)
    bounds = start_and_end(admin, targets, isolation)
    timed = admin.topics.offsets(dict.fromkeys(targets, spec.value), isolation) if spec.kind == "time" else {}
    found = {}
    for target in targets:
        start, end = bounds[target]
        match spec.kind:
            case "earliest":
                offset = start
            case "latest":
                offset = end
            case "offset":
                offset = spec.value
            case "before_end":
                offset = end - spec.value
            case _:
                offset = timed[target].offset if timed[target].offset >= 0 else end
        found[target] = ResolvedOffset(max(min(offset, end), start), start, end)
    return found
