"""The worst legal requests of each API: as many entries as a request may have, in each of its lists.

`python -m tests.broker.worst_requests` measures them, and prints the rows of the table in docs/decisions/0030-security.md.
"""

import asyncio
import contextlib
import dataclasses
import gc
import random
import sys
import time
import tracemalloc
import typing
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from stablelog.coordinators.consumer_groups.consumer_protocol.heartbeats import SUBSCRIPTION_COUNT_MAX
from stablelog.errors import StablelogError
from stablelog.security.principal import Principal
from stablelog.wire.api import ApiKey
from stablelog.wire.guard import ITEMS_MAX
from stablelog.wire.messages import message_class
from stablelog.wire.produce import ITEMS_MAX as PRODUCE_ITEMS_MAX
from stablelog.wire.versions import entity_in, required
from tests.broker.apis.rights_cases import CASES, Names
from tests.broker.desk import filled, frame, opened
from tests.broker.holding import longest, timed_steps
from tests.broker.test_any_request import made
from tests.declared_apis import APIS

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# An administrator may do everything, and a stranger nothing.
PRINCIPALS = {"all rights": Principal("User", "root"), "no rights": Principal("User", "mallory")}

PART = 0.05  # of the entries that a request may have
PATIENCE_S = 30.0  # The time after which a request counts as one that waits for others.
LONG_POLLS = {ApiKey.FETCH: 0.5, ApiKey.JOIN_GROUP: 0.5, ApiKey.SYNC_GROUP: 0.5}
NAMES = Names("here", (1, 0))
# Numbers of partitions: each copy of an entry gets its own.
INDEXES = {"index", "partition", "partition_index"}


# Lists with a limit of their own.
LIST_MAX = {(ApiKey.CONSUMER_GROUP_HEARTBEAT, ("subscribed_topic_names",)): SUBSCRIPTION_COUNT_MAX}


class Worst(NamedTuple):
    """A request with many entries in one of its lists.

    Attributes:
        path: the names of the fields that lead to the list; empty for a request without lists.
        are_equal: whether the entries are equal.
    """

    api: ApiKey
    path: tuple[str, ...]
    are_equal: bool
    count: int
    data: bytes

    @property
    def label(self) -> str:
        """What the request has, for the table."""
        if not self.path:
            return "any"
        return f"{self.count:,} {'equal ' if self.are_equal else ''}`{'.'.join(self.path)}`"


def item_max(api: ApiKey) -> int:
    """The greatest number of entries of a request, in all its lists together."""
    return PRODUCE_ITEMS_MAX if api is ApiKey.PRODUCE else ITEMS_MAX


def worst_requests(api: ApiKey, *, share: float = 1.0) -> Iterator[Worst]:
    """Yield the requests of an API with as many entries as they may have, or a share of these."""
    cases = [case for case in CASES if case.api is api]
    version = cases[0].version if cases else APIS[api].last_version
    message = message_class(api, version, "request")
    base = filled(message, cases[0].values(NAMES)) if cases else made(message, random.Random(api))
    yield Worst(api, (), True, 0, _frame(api, version, base))
    for path in _lists(message):
        for are_equal in (False, True):
            count = int(min(item_max(api), LIST_MAX.get((api, path), ITEMS_MAX)) * share) - 10
            grown, count = _grown(base, path, count, are_equal=are_equal)
            yield Worst(api, path, are_equal, count, _frame(api, version, grown))


def lists_of(api: ApiKey) -> list[tuple[str, ...]]:
    """The paths of all lists of an API's request, in the version of its requests here."""
    cases = [case for case in CASES if case.api is api]
    version = cases[0].version if cases else APIS[api].last_version
    return list(_lists(message_class(api, version, "request")))


def _frame(api: ApiKey, version: int, message: Any) -> bytes:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    return frame(api, version, **fields)


def _lists(message: type) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all lists of a message."""
    for field in dataclasses.fields(message):
        if typing.get_origin(required(field.type)) is not tuple:
            continue
        yield (field.name,)
        entity = entity_in(field.type)
        if entity is not None:
            yield from ((field.name, *rest) for rest in _lists(entity))


def _grown(message: Any, path: tuple[str, ...], count: int, *, are_equal: bool) -> tuple[Any, int]:
    """Return the message with many entries in a list, and their number."""
    name, *rest = path
    (field,) = [field for field in dataclasses.fields(message) if field.name == name]
    entity = entity_in(field.type)
    present = getattr(message, name) or ()
    if rest:
        first = present[0] if present else made(entity, random.Random(0))
        inner, number = _grown(first, tuple(rest), count - 1, are_equal=are_equal)
        return dataclasses.replace(message, **{name: (inner,)}), number
    if entity is None:
        kind = field.metadata.get("kafka_type")
        entries: tuple[Any, ...] = tuple(_simple(kind, number * (not are_equal)) for number in range(count))
    else:
        one = present[0] if present else made(entity, random.Random(0))
        number_max = count // (1 + _entry_count(one))
        entries = tuple(one if are_equal else _copy(one, number) for number in range(number_max))
    return dataclasses.replace(message, **{name: entries}), len(entries)


def _simple(kind: str | None, number: int) -> Any:
    if kind == "uuid":
        return uuid.UUID(int=number + 1)
    if kind in ("string", None):
        return f"n-{number}"
    return number % 100 if kind == "int8" else number % 30_000 if kind == "int16" else number


def _copy(one: Any, number: int) -> Any:
    """An entry with a name or a number of its own."""
    for field in dataclasses.fields(one):
        value, kind = getattr(one, field.name), field.metadata.get("kafka_type")
        if kind == "string" and value is not None:
            return dataclasses.replace(one, **{field.name: f"{value}-{number}"})
        if field.name in INDEXES or field.name == "producer_id":
            return dataclasses.replace(one, **{field.name: number})
    return one


def _entry_count(one: Any) -> int:
    count = 0
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if isinstance(value, tuple):
            count += len(value) + sum(_entry_count(item) for item in value if dataclasses.is_dataclass(item))
    return count


class Cost(NamedTuple):
    """What a request costs.

    Attributes:
        spent_s: processor time on the event loop.
        step: the longest step of the loop, and what it was.
    """

    spent_s: float
    step: tuple[float, str]


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def cost_of(desk: Any, worst: Worst, principal: Principal) -> Cost:
    """Send a request, and measure the steps of the event loop."""
    desk.stranger.session.principal = principal
    desk.router.prepare_api(APIS[worst.api], int.from_bytes(worst.data[2:4], "big"))
    # The broker has short garbage collections of its own (`broker.loop.garbage`).
    with timed_steps() as holds, _no_collections():
        await asyncio.sleep(0)
        holds.clear()
        try:
            async with asyncio.timeout(LONG_POLLS.get(worst.api, PATIENCE_S)):
                await desk.router.respond(desk.stranger, worst.data)
        except (StablelogError, TimeoutError):
            pass  # Refused, or a long poll.
        await asyncio.sleep(0)
        return Cost(sum(hold for hold, _ in holds), longest(holds))


def a_broker() -> Any:
    """A broker with the resources that the requests name, and few partitions that may be created."""
    return opened(
        topics=("topic-here",),
        partitions=10,
        authorizer_class_name=AUTHORIZER,
        super_users="User:root",
        stablelog_max_partitions=200,
    )


async def _measure(api: ApiKey) -> str:
    """Return the row of an API. A part of the entries tells which requests are the worst, and how much memory they need."""
    tried: list[tuple[Cost, str, int]] = []
    for who, principal in PRINCIPALS.items():
        for place, worst in enumerate(worst_requests(api, share=PART)):
            async with a_broker() as desk:
                tried.append((await cost_of(desk, worst, principal), who, place))
    chosen = {max(tried, key=lambda one: one[0].spent_s)[1:], max(tried, key=lambda one: one[0].step)[1:]}
    requests = list(worst_requests(api))
    rows: list[tuple[Cost, str, Worst]] = []
    for who, place in sorted(chosen):
        async with a_broker() as desk:
            rows.append((await cost_of(desk, requests[place], PRINCIPALS[who]), who, requests[place]))
    cost, who, worst = max(rows, key=lambda row: row[0].spent_s)
    step = max(row[0].step for row in rows)
    async with a_broker() as desk:
        tracemalloc.start()
        (part,) = [
            one
            for one in worst_requests(api, share=PART)
            if (one.path, one.are_equal) == (worst.path, worst.are_equal)
        ]
        await cost_of(desk, part, PRINCIPALS[who])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    print(f"  {step[0] * 1000:6.1f} ms {step[1][:300]}", file=sys.stderr, flush=True)
    return (
        f"| {api.message_name} | {worst.label} | {who} | {cost.spent_s * 1000:,.0f} ms | {step[0] * 1000:.1f} ms "
        f"| {peak / (1 << 20) * (worst.count / part.count if part.count else 1):,.0f} MiB |"
    )


def main() -> None:
    """Measure all APIs, or those that the arguments name."""
    begun = time.monotonic()
    for key in sorted(APIS):
        api = ApiKey(key)
        if not sys.argv[1:] or api.message_name in sys.argv[1:]:
            print(asyncio.run(_measure(api)), flush=True)
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
