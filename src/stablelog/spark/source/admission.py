"""Admission: chooses the transactions of a micro-batch, in commit order, up to its limits. Pure functions.

A transaction has records in several partitions, and is admitted in all of them or in none. Before its part in a
partition there may be runs of records outside transactions. They have to be read before it, and may be cut anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from stablelog.client.commits import Commit
from stablelog.spark.source.resolve import Range
from stablelog.types import TopicPartition

NO_LIMIT = float("inf")
LAST = 2**63  # the commit sequence of what follows the last transaction


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch.

    Attributes:
        count_max: records.
        size_max: bytes, as they are stored.
        record_sizes: average bytes of a record, by partition; needed if `size_max` is a limit.
    """

    count_max: float = NO_LIMIT
    size_max: float = NO_LIMIT
    record_sizes: Mapping[TopicPartition, float] = field(default_factory=dict)


class Admitted(NamedTuple):
    """The end of a micro-batch: it reads every commit up to `commit_sequence`, and no later one."""

    commit_sequence: int
    ends: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Step:
    """A part of a transaction in one partition, with the runs of records outside transactions before it.

    Attributes:
        commit_sequence: of the transaction; LAST for the runs behind the last transaction of the range.
        place: the partition.
        runs: (start, end) of each run.
        count: records of the runs and of the transaction.
        end: the offset behind the transaction, or behind the range.
    """

    commit_sequence: int
    place: TopicPartition
    runs: list[tuple[int, int]]
    count: int
    end: int


def admit(
    ranges: Iterable[Range],
    commits: Mapping[TopicPartition, Iterable[Commit]],
    commit_sequence: int,
    limits: TriggerLimits,
) -> Admitted:
    """The transactions that are read next: at least one, or a record outside transactions, if there is any.

    Args:
        ranges: from the stream's position to the last cut.
        commits: by partition, the entries from its range's start on, in order: transactions, and with -1 for a
            commit sequence runs of records outside transactions. They are only taken as far as needed.
        commit_sequence: the commit sequence of the cut at the ranges' ends.
        limits: the limits of the micro-batch.
    """
    ranges = list(ranges)
    ends = {wanted.place: wanted.start for wanted in ranges}
    in_order = merge(*(_steps(wanted, commits[wanted.place]) for wanted in ranges), key=_sequence_of)
    is_first = True
    # The children of a joint commit have one commit sequence, also those in one partition.
    for sequence, together in groupby(in_order, key=_sequence_of):
        steps = list(together)
        count = sum(step.count for step in steps)
        size = sum(step.count * limits.record_sizes.get(step.place, 0) for step in steps)
        fits = count <= limits.count_max and size <= limits.size_max
        if sequence == LAST or (is_first and not fits):
            taken = _take_runs(steps, limits, ends, least=1 if is_first else 0)
            if sequence == LAST:
                return Admitted(commit_sequence, ends)
            if taken:
                return Admitted(sequence - 1, ends)
        elif not fits:
            return Admitted(sequence - 1, ends)
        # A first transaction above the limits is read alone; otherwise it would never be read.
        ends |= {step.place: step.end for step in steps}
        limits = TriggerLimits(limits.count_max - count, limits.size_max - size, limits.record_sizes)
        is_first = False
    return Admitted(commit_sequence, ends)


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


def _sequence_of(step: _Step) -> int:
    return step.commit_sequence


def _steps(wanted: Range, commits: Iterable[Commit]) -> Iterator[_Step]:
    """The steps of a partition, in the order in which they have to be read."""
    runs: list[tuple[int, int]] = []
    count = 0
    for commit in commits:
        if commit.start_offset >= wanted.end:
            break
        start, end = max(commit.start_offset, wanted.start), min(commit.end_offset, wanted.end)
        count += max(end - start, 0)
        if commit.commit_sequence >= 0 and start < end:
            yield _Step(commit.commit_sequence, wanted.place, runs, count, commit.end_offset)
            runs, count = [], 0
        elif start < end:
            runs.append((start, end))
    yield _Step(LAST, wanted.place, runs, count, wanted.end)


def _take_runs(
    steps: Iterable[_Step], limits: TriggerLimits, ends: dict[TopicPartition, int], least: int
) -> int:
    """Admit records of the runs before these transactions, up to the limits and at least `least`.

    Returns the count.
    """
    taken, size = 0, 0.0
    for step in steps:
        record_size = limits.record_sizes.get(step.place, 0)
        room = limits.count_max - taken
        if record_size:
            room = min(room, (limits.size_max - size) // record_size)
        room = max(room, least if taken == 0 else 0)
        for start, end in step.runs:
            count = int(min(end - start, room))
            ends[step.place] = start + count
            taken, room, size = taken + count, room - count, size + count * record_size
            if count < end - start:
                break
        else:
            if step.commit_sequence == LAST:
                ends[step.place] = step.end
    return taken
