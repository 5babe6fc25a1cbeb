"""Committed and pending offsets of consumer groups.

A plain commit takes effect at once. A commit in a transaction is *pending* until the transaction's marker: a commit
marker lets it take effect, and an abort marker drops it. If a plain and a transactional commit are for the same
partition, the commit with the later record in the log wins, even if this commit took effect before the other one. A
tombstone removes committed and pending offsets.

The `position` of a commit is a running number in the order of the records. Commits are decided and replayed in the
order of the log, so positions compare in the same way after a restart.

A checkpoint repeats commits, committed and pending ones, in a later place of the log. Their order is kept by two rules:

- The checkpoint writes all commits of one group and partition in the order of their positions, before any of them
  changes. If one of them is pending, each record says that it is repeated.
- In a replay, a repeated commit that is known already changes nothing: the log still has the first record, or an
  earlier checkpoint. Any other repeated commit comes before all commits that are not repeated, and after the repeated
  ones before it. All records of the log before the checkpoint have been deleted then, so that these commits are the
  oldest ones.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager.
"""

import itertools
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import itemgetter

from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.types import TopicPartition

LOOKED_AT_ONCE = 1_000  # The number of offsets in one slice of a search.
REPEATED_MAX = 2**62  # More commits than a checkpoint can repeat.


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, and the position of its commit: a number that rises in the order of the log's records."""

    value: OffsetValue
    position: int


OffsetByPartition = dict[TopicPartition, CommittedOffset]


class Offsets:
    """Committed and pending offsets of all groups."""

    def __init__(self) -> None:
        self._positions = itertools.count()
        self._committed: dict[str, OffsetByPartition] = {}
        self._pending: dict[int, dict[str, OffsetByPartition]] = {}
        self._open_producers: dict[str, set[int]] = {}
        self.begin_log()

    # -- changes --------------------------------------------------------------------------------------------

    def begin_log(self) -> None:
        """Note that the records of the log that checkpoints are written to follow. The records before are in logs that
        are never trimmed.
        """
        self._log_begin = next(self._positions)
        self._repeated_positions = itertools.count(self._log_begin)
        self._positions = itertools.count(self._log_begin + REPEATED_MAX)

    def commit(
        self, group_id: str, partition: TopicPartition, value: OffsetValue, *, producer_id: int | None = None
    ) -> None:
        """Add a commit of an offset.

        Args:
            group_id: the group.
            partition: the partition.
            value: the committed offset.
            producer_id: the producer id of the transaction that commits; None outside transactions.
        """
        if producer_id is None:
            offsets = self._committed.setdefault(group_id, {})
        else:
            offsets = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
            self._open_producers.setdefault(group_id, set()).add(producer_id)
        former = offsets.get(partition)
        if value.is_repeated:
            if former is not None and former.position >= self._log_begin:
                return
            position = next(self._repeated_positions)
        else:
            position = self._position_of(group_id, partition, value, next(self._positions))
        value = value._replace(overtaken_by=(), is_repeated=False)
        offsets[partition] = CommittedOffset(value, position)

    def _position_of(
        self, group_id: str, partition: TopicPartition, value: OffsetValue, position: int
    ) -> int:
        """Return the position of a commit: its number in the order of the commits.

        A commit that a checkpoint of an earlier release has written again gets a position before the pending commits
        that were made after it.
        """
        later = (self.pending(producer_id, group_id).get(partition) for producer_id in value.overtaken_by)
        return min((pending.position - 1 for pending in later if pending is not None), default=position)

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Handle a tombstone: remove the committed offset and all pending offsets of the partition."""
        committed = self._committed.get(group_id)
        if committed is not None:
            committed.pop(partition, None)
            if not committed:
                del self._committed[group_id]
        for producer_id in self._open_producers.get(group_id, ()):
            self._pending[producer_id][group_id].pop(partition, None)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Handle the end of a producer's transaction: its pending offsets take effect, or are dropped."""
        by_group = self._pending.pop(producer_id, {})
        for group_id, pending in by_group.items():
            open_producers = self._open_producers[group_id]
            open_producers.remove(producer_id)
            if not open_producers:
                del self._open_producers[group_id]
            if not commit or not pending:
                continue
            committed = self._committed.setdefault(group_id, {})
            for partition, offset in pending.items():
                former = committed.get(partition)
                if former is None or former.position < offset.position:
                    committed[partition] = offset

    # -- state ----------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> OffsetByPartition:
        """The committed offsets of a group."""
        return self._committed.get(group_id, {})

    def pending(self, producer_id: int, group_id: str) -> OffsetByPartition:
        """The pending offsets of a group in the open transaction of a producer."""
        return self._pending.get(producer_id, {}).get(group_id, {})

    def pending_partitions(self, group_id: str) -> AbstractSet[TopicPartition]:
        """The partitions for which open transactions hold offsets of the group, in an order that does not vary."""
        return dict.fromkeys(
            partition
            for producer_id in self._open_producers.get(group_id, ())
            for partition in self._pending[producer_id][group_id]
        ).keys()

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction holds an offset of the group for this partition."""
        return any(
            partition in self._pending[producer_id][group_id]
            for producer_id in self._open_producers.get(group_id, ())
        )

    def is_kept(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether the group has an offset for the partition, committed or pending, that a tombstone would remove."""
        return partition in self._committed.get(group_id, ()) or self.is_pending(group_id, partition)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open."""
        return group_id in self._open_producers

    def of_topic(self, topic: str) -> Iterator[list[tuple[str, TopicPartition]]]:
        """Yield the offsets of all groups for a topic, pending or not, as (group, partition), in slices.

        Each slice is made when it is taken, from about `LOOKED_AT_ONCE` offsets, and may be empty. Offsets may be
        committed and removed between two slices. An offset that is committed for the topic after the call may be left
        out.
        """
        found: list[tuple[str, TopicPartition]] = []
        count = 0
        for group_id in dict.fromkeys([*self._committed, *self._open_producers]):
            pending = self.pending_partitions(group_id)
            for partition in dict.fromkeys([*self.committed(group_id), *pending]):
                count += 1
                if partition[0] == topic:
                    found.append((group_id, partition))
                if count >= LOOKED_AT_ONCE:
                    yield found
                    found, count = [], 0
        yield found

    def checkpoint(
        self, group_id: str, ordered: Collection[TopicPartition] = ()
    ) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """The committed offsets of a group that must be recorded again before the log is trimmed.

        An item is made when the caller takes it, from the state at that time.

        Args:
            group_id: the group.
            ordered: partitions that are left out: the caller takes their offsets from `in_order`.
        """
        for partition in list(self.committed(group_id)):
            # If the offset was removed since the checkpoint began, its tombstone is in the log: do not write the offset
            # again.
            committed = self.committed(group_id).get(partition)
            if committed is not None and partition not in ordered:
                is_repeated = self.is_pending(group_id, partition)
                yield partition, committed.value._replace(is_repeated=is_repeated)

    def in_order(self, group_id: str, partition: TopicPartition) -> list[tuple[int | None, OffsetValue]]:
        """The committed offset of a group for a partition and all pending ones, in the order of their commits, each with
        the producer id of its transaction; None for the committed one.
        """
        found: list[tuple[int, bool, int | None, OffsetValue]] = []
        for producer_id in self._open_producers.get(group_id, ()):
            pending = self._pending[producer_id][group_id].get(partition)
            if pending is not None:
                found.append((pending.position, False, producer_id, pending.value))
        is_repeated = bool(found)
        committed = self.committed(group_id).get(partition)
        if committed is not None:
            # A checkpoint of an earlier release may have given the committed offset the position of a pending one that
            # it has overtaken.
            found.append((committed.position, True, None, committed.value))
        found.sort(key=itemgetter(0, 1))
        return [(owner, value._replace(is_repeated=is_repeated)) for _, _, owner, value in found]
