"""Checks of a recorded test run: whether the records that readers got agree with the responses that writers got. No
I/O.

Each of these contradictions has its own check: a committed or acknowledged record is lost; an aborted record was read;
a record was read before its commit was requested, or twice, or without the other records of its transaction, or after a
record that its writer wrote later; offsets decrease, or one offset had different records at different times; one reader
skipped a record that another one read; the high watermark or the last stable offset decreases, or the last stable
offset is above the high watermark.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """The outcome of a transaction, as far as its writer knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the response was lost, so the transaction may be committed or aborted


class WrittenTransaction(NamedTuple):
    """A transaction that a writer has written, with its values and its outcome.

    Attributes:
        values: the values of the records, in the order in which they were written. Each value is written once in a run,
            so that it identifies its record.
        writer: the writer's name. The history contains the transactions of a writer in the order of their writes.
        commit_asked_s: the time in seconds at which the commit was first requested; infinity if it never was, None if
            the time is unknown.
    """

    fate: Fate
    values: tuple[bytes, ...]
    writer: str = ""
    commit_asked_s: float | None = None


class Seen(NamedTuple):
    """A record that a reader got while the writers still wrote, and the time of the read in seconds."""

    seen_s: float
    offset: int
    value: bytes


Read = Sequence[tuple[int, bytes]]  # (offset, value) of each record, in the order in which a reader got them


@dataclass(slots=True)
class History:
    """All writes and reads that a test run has recorded.

    Attributes:
        transactions: each transaction, as a `WrittenTransaction` or as a pair of its `Fate` and its values.
        reads: by partition, all records that a read-committed reader got after the end of all writes.
        watermarks: by partition, pairs (high watermark, last stable offset), in the order in which they were read. Of
            each pair, the last stable offset was read first.
        live: by partition, all records that a read-committed reader got during the writes.
        everything: by partition, all records that a read-uncommitted reader got after the end of all writes.
        acknowledged: by value, the partition and offset that a broker's response to the write has named.
    """

    transactions: Sequence[tuple[Fate, tuple[bytes, ...]] | WrittenTransaction] = field(default_factory=list)
    reads: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    watermarks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    live: dict[int, list[Seen]] = field(default_factory=dict)
    everything: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)


def check(history: History) -> list[str]:
    """Check a history, the recorded writes and reads of a test run. Return a description of each contradiction between
    what readers got and the responses that writers got; an empty list if there is none. The docstring of this module
    lists the kinds.
    """
    transactions = [WrittenTransaction(*txn) for txn in history.transactions]
    return [
        *_check_values(transactions, _counts(history.reads)),
        *_check_order(history.reads, transactions),
        *_check_watermarks(history.watermarks),
        *_check_live(history.live, history.reads, transactions),
        *_check_acknowledged(history.acknowledged, history.everything),
    ]


def _counts(reads: Mapping[int, Read]) -> Counter[bytes]:
    return Counter(value for read in reads.values() for _, value in read)


def _check_values(transactions: Sequence[WrittenTransaction], seen: Mapping[bytes, int]) -> Iterator[str]:
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


def _check_order(reads: Mapping[int, Read], transactions: Sequence[WrittenTransaction]) -> Iterator[str]:
    """Yield a description of each record that was read in a wrong order: its offset is not greater than the one read
    before it, or the reader had got a later record of the same writer and partition before it.

    Args:
        reads: by partition, the offsets and values that a reader got after the end of all writes.
        transactions: the transactions, those of each writer in the order of its writes.
    """
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
    live: Mapping[int, Sequence[Seen]], reads: Mapping[int, Read], transactions: Sequence[WrittenTransaction]
) -> Iterator[str]:
    """Yield a description of each contradiction in the reads during the writes: a record that was read before its
    commit was requested, or a difference from what a reader got after the end of all writes.

    Args:
        live: by partition, the records that a reader got during the writes.
        reads: by partition, the offsets and values that a reader got after the end of all writes.
        transactions: the transactions, with the time at which the commit of each was requested.
    """
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
    """Yield a description of each acknowledged record that is not in the log at its acknowledged offset, and of each
    record that is stored more than once. A read-uncommitted reader must find the record even if its transaction was
    aborted.

    Args:
        acknowledged: by value, the partition and offset that a broker's response to the write has named.
        everything: by partition, the offsets and values of a read-uncommitted reader; empty to skip the check.
    """
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
