"""Admission: chooses the transactions of a micro-batch, in commit order, up to its limits. Pure functions.

A transaction has records in several partitions, and is admitted in all of them or in none. Before its part in a
partition there may be runs of records outside transactions, which have to be read before it; these may be cut anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from stablelog.client.commits import Commit
from stablelog.spark.source.resolve import Range
from stablelog.types import TopicPartition

NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch.

    Attributes:
        count_max: records.
        size_max: bytes, as they are stored.
        record_sizes: average bytes of a record, by partition.
    """

    count_max: float = NO_LIMIT
    size_max: float = NO_LIMIT
    record_sizes: Mapping[TopicPartition, float] = field(default_factory=dict)


class Admitted(NamedTuple):
    """The end of a micro-batch: it reads every commit up to `commit_sequence`, and no later one."""

    commit_sequence: int
    ends: dict[TopicPartition, int]


def admit(
    ranges: Iterable[Range],
    commits: Mapping[TopicPartition, Iterable[Commit]],
    commit_sequence: int,
    limits: TriggerLimits,
) -> Admitted:
    """The transactions that are read next; one at least, or a record outside transactions, if there is any.

    Args:
        ranges: from where the stream has read, to the cut that it could read to.
        commits: by partition, the entries from its range's start on, in order: transactions, and with -1 for a
            commit sequence runs of records outside. Taken as far as is needed.
        commit_sequence: the commit sequence of the cut at the ranges' ends.
        limits: the limits of the micro-batch.
    """
    parts = {wanted.place: _Part(wanted, iter(commits[wanted.place])) for wanted in ranges}
    heads = [(part.next.commit_sequence, place) for place, part in parts.items() if part.next is not None]
    heapify(heads)
    count, size, is_first = 0, 0.0, True
    while heads:
        least = heads[0][0]
        touched = []
        while heads and heads[0][0] == least:
            touched.append(parts[heappop(heads)[1]])
        count += sum(part.count for part in touched)
        size += sum(part.count * limits.record_sizes.get(part.place, 0) for part in touched)
        is_too_much = count > limits.count_max or size > limits.size_max
        if is_too_much and not is_first:
            return Admitted(least - 1, _ends(parts))
        if is_too_much and _take_runs(touched, limits):
            return Admitted(least - 1, _ends(parts))
        for part in touched:
            part.take()
            if part.next is not None:
                heappush(heads, (part.next.commit_sequence, part.place))
        if is_too_much:  # A transaction above the limits is read alone; otherwise it would never be read.
            return Admitted(heads[0][0] - 1 if heads else commit_sequence, _ends(parts))
        is_first = False
    rest = TriggerLimits(limits.count_max - count, limits.size_max - size, limits.record_sizes)
    _take_runs(list(parts.values()), rest, is_first=is_first)
    return Admitted(commit_sequence, _ends(parts))


def count_up_to(
    ranges: Iterable[Range], commits: Mapping[TopicPartition, Iterable[Commit]], enough: int
) -> int:
    """Count the records in the ranges; stop once the number is large enough."""
    count = 0
    for wanted in ranges:
        for commit in commits[wanted.place]:
            if commit.start_offset >= wanted.end or count >= enough:
                break
            count += min(commit.end_offset, wanted.end) - max(commit.start_offset, wanted.start)
    return count


class _Part:
    """What is left of one partition.

    Attributes:
        position: up to where it is admitted.
        runs: (start, end) of records outside transactions that stand before the next transaction.
        next: the next transaction; None if there is none up to the range's end.
    """

    __slots__ = ("_commits", "_end", "next", "place", "position", "runs")

    def __init__(self, wanted: Range, commits: Iterator[Commit]) -> None:
        self.place = wanted.place
        self.position = wanted.start
        self._end = wanted.end
        self._commits = commits
        self._look()

    def _look(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.next: Commit | None = None
        for commit in self._commits:
            if commit.start_offset >= self._end:
                return
            if commit.end_offset <= self.position:
                continue
            if commit.commit_sequence >= 0:
                self.next = commit
                return
            self.runs.append((max(commit.start_offset, self.position), min(commit.end_offset, self._end)))

    @property
    def count(self) -> int:
        """Records up to the end of the next transaction."""
        assert self.next is not None
        return sum(end - start for start, end in self.runs) + self.next.end_offset - self.next.start_offset

    def take(self) -> None:
        """Admit the next transaction, with the runs before it."""
        assert self.next is not None
        self.position = self.next.end_offset
        self._look()

    def take_runs(self, count_max: float) -> int:
        """Admit up to `count_max` records of the runs before the next transaction. Returns how many there were."""
        taken = 0
        while self.runs and taken < count_max:
            start, end = self.runs.pop(0)
            stop = end if end - start <= count_max - taken else start + int(count_max - taken)
            if stop == start:
                break
            taken += stop - start
            self.position = stop
            if stop < end:
                self.runs.insert(0, (stop, end))
                break
        return taken

    @property
    def end(self) -> int:
        """Up to where it is admitted; to the range's end if no record is left."""
        return self._end if self.next is None and not self.runs else self.position


def _take_runs(parts: list[_Part], limits: TriggerLimits, *, is_first: bool = True) -> int:
    """Admit records outside transactions up to the limits; at least one if nothing else is admitted.

    Returns the count.
    """
    count, size = 0, 0.0
    for part in parts:
        record_size = limits.record_sizes.get(part.place, 0)
        room = limits.count_max - count
        if record_size and limits.size_max < NO_LIMIT:
            room = min(room, (limits.size_max - size) // record_size)
        taken = part.take_runs(max(room, 0 if count or not is_first else 1))
        count += taken
        size += taken * record_size
    return count


def _ends(parts: Mapping[TopicPartition, _Part]) -> dict[TopicPartition, int]:
    return {place: part.end for place, part in parts.items()}
