"""The end of a micro-batch of a stream with cut=true: which transactions are read, in the order of their commits,
within the limits. Pure functions.

A transaction with records in several partitions is admitted in all of them or in none. Before a transaction's records
in a partition, there may be runs: adjacent records outside transactions. A run must be read before the transaction, and
may be divided between micro-batches at any record.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from stablelog.client.blocking.commits import Commit
from stablelog.spark.source.ranges import Readable
from stablelog.types import TopicPartition

NO_LIMIT = float("inf")
LAST = 2**63  # commit sequence of the runs of records outside transactions after the last transaction


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch.

    Attributes:
        count_max: the maximum number of records.
        size_max: the maximum of stored bytes.
        record_sizes: average bytes of a record, by partition; required with `size_max`.
    """

    count_max: float = NO_LIMIT
    size_max: float = NO_LIMIT
    record_sizes: Mapping[TopicPartition, float] = field(default_factory=dict)


class MicroBatchEnd(NamedTuple):
    """The end of a micro-batch, which reads every commit up to the one with the number `commit_sequence`, and no later
    one. `ends` has the end offset of each partition.
    """

    commit_sequence: int
    ends: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Step:
    """The records that one partition contributes to a transaction, and the records outside transactions (runs) before
    them.

    Attributes:
        commit_sequence: the number of the transaction's commit; LAST for the runs after the last transaction.
        place: the partition.
        runs: (start, end) of each run.
        count: the number of records of the runs and of the transaction together.
        end: the offset after the transaction, or after the last run.
    """

    commit_sequence: int
    place: TopicPartition
    runs: list[tuple[int, int]]
    count: int
    end: int


def micro_batch_end(
    ranges: Iterable[Readable],
    commits: Mapping[TopicPartition, Iterable[Commit]],
    commit_sequence: int,
    limits: TriggerLimits,
) -> MicroBatchEnd:
    """Choose the end of the next micro-batch: as many transactions as the limits allow, in the order of their commits.
    At least one transaction, or one record outside transactions, is read if there is any.

    Args:
        ranges: for each partition, the offsets from the stream's position to the last cut, a position between two
            commits.
        commits: by partition, the transactions from the range's start on, in the order of their offsets. Adjacent
            records outside transactions are listed as one, with commit sequence -1. The iterables request them from the
            broker on demand.
        commit_sequence: the number of the last commit before the last cut, which is the end of all ranges.
        limits: the limits of the micro-batch.
    """
    ranges = list(ranges)
    ends = {wanted.place: wanted.whole.start for wanted in ranges}
    in_order = merge(*(_steps(wanted, commits[wanted.place]) for wanted in ranges), key=_sequence_of)
    is_first = True
    # All transactions of a joint commit have the same commit sequence, even several in one partition. Admit them
    # together.
    for sequence, together in groupby(in_order, key=_sequence_of):
        steps = list(together)
        count = sum(step.count for step in steps)
        size = sum(step.count * limits.record_sizes.get(step.place, 0) for step in steps)
        fits = count <= limits.count_max and size <= limits.size_max
        if sequence == LAST or (is_first and not fits):
            taken = _take_runs(steps, limits, ends, least=1 if is_first else 0)
            if sequence == LAST:
                return MicroBatchEnd(commit_sequence, ends)
            if taken:
                return MicroBatchEnd(sequence - 1, ends)
        elif not fits:
            return MicroBatchEnd(sequence - 1, ends)
        # A transaction above the limits gets its own micro-batch; otherwise the stream would never get past it.
        ends |= {step.place: step.end for step in steps}
        limits = TriggerLimits(limits.count_max - count, limits.size_max - size, limits.record_sizes)
        is_first = False
    return MicroBatchEnd(commit_sequence, ends)


def count_up_to(
    ranges: Iterable[Readable], commits: Mapping[TopicPartition, Iterable[Commit]], enough: int
) -> int:
    """Return the number of records in the ranges. The count ends when it has reached `enough`, because the caller only
    needs to know whether there are that many.
    """
    count = 0
    for wanted in ranges:
        for commit in commits[wanted.place]:
            if commit.start_offset >= wanted.whole.end or count >= enough:
                break
            count += sum(one.end - one.start for one in wanted.inside(commit.start_offset, commit.end_offset))
    return count


def _sequence_of(step: _Step) -> int:
    return step.commit_sequence


def _steps(wanted: Readable, commits: Iterable[Commit]) -> Iterator[_Step]:
    """Yield the steps of a partition, in the order in which they have to be read. A step is a transaction with the runs
    (records outside transactions) before it. The last step has only the runs after the last transaction. A restore of
    the broker fills the offsets of lost records with empty batches. The broker lists such batches like records outside
    transactions, but they do not count for the limits of the micro-batch, because `wanted` excludes their offsets.
    """
    runs: list[tuple[int, int]] = []
    count = 0
    for commit in commits:
        if commit.start_offset >= wanted.whole.end:
            break
        found = wanted.inside(commit.start_offset, commit.end_offset)
        count += sum(one.end - one.start for one in found)
        if commit.commit_sequence >= 0 and found:
            yield _Step(commit.commit_sequence, wanted.place, runs, count, commit.end_offset)
            runs, count = [], 0
        else:
            runs += [(one.start, one.end) for one in found]
    yield _Step(LAST, wanted.place, runs, count, wanted.whole.end)


def _take_runs(
    steps: Iterable[_Step], limits: TriggerLimits, ends: dict[TopicPartition, int], least: int
) -> int:
    """Admit into the micro-batch a part of the runs (records outside transactions) before a transaction that does not
    fit into the limits. The new end offsets are written into `ends`.

    Args:
        steps: the transaction's records in each partition, with the runs before them.
        limits: the limits of the micro-batch.
        ends: the end offset of each partition.
        least: at least so many records are admitted, even if they exceed the limits.

    Returns:
        The number of admitted records.
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
