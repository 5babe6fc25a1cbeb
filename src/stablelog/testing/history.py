"""Whether what readers saw agrees with what writers were told. Pure: a history in, findings out.

What is looked for, each by its own check: records that were committed or acknowledged and are lost, that were aborted and
read, read before their commit was asked for, read twice, torn out of their transaction, in another order than
written; offsets that go back or are read as something else than before; what a reader passed by and another found;
watermarks that move back or contradict each other.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What a writer knows of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the answer was lost: all of it or nothing


class Written(NamedTuple):
    """A transaction.

    Attributes:
        values: what was written, in order. Every value is written once.
        writer: who wrote it; its transactions stand in their order in the history.
        commit_asked_s: when the commit was first asked for; infinity if it never was, None if that is not known.
    """

    fate: Fate
    values: tuple[bytes, ...]
    writer: str = ""
    commit_asked_s: float | None = None


class Seen(NamedTuple):
    """A record that was read while the writers wrote, and when."""

    seen_s: float
    offset: int
    value: bytes


Read = Sequence[tuple[int, bytes]]  # (offset, value) in the order of reading


@dataclass(slots=True)
class History:
    """What happened.

    Attributes:
        transactions: each with its fate; at least those two.
        reads: what a read-committed reader saw of each partition, from its start, after all was over.
        watermarks: (high watermark, last stable offset) of each partition, in the order of looking; the stable offset
            was looked at first.
        live: what a read-committed reader saw of each partition, from its start, while it was being written.
        everything: what a read-uncommitted reader saw of each partition, from its start, after all was over.
        acknowledged: where each acknowledged value was said to be: (partition, offset).
    """

    transactions: Sequence[tuple[Fate, tuple[bytes, ...]] | Written] = field(default_factory=list)
    reads: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    watermarks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    live: dict[int, list[Seen]] = field(default_factory=dict)
    everything: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)


def check(history: History) -> list[str]:
    """Everything that must not be."""
    transactions = [Written(*txn) for txn in history.transactions]
    return [
        *_check_values(transactions, _counts(history.reads)),
        *_check_order(history.reads, transactions),
        *_check_watermarks(history.watermarks),
        *_check_live(history.live, history.reads, transactions),
        *_check_acknowledged(history.acknowledged, history.everything),
    ]


def _counts(reads: Mapping[int, Read]) -> Counter[bytes]:
    return Counter(value for read in reads.values() for _, value in read)


def _check_values(transactions: Sequence[Written], seen: Mapping[bytes, int]) -> Iterator[str]:
    known = set()
    for txn in transactions:
        known |= set(txn.values)
        counts = {value: seen.get(value, 0) for value in txn.values}
        never_asked = txn.commit_asked_s == float("inf")
        if txn.fate is Fate.COMMITTED:
            yield from (f"lost: {value!r}" for value, count in counts.items() if count == 0)
        elif txn.fate is Fate.ABORTED or never_asked:
            yield from (f"aborted yet read: {value!r}" for value, count in counts.items() if count)
        elif 0 in counts.values() and any(counts.values()):
            yield f"torn: of {txn.values!r} some were read, {list(counts.values())} times"
        yield from (
            f"duplicated: {value!r} was read {count} times" for value, count in counts.items() if count > 1
        )
    yield from (f"read, and never written: {value!r}" for value in seen if value not in known)


def _check_order(reads: Mapping[int, Read], transactions: Sequence[Written]) -> Iterator[str]:
    """Offsets rise, and what one writer wrote to a partition stands there as it was written."""
    places: dict[bytes, tuple[str, int]] = {}
    for number, txn in enumerate(transactions):
        for value in txn.values:
            places[value] = (txn.writer or f"transaction {number}", len(places))
    for partition, read in reads.items():
        for (before, _), (after, value) in itertools.pairwise(read):
            if after <= before:
                yield f"partition {partition}: offset {after} ({value!r}) came after {before}"
        latest: dict[str, tuple[int, bytes]] = {}
        for _, value in read:
            writer, place = places.get(value, ("", -1))
            former = latest.get(writer)
            if former is not None and place < former[0]:
                yield f"partition {partition}: {value!r} was written before {former[1]!r} and came after it"
            latest[writer] = (place, value)


def _check_watermarks(watermarks: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[str]:
    for partition, samples in watermarks.items():
        for high, stable in samples:
            if stable > high:
                yield f"partition {partition}: the stable offset {stable} lay past the high watermark {high}"
        for before, after in itertools.pairwise(samples):
            if after[0] < before[0] or after[1] < before[1]:
                yield f"partition {partition}: watermarks moved back, from {before} to {after}"


def _check_live(
    live: Mapping[int, Sequence[Seen]], reads: Mapping[int, Read], transactions: Sequence[Written]
) -> Iterator[str]:
    """Nothing was seen too early, and what was seen is what is there: the same, and nothing between."""
    asked_s = {value: txn.commit_asked_s for txn in transactions for value in txn.values}
    for partition, seen in live.items():
        for seen_s, _, value in seen:
            committed_s = asked_s.get(value)
            if committed_s is not None and seen_s < committed_s:
                yield f"partition {partition}: {value!r} was read before its commit was asked for"
        if not seen:
            continue
        last = seen[-1].offset
        then = [(offset, value) for _, offset, value in seen]
        now = [(offset, value) for offset, value in reads.get(partition, ()) if offset <= last]
        if then != now:
            yield from _differences(partition, then, now)


def _differences(partition: int, then: Read, now: Read) -> Iterable[str]:
    for at, was, is_now in (
        (offset, dict(then).get(offset), dict(now).get(offset))
        for offset in sorted({offset for offset, _ in (*then, *now)})
    ):
        if was is None:
            yield f"partition {partition}: offset {at} was passed by, and is {is_now!r} now"
        elif was != is_now:
            yield f"partition {partition}: offset {at} was read as {was!r}, and is {is_now!r} now"
    repeated = [offset for offset, count in Counter(offset for offset, _ in then).items() if count > 1]
    yield from (f"partition {partition}: offset {offset} was handed out twice" for offset in repeated)


def _check_acknowledged(
    acknowledged: Mapping[bytes, tuple[int, int]], everything: Mapping[int, Read]
) -> Iterator[str]:
    """Whatever became of its transaction, an acknowledged record is where it was said to be, and only there."""
    if not everything:
        return
    counts = _counts(everything)
    found = {(partition, offset): value for partition, read in everything.items() for offset, value in read}
    for value, place in acknowledged.items():
        if found.get(place) != value:
            yield f"acknowledged at {place} and not there: {value!r}; there is {found.get(place)!r}"
    yield from (
        f"stored {count} times, and written once: {value!r}" for value, count in counts.items() if count > 1
    )
