"""Committed and pending offsets of consumer groups.

A plain commit takes effect at once. A commit in a transaction is *pending* until the transaction's marker: a commit
marker makes it take effect, and an abort marker drops it. If a plain and a transactional commit are for the same
partition, the commit with the later record in the log wins, even if it took effect before the other one. A tombstone
removes committed and pending offsets.

The end of a transaction takes effect at once for all its offsets, however many they are: `end_transaction` changes only
the state of the transaction. Its offsets are *applied* later, a few at a time, by `apply_ended`: they are moved to the
committed offsets of their groups, or dropped. Until then, `committed` returns them as if they were applied.

The `position` of a commit is a running number in the order of the records. Commits are decided and replayed in the
order of the log, so positions compare in the same way after a restart.

Before the log is trimmed, the coordinator appends the commits that it still needs again, both committed and pending
ones. Two rules keep their order:

- All commits of one group and partition are appended in the order of their positions, before any of them changes. If
  one of them is pending, each record is marked as repeated.
- In a replay, a repeated commit changes nothing if the same commit was read before: the log then still has its first
  record, or an earlier copy. Otherwise the older part of the log was deleted. The repeated commits are then the oldest
  ones: they count as earlier than all commits that are not repeated, and have among themselves the order in which they
  stand in the log.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager.
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.types import TopicPartition

LOOKED_AT_ONCE = 1_000  # The number of offsets in one slice of a search.
REPEATED_MAX = 2**62  # More commits than a checkpoint can repeat.
APPLIED_AT_ONCE: Final = 1_000  # The number of offsets of ended transactions that one `apply_ended` settles.


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset with its metadata, committed or pending (committed in a transaction that is still open).

    `position` is the number of the commit, counted in the order of the log's records, so that a later commit has a
    greater one.
    """

    value: OffsetValue
    position: int


OffsetByPartition = dict[TopicPartition, OffsetAndMetadata]
NO_OFFSETS: Final[Mapping[TopicPartition, OffsetAndMetadata]] = {}


@dataclass(eq=False, slots=True)
class _TransactionOffsets:
    """Offsets that a transaction has committed and that are not applied yet: not moved to the committed offsets of
    their groups.

    Attributes:
        producer_id: the producer id of the transaction.
        by_group: the offsets, by group.
        is_open: whether the transaction has no marker yet.
        is_committed: whether it has ended with a commit marker.
    """

    producer_id: int
    by_group: dict[str, OffsetByPartition] = field(default_factory=dict)
    is_open: bool = True
    is_committed: bool = False


class _UnappliedOffsets(Mapping[TopicPartition, OffsetAndMetadata]):
    """The committed offsets of a group while some offsets of ended transactions are not applied to it yet.

    It is read like one mapping: for each partition it has the offset with the latest record in the log.

    Args:
        layers: one mapping with the offsets that are applied to the group, and one for each committed transaction whose
            offsets are not applied yet.
    """

    def __init__(self, layers: list[OffsetByPartition]) -> None:
        self._layers = layers

    def __getitem__(self, partition: TopicPartition) -> OffsetAndMetadata:
        found: OffsetAndMetadata | None = None
        for layer in self._layers:
            offset = layer.get(partition)
            if offset is not None and (found is None or found.position < offset.position):
                found = offset
        if found is None:
            raise KeyError(partition)
        return found

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(dict.fromkeys(itertools.chain.from_iterable(self._layers)))

    def __len__(self) -> int:
        return len(set().union(*self._layers))

    def __bool__(self) -> bool:
        return any(self._layers)


class GroupOffsets:
    """The offsets of all groups: committed ones, and pending ones, whose transactions are still open."""

    def __init__(self) -> None:
        self._positions = itertools.count()
        self._committed: dict[str, OffsetByPartition] = {}
        self._open: dict[int, _TransactionOffsets] = {}  # The open transactions by producer id.
        self._ended: deque[_TransactionOffsets] = (
            deque()
        )  # Ended transactions with offsets that are not settled.
        # By group: the transactions with offsets of the group that are open or not settled.
        self._by_group: dict[str, dict[_TransactionOffsets, None]] = {}
        self.begin_log()

    # -- changes --------------------------------------------------------------------------------------------

    def begin_log(self) -> None:
        """Record that the replay of older logs is over, and that of the present log begins: later calls of `add_commit`
        are for records of the present log.

        Only the present log is trimmed (its beginning is deleted after a checkpoint). A directory of Apache Kafka can
        have older logs of offsets, which are read first and never trimmed.
        """
        self._log_begin = next(self._positions)
        self._repeated_positions = itertools.count(self._log_begin)
        self._positions = itertools.count(self._log_begin + REPEATED_MAX)

    def add_commit(
        self, group_id: str, partition: TopicPartition, value: OffsetValue, *, producer_id: int | None = None
    ) -> None:
        """Add an offset to the committed ones or, if an open transaction commits it, to the pending ones.

        Args:
            group_id: the group.
            partition: the partition.
            value: the offset.
            producer_id: the producer id of the transaction that commits the offset; None outside transactions.
        """
        if producer_id is None:
            offsets = self._committed.setdefault(group_id, {})
        else:
            txn = self._open.get(producer_id)
            if txn is None:
                txn = self._open[producer_id] = _TransactionOffsets(producer_id)
            offsets = txn.by_group.setdefault(group_id, {})
            self._by_group.setdefault(group_id, {})[txn] = None
        former = offsets.get(partition)
        if value.is_repeated:
            if former is not None and former.position >= self._log_begin:
                return
            position = next(self._repeated_positions)
            value = value._replace(is_repeated=False)
        else:
            position = next(self._positions)
        if producer_id is None:
            self._drop_unapplied(group_id, partition)
        offsets[partition] = OffsetAndMetadata(value, position)

    def remove_offset(self, group_id: str, partition: TopicPartition) -> None:
        """Apply a tombstone: remove the group's committed offset for the partition, and its pending offsets in open
        transactions.
        """
        committed = self._committed.get(group_id)
        if committed is not None:
            committed.pop(partition, None)
            if not committed:
                del self._committed[group_id]
        for pending in self._pending_of(group_id):
            pending.pop(partition, None)
        self._drop_unapplied(group_id, partition)

    def _drop_unapplied(self, group_id: str, partition: TopicPartition) -> None:
        """Drop the unapplied offsets of a partition: those of ended transactions that were not moved to the committed
        offsets of the group yet.
        """
        # There are few of them, because each end settles a portion. The group may have many open transactions.
        for txn in self._ended:
            if group_id in txn.by_group:
                txn.by_group[group_id].pop(partition, None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """End the transaction of a producer: its pending offsets take effect with a commit, or are dropped.

        If the transaction has many offsets, `is_all_applied` is False afterwards. The caller then calls `apply_ended`
        until it is True.
        """
        txn = self._open.pop(producer_id, None)
        if txn is not None:
            txn.is_open, txn.is_committed = False, commit
            self._ended.append(txn)
            self.apply_ended()

    @property
    def is_all_applied(self) -> bool:
        """Whether the offsets of all ended transactions are applied: moved to the committed offsets of their groups, or
        dropped.
        """
        return not self._ended

    def apply_ended(self) -> None:
        """Apply some offsets of ended transactions: move those of committed transactions to the committed offsets of
        their groups, and drop the others. The earliest transaction comes first.
        """
        count = 0
        while self._ended and count < APPLIED_AT_ONCE:
            txn = self._ended[0]
            if not txn.by_group:
                self._ended.popleft()
                continue
            # Take the last group: to find the first one takes as long as there were groups before it.
            group_id, offsets = txn.by_group.popitem()
            count += 1  # a group without offsets counts, too
            while offsets and count <= APPLIED_AT_ONCE:
                partition, offset = offsets.popitem()
                count += 1
                if txn.is_committed:
                    self._apply_offset(group_id, partition, offset)
            if offsets:
                txn.by_group[group_id] = offsets
            else:
                self._leave(group_id, txn)

    def _apply_offset(self, group_id: str, partition: TopicPartition, offset: OffsetAndMetadata) -> None:
        committed = self._committed.setdefault(group_id, {})
        former = committed.get(partition)
        if former is None or former.position < offset.position:
            committed[partition] = offset

    def _leave(self, group_id: str, txn: _TransactionOffsets) -> None:
        """Remove a group from an ended transaction, because all offsets that the transaction has committed for the
        group are applied.
        """
        transactions = self._by_group[group_id]
        del transactions[txn]
        if not transactions:
            del self._by_group[group_id]

    # -- state ----------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group. The result is valid until the next change."""
        settled = self._committed.get(group_id)
        if not self._ended:
            return NO_OFFSETS if settled is None else settled
        layers = [
            txn.by_group[group_id] for txn in self._ended if txn.is_committed and group_id in txn.by_group
        ]
        if not layers:
            return NO_OFFSETS if settled is None else settled
        return _UnappliedOffsets([*([] if settled is None else [settled]), *layers])

    def pending(self, producer_id: int, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the pending offsets of a group: those that the open transaction of this producer commits for it."""
        txn = self._open.get(producer_id)
        return NO_OFFSETS if txn is None else txn.by_group.get(group_id, NO_OFFSETS)

    def _pending_of(self, group_id: str) -> Iterator[OffsetByPartition]:
        """Yield the pending offsets of a group (not in effect until the commit marker), for each open transaction that
        has some.
        """
        return (txn.by_group[group_id] for txn in self._by_group.get(group_id, ()) if txn.is_open)

    def pending_partitions(self, group_id: str) -> AbstractSet[TopicPartition]:
        """Return the partitions with pending offsets of the group: offsets in open transactions, which take effect with
        the commit marker. As long as nothing changes, the order of the partitions stays the same.
        """
        return dict.fromkeys(itertools.chain.from_iterable(self._pending_of(group_id))).keys()

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether the group has a pending offset for this partition: one that an open transaction commits."""
        return any(partition in pending for pending in self._pending_of(group_id))

    def has_offset(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether the group has an offset for this partition, committed or pending in an open transaction."""
        return partition in self.committed(group_id) or self.is_pending(group_id, partition)

    def has_open_transactions(self, group_id: str) -> bool:
        """Return whether an open transaction has pending offsets of the group."""
        return any(True for _ in self._pending_of(group_id))

    def slices_of_topic(self, topic: str) -> Iterator[list[tuple[str, TopicPartition]]]:
        """Yield (group, partition) of all offsets for a topic, committed ones and those of open transactions, in
        slices: lists that are small enough for one turn of the event loop.

        Each slice is made when the caller takes it, from about `LOOKED_AT_ONCE` offsets, and may be empty. Offsets may
        be committed and removed between two slices. An offset that is committed for the topic after this call may be
        left out.
        """
        found: list[tuple[str, TopicPartition]] = []
        count = 0
        for group_id in dict.fromkeys([*self._committed, *self._by_group]):
            pending = self.pending_partitions(group_id)
            for partition in dict.fromkeys([*self.committed(group_id), *pending]):
                count += 1
                if partition[0] == topic:
                    found.append((group_id, partition))
                if count >= LOOKED_AT_ONCE:
                    yield found
                    found, count = [], 0
        yield found

    def commits_to_repeat(
        self, group_id: str, ordered: Collection[TopicPartition] = ()
    ) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """Yield the committed offsets of a group that must be repeated: appended to the log again before the log is
        trimmed (its beginning is deleted).

        Each item is made when the caller takes it, from the state at that time.

        Args:
            group_id: the group.
            ordered: partitions to leave out. The caller takes their offsets from `commits_in_order`.
        """
        for partition in list(self.committed(group_id)):
            # If the offset was removed since the checkpoint began, its tombstone is in the log: do not write the offset
            # again.
            committed = self.committed(group_id).get(partition)
            if committed is not None and partition not in ordered:
                is_repeated = self.is_pending(group_id, partition)
                yield partition, committed.value._replace(is_repeated=is_repeated)

    def commits_in_order(
        self, group_id: str, partition: TopicPartition
    ) -> list[tuple[int | None, OffsetValue]]:
        """Return the committed offset and all pending offsets (those of open transactions) of a group for a partition,
        in the order of their commits.

        Returns:
            Each offset with the producer id of its transaction; None in place of the producer id for the committed
            offset.
        """
        found: list[tuple[int, int | None, OffsetValue]] = []
        for txn in self._by_group.get(group_id, ()):
            pending = txn.by_group[group_id].get(partition) if txn.is_open else None
            if pending is not None:
                found.append((pending.position, txn.producer_id, pending.value))
        is_repeated = bool(found)
        committed = self.committed(group_id).get(partition)
        if committed is not None:
            found.append((committed.position, None, committed.value))
        found.sort(key=itemgetter(0))
        return [(owner, value._replace(is_repeated=is_repeated)) for _, owner, value in found]
