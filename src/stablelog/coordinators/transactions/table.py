"""The state of a transaction group (topics and producers with one commit log) in memory, as the records of its commit
log describe it.

The state changes only by `put`, `forget` and the methods that hand out numbers. Each of them adds the record of the
change. `replay` of these records gives the same state, except for times that are later than the broker's start (see
`finish_replay`). The coordinator decides when the state changes.

A transactional id takes a fixed size of memory and the partitions of its open transaction, however many transactions it
has had. An id without an open transaction takes less (`idle_ids`).
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from stablelog.coordinators.live_state import LiveState
from stablelog.coordinators.patterns import name_matcher
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.answers import Listed
from stablelog.coordinators.transactions.commit_sequences import CommitSequences
from stablelog.coordinators.transactions.idle_ids import IdleIds, idle_value
from stablelog.coordinators.transactions.joint.table import JointTable
from stablelog.coordinators.transactions.listing import parse_state_names
from stablelog.coordinators.transactions.log_ends import LogEnds
from stablelog.coordinators.transactions.open_ids import OpenIds
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    JointKey,
    TransactionGroupKey,
    TransactionGroupState,
    TransactionKey,
    decode_group,
    decode_transaction,
    encode_group,
    encode_transaction,
    group_key,
    read_key,
    transaction_key,
)
from stablelog.coordinators.transactions.recovery import DecisionHistory
from stablelog.coordinators.transactions.spare_ids import Barrier, SpareIds
from stablelog.coordinators.transactions.states import TransactionEvent, next_state
from stablelog.coordinators.transactions.transaction import (
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from stablelog.types import TopicPartition

# The maximum number of decisions that a checkpoint writes in one batch: pending ones, and ones from before the broker's
# start. Such a batch takes about 10 ms.
UNDIVIDED_MAX: Final = 500
LISTED_AT_ONCE: Final = 100  # The number of ids in one slice of a list.


class TransactionTable:
    """The transactional ids of one transaction group (topics and producers with one commit log). `len` returns the
    number of ids.

    Args:
        group: the name of the transaction group.
        expiration_ms: the time without use after which an id is forgotten.
        producer_ids: hands out producer ids.
        marker_barrier: a function that the table calls when it forgets a child of a joint commit. It returns a marker
            barrier (`spare_ids.Barrier`): a function that tells later whether all markers that were written before the
            call are durable.

    Attributes:
        history: the decisions to commit or abort from before the broker's start, kept for the partitions that have not
            been opened yet and may lack their markers.
        joints: the keys of joint commits, each of which commits several transactions together.
        sequences: numbers the commits of the group.
        abort_only: by transactional id, the producer whose transaction was refused a partition, and can only be
            aborted. This is not recorded in the commit log.
    """

    def __init__(
        self,
        group: str,
        expiration_ms: int,
        producer_ids: ProducerIds,
        marker_barrier: Callable[[], Barrier],
    ) -> None:
        self.history = DecisionHistory()
        self.joints = JointTable(expiration_ms)
        self.abort_only: dict[str, ProducerIdAndEpoch] = {}
        self.sequences = CommitSequences(group)
        self._group = group
        self._expiration_ms = expiration_ms
        self._producer_ids = producer_ids
        self._spare_ids = SpareIds()
        self._marker_barrier = marker_barrier
        self._open = OpenIds()
        self._idle = IdleIds()
        self._latest_ms = 0  # The latest time in all replayed records.
        self._change_count = 0

    # -- looking up ----------------------------------------------------------------------------------------

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id; None if the id is unknown."""
        txn = self._open.txns.get(transactional_id)
        return self._idle.get(transactional_id) if txn is None else txn

    def __contains__(self, transactional_id: str) -> bool:
        """Whether a transactional id is known."""
        return transactional_id in self._open.txns or self._idle.value(transactional_id) is not None

    def idle_ids(self) -> list[str]:
        """Return the transactional ids without an open transaction."""
        return list(self._idle)

    def require_state(self, transactional_id: str) -> TransactionMetadata:
        """Return the state of a transactional id. The id must exist: an unknown id is a bug of the caller."""
        txn = self.get(transactional_id)
        assert txn is not None, f"the transactional id {transactional_id} is unknown"
        return txn

    def state_snapshot(self, transactional_id: str) -> TransactionMetadata | bytes | None:
        """Return a value by which a later change of an id's state can be recognized; None if the id is unknown.
        `changed_ids` compares it with the state at a later time.
        """
        return self._open.txns.get(transactional_id) or self._idle.value(transactional_id)

    def changed_ids(self, snapshots: Mapping[str, TransactionMetadata | bytes]) -> list[str]:
        """Return the ids in `snapshots` whose state has changed since `state_snapshot` was called for them, or whose
        transaction the broker has refused a partition since.
        """
        live, idle = self._open.txns, self._idle
        changed = [i for i, known in snapshots.items() if live.get(i) is not known and idle.value(i) != known]
        return changed + [i for i in self.abort_only if i in snapshots]

    def owner_of_open(self, producer_id: int) -> str | None:
        """Return the transactional id whose open transaction has a producer id; None if there is none."""
        owner = self._open.owner_of(producer_id)
        return owner if owner is not None and self._open.txns[owner].producer_id == producer_id else None

    def owner_of(self, producer_id: int) -> str | None:
        """Return the transactional id that has a producer id; None if no id has it."""
        owner = self._open.owner_of(producer_id)
        return self._idle.owner_of(producer_id) if owner is None else owner

    def may_own_transaction(self, target: TopicPartition, producer_id: int) -> bool:
        """Whether an open transaction of this producer in a partition may belong to this transaction group (topics with
        one order of commits): an id of the group, or a past decision about the partition, has the producer id.
        """
        return self.owner_of(producer_id) is not None or self.history.has_decision_in(target, producer_id)

    @property
    def resolved_sequence(self) -> int:
        """The number of the last resolved commit (its commit sequence): all markers of this commit and of all earlier
        ones in the group are written. It is 0 before the first commit.

        After a start of the broker, the number may be too high: a partition that was not reconciled yet may have lost
        markers.
        """
        unmarked = self._open.first_unmarked(self.sequences.first_undecided)
        least = self.history.lowest_sequence
        return (unmarked if least is None else min(unmarked, least)) - 1

    def decided_ids(self) -> list[str]:
        """Return the ids whose transaction is decided (committed or aborted) and not all of whose markers are written,
        in the order of the decisions.
        """
        return list(self._open.decided)

    def is_repeated(self, transactional_id: str) -> bool:
        """Whether the transaction of an id was decided before the broker's last start, and its markers are not all
        written yet.
        """
        return self._open.is_repeated(transactional_id)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
        now_ms: int,
    ) -> tuple[Iterator[list[Listed]], list[str]]:
        """List the transactional ids that pass every filter, in slices, so that other work can run between two of them.

        Args:
            states: Kafka's names of states; empty for all.
            producer_ids: producer ids; empty for all.
            duration_ms: list only transactions that have been open for longer; negative for all.
            id_pattern: a regular expression for the whole id; None or empty for all.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A pair: the slices, each a list that is made when it is taken; and the names in `states` that are not names
            of states. Ids that become known after the call are not listed.

        Raises:
            RefusedError: the pattern is not a regular expression that is supported (see `name_matcher`).
        """
        wanted, unknown = parse_state_names(states)
        writers = frozenset(producer_ids)
        matches = name_matcher(id_pattern)
        # Skip the idle ids if the filters ask for a duration or only for states of open transactions.
        may_be_idle = duration_ms < 0 and (not states or any(not state.is_open for state in wanted))
        # Copy the ids now: the work is done in slices, and requests add and remove ids between two slices.
        ids = [*self._open.txns, *self._idle] if may_be_idle else list(self._open.txns)

        def passing(some: list[str]) -> Iterator[Listed]:
            for transactional_id in some:
                txn = self._open.txns.get(transactional_id)
                head = txn if txn is not None else self._idle.head(transactional_id)
                if (
                    head is not None
                    and (duration_ms < 0 or (txn is not None and now_ms - txn.start_ms > duration_ms))
                    and (not states or head.state in wanted)
                    and (not writers or head.producer_id in writers)
                    and matches(transactional_id)
                ):
                    yield Listed(transactional_id, head.producer_id, head.state.label)

        # A pattern can take milliseconds for one id.
        size = 1 if id_pattern else LISTED_AT_ONCE
        slices = (ids[at : at + size] for at in range(0, len(ids), size))
        return (list(passing(some)) for some in slices), unknown

    @property
    def change_count(self) -> int:
        """The number of changes of this table since the broker's start. Every change is recorded in the commit log."""
        return self._change_count + self.joints.change_count + self.sequences.assigned_count

    @property
    def item_count(self) -> int:
        """The number of transactional ids, and of keys of joint commits (commits of several transactions together)."""
        return len(self) + len(self.joints)

    def __len__(self) -> int:
        return len(self._open.txns) + len(self._idle)

    # -- changing ------------------------------------------------------------------------------------------

    def put(self, transactional_id: str, txn: TransactionMetadata, records: list[Record]) -> None:
        """Change the state of a transactional id, and add the record of the change to `records`."""
        self._change_count += 1
        if not self._open.remove(transactional_id) and not self._idle.remove(transactional_id):
            self.joints.add_child_id(transactional_id)
        value = encode_transaction(txn)
        if txn.state.is_open:
            self._open.put(transactional_id, txn)
        else:
            self._idle.put(transactional_id, txn, value)
        records.append((transaction_key(transactional_id), value))

    def forget(self, transactional_id: str, records: list[Record]) -> None:
        """Forget a transactional id that has no open transaction, and add the tombstone of its record to `records`."""
        self._change_count += 1
        txn = self.require_state(transactional_id)
        assert next_state(txn.state, TransactionEvent.EXPIRE) is None
        self._idle.remove(transactional_id)
        if self.joints.is_over(transactional_id) and not self.history.has_decision_of(txn.client.producer_id):
            self._spare_ids.add_identity(txn.client, self._marker_barrier())
        self.joints.remove_child_id(transactional_id)
        self.abort_only.pop(transactional_id, None)
        records.append((transaction_key(transactional_id), None))

    def is_abort_only(self, transactional_id: str, txn: TransactionMetadata) -> bool:
        """Whether the broker refused a partition to the producer's transaction, so that the producer can only abort."""
        return self.abort_only.get(transactional_id) == txn.client

    def take_producer_id(self, records: list[Record]) -> int:
        """Take a new producer id. Ids are reserved in blocks: if this one begins a block, add the record that reserves
        the block to `records`.
        """
        if self._producer_ids.needs_block:
            self._change_count += 1
            self._producer_ids.reserve_block()
            records.append(self._group_record())
        return self._producer_ids.take_id()

    def take_spare_identity(self) -> ProducerIdAndEpoch | None:
        """Take a spare producer id with the highest epoch that it has had. It belonged to a child, one of the
        transactions that a joint commit commits together, which is committed and forgotten. A new child can use this
        producer id with a greater epoch.

        Returns:
            The producer id and epoch; None if no such producer id is free.
        """
        spare = self._spare_ids.take_identity()
        assert spare is None or self._open.owner_of(spare.producer_id) is None
        return spare

    def skip_producer_id(self, producer_id: int) -> None:
        """Record that a partition contains this producer id. It must not be handed out again."""
        self._producer_ids.space.skip_past(producer_id)

    # -- time ----------------------------------------------------------------------------------------------

    def overdue(self, now_ms: int, count_max: int) -> Iterator[tuple[str, TransactionMetadata]]:
        """Yield open transactions that have timed out, at most `count_max`. The caller ends each of them."""
        for transactional_id in self._open.timeouts.pop_due(now_ms, count_max):
            yield transactional_id, self._open.txns[transactional_id]

    def may_be_overdue(self, now_ms: int) -> bool:
        """Whether there may be more transactions that have timed out."""
        return self._open.timeouts.is_due(now_ms)

    def may_be_expired(self, now_ms: int) -> bool:
        """Whether any transactional id has expired, or any key of a joint commit may have expired."""
        return any(self.expired(now_ms, 1)) or self.joints.may_be_expired(now_ms)

    def expired(self, now_ms: int, count_max: int) -> Iterator[str]:
        """Yield transactional ids that have expired, at most `count_max`. The caller forgets each of them."""
        for transactional_id, head in self._idle.oldest(count_max):
            if head.update_ms + self._expiration_ms > now_ms:
                return
            yield transactional_id

    # -- start and trimming --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the commit log to the table. Unknown kinds of records are skipped.

        Raises:
            DamageError: the record is damaged.
        """
        subject = read_key(key)
        if isinstance(subject, TransactionKey):
            self._replay_transaction(subject.transactional_id, value)
        elif isinstance(subject, TransactionGroupKey) and value is not None and subject.group == self._group:
            state = decode_group(value)
            self._producer_ids.replay(state.producer_ids_end)
            self.sequences.skip_past(state.commit_sequence_next - 1)
        elif isinstance(subject, JointKey):
            self.sequences.skip_past(self.joints.replay(subject.name, value))

    def _replay_transaction(self, transactional_id: str, value: bytes | None) -> None:
        txn = None if value is None else decode_transaction(value)
        self._open.replay(transactional_id, txn)
        self._idle.remove(transactional_id)
        if value is None or txn is None:
            return
        if not txn.state.is_open:
            self._idle.put_encoded(transactional_id, idle_value(txn, value))
        self._latest_ms = max(self._latest_ms, txn.latest_ms)
        self.skip_producer_id(max(txn.producer_id, txn.next_producer_id))
        self.sequences.skip_past(txn.commit_sequence)
        # Only Kafka writes a decision that keeps the producer's epoch and lacks the end offsets. Such a decision matters
        # only if it is the last one of the transactional id: see `finish_replay`.
        if txn.state.is_decided and not txn.lacks_ends:
            self.history.add_decision(transactional_id, value, txn)

    def finish_replay(self, leader_epoch: int, now_ms: int) -> list[Record]:
        """Finish the replay of the commit log, after `replay` was called for all its records.

        Times after `now_ms` become `now_ms`. If the machine's clock was set back, transactions would otherwise time
        out, and ids expire, only when the clock has caught up.

        Args:
            leader_epoch: the broker's leader epoch; the leader epochs that Kafka has written are lower.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            Records that replace Kafka's decisions with transaction version 1 that still lack markers. The new records
            also contain, for each partition, an end offset that lies before all offsets of this leader epoch. All of
            them must be durable before any client writes to a partition.
        """
        self.joints.finish_replay(now_ms)
        if self._latest_ms > now_ms:
            self._idle.clamp_times(now_ms)
        self._idle.sort()
        self._idle.index_owners()
        self._open.finish_replay(now_ms)
        for transactional_id in itertools.chain(self._idle, self._open.txns):
            self.joints.add_child_id(transactional_id)
        records: list[Record] = []
        for transactional_id in list(self._open.decided):
            txn = self._open.txns[transactional_id]
            if txn.lacks_ends:
                partitions = txn.partitions.in_order
                ends = LogEnds.from_offsets(leader_epoch, partitions, itertools.repeat(0, len(partitions)))
                txn = txn._replace(ends=ends)
                self.put(transactional_id, txn, records)
                self.history.add_decision(transactional_id, encode_transaction(txn), txn)
        self._open.mark_repeated()
        return records

    def partitions_opened(self) -> None:
        """Free the data that is needed only to open partitions, such as the decisions from before the broker's start.
        The caller has opened all partitions that can be opened.
        """
        self._idle.drop_owner_index()

    def live_state(self) -> LiveState | None:
        """Return the live state: records that hold the whole state of the table, in an order in which `replay` gives
        the same state.

        When these records and the markers of all earlier decisions are durable, all earlier records of the commit log
        can be deleted. The decisions are one batch, in their order, before all other records. An id whose transaction
        is decided while the other records (`rest`) are taken needs no record in `rest`: the record of that decision is
        in the log after the batch.

        Returns:
            The records; None while one batch would have more than `UNDIVIDED_MAX` decisions.
        """
        if len(self._open.decided) > UNDIVIDED_MAX or self.history.record_count > UNDIVIDED_MAX:
            return None
        return LiveState(self._undivided(), self._rest())

    def checkpoint(self) -> list[Record]:
        """Return a checkpoint, records that hold the whole state: those of `live_state` in one list, even if there are
        more decisions than `live_state` puts into one batch.
        """
        return [*self._undivided(), *self._rest()]

    def _undivided(self) -> list[Record]:
        """Return the records of the table's state whose order matters, which the caller appends as one batch.

        These are the record of the group, the decisions from before the broker's start, and the pending decisions,
        whose markers are not all written.

        For an id with a decision from before the broker's start, a record of the present state of the id follows the
        decision, even if the present state is not a decision. Without this record, a crash that keeps only this batch
        would give the id the state of the earlier decision.
        """
        records: list[Record] = [self._group_record(), *self.history.records()]
        earlier = sorted(self.history.transactional_ids() - self._open.decided.keys())
        records += [
            (transaction_key(i), self._value(i)) for i in itertools.chain(earlier, self._open.decided)
        ]
        return records

    def _rest(self) -> Iterator[Record]:
        """Yield the rest of the records of the table's state, those whose order does not matter. Each is made from the
        state at the time when the caller takes it.
        """
        yield from self.joints.records()
        for transactional_id in [*self._open.txns, *self._idle]:
            if transactional_id in self._open.decided:
                continue
            value = self._value(transactional_id)
            if value is not None:
                yield transaction_key(transactional_id), value

    def _value(self, transactional_id: str) -> bytes | None:
        """Return the value of a record with the present state of a transactional id; None if the id is unknown."""
        txn = self._open.txns.get(transactional_id)
        return self._idle.value(transactional_id) if txn is None else encode_transaction(txn)

    def _group_record(self) -> Record:
        state = TransactionGroupState(self._producer_ids.reserved_end, self.sequences.next)
        return group_key(self._group), encode_group(state)
