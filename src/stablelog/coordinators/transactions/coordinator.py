"""Transaction coordinator of one transaction group: decides about requests, timeouts and crashes.

Each method takes an event, with the time as an argument, and returns a decision (`transactions.decisions`). The
coordinator itself reads and writes no log. Its caller has to follow these rules:

- The caller appends the records of each decision to the commit log as one batch, in the order of the decisions.
- The coordinator's state changes at once. So every effect (marker, response) waits until all records that the commit
  log had at the time of the decision are durable, even if the decision has no records. Only the answer to
  `add_partitions` may be sent earlier, if the acknowledgement of the first batches in these partitions waits instead.
- The caller writes the markers of each partition in the order of the decisions. When the marker of a marker order is
  written to all its partitions, the caller calls `markers_done`. The markers need not be durable then: see `reconcile`.
- At a start the caller calls `table.replay` for each record, and then `loaded` once. It holds back the markers that
  `loaded` returns. When a partition has been opened, the caller calls `reconcile` with the markers for that partition,
  before anything else writes to it.

`transactions.states` defines which event is valid in which state. `transactions.records` defines the bytes of the
records. `transactions.table` holds the state. Each request has the producer's id and epoch; a request with wrong ones
is refused. A refused request changes nothing.

Words: a transaction is *turned away* if the broker refused it a partition; its producer can only abort it. A decision
is *repeated* if it was made before the broker's last start. To *adopt* a transaction that is open in a partition is to
treat it as the current transaction of its producer, although a crash has lost the record that added the partition.

Source: KIP-98, KIP-360, KIP-664, KIP-890, KIP-939; docs/decisions/0003-transactions.md.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.decisions import (
    Decision,
    Draft,
    EndAnswer,
    MarkerOrder,
    OpenTransaction,
    TransactionConfig,
)
from stablelog.coordinators.transactions.ending import Ending, EndOffsets, completed, ends_unknown
from stablelog.coordinators.transactions.initialization import Initialization
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.partitions import Reconciliation, with_partitions
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.refusals import (
    TXN_KNOWS_FENCED,
    fenced,
    for_produce,
    for_version,
    mapping_lost,
    turned_away,
    tv1_refused,
    without_fenced,
)
from stablelog.coordinators.transactions.spare_ids import Barrier, durability_unknown
from stablelog.coordinators.transactions.states import Event, State, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_SEQUENCE,
    TV1,
    TV2,
    Identity,
    Transaction,
)
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of

END_TXN_TV2: Final = 5  # From this version of EndTxn on, the client uses TV2 (transaction version 2).
# The maximum number of transactions that one `abort_overdue` aborts, and of ids that one `forget_expired` forgets.
TICK_COUNT_MAX: Final = 100
# The number of partitions of aborted transactions after which one `abort_overdue` aborts no further transaction.
TICK_PARTITION_COUNT: Final = 1_000

_AGAIN: Final = (Event.COMMIT_AGAIN, Event.ABORT_AGAIN)


class TransactionCoordinator:
    """Coordinator of the transactions of one group.

    Args:
        config: the settings.
        group: name of the transaction group; empty for the default group.
        coordinator_epoch: the broker's leader epoch: each start of the broker has a greater one. Markers contain it.
        producer_ids: hands out producer ids. The transaction groups of one broker share the space of producer ids.
        end_offsets: returns the present end offsets of partitions: 0 for a partition that the broker has not opened
            since its start, OFFSET_UNKNOWN for a partition that it does not know. After a crash these offsets
            distinguish a TV1 transaction from the producer's next one.
        marker_barrier: returns a marker barrier: a function that tells whether all markers that were written before the
            call of `marker_barrier` are durable. The result is True, False (not yet) or None (never). Without this
            argument, the coordinator uses no producer id again.

    Attributes:
        table: the state of the group.
        joint: the joint commits of the group.
        producers: answers InitProducerId.
    """

    def __init__(
        self,
        config: TransactionConfig,
        *,
        group: str = "",
        coordinator_epoch: int = 0,
        producer_ids: ProducerIds | None = None,
        end_offsets: EndOffsets = ends_unknown,
        marker_barrier: Callable[[], Barrier] = lambda: durability_unknown,
    ) -> None:
        self._config = config
        self._coordinator_epoch = coordinator_epoch
        self.table = TransactionTable(
            group,
            config.transactional_id_expiration_ms,
            producer_ids if producer_ids is not None else ProducerIds(),
            marker_barrier,
        )
        self._ending = Ending(self.table, group, coordinator_epoch, end_offsets)
        self.joint = JointCommits(self.table, self._ending, coordinator_epoch)
        self.producers = Initialization(config, self.table, self._ending, self.joint)
        self._reconciliation = Reconciliation(self.table, self._ending)

    # -- partitions ----------------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        api_version: int,
        transaction_version: int = TV1,
        now_ms: int,
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        """Add partitions to a transaction.

        The first partition begins the transaction. Either all partitions are added or none.

        With TV1, AddPartitionsToTxn and AddOffsetsToTxn call this method. With TV2 the broker calls it for the first
        batch of a transaction in a partition.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions; the offsets log is a partition like any other.
            api_version: version of AddPartitionsToTxn or AddOffsetsToTxn; ignored with TV2.
            transaction_version: 1 for TV1, 2 for TV2.
            now_ms: broker time.
        """
        wanted = frozenset(partitions)
        draft = Draft(now_ms)
        code = ErrorCode.none
        try:
            txn = self._of_producer(transactional_id, Identity(producer_id, producer_epoch))
            if self._config.strict and transaction_version < TV2:
                raise tv1_refused()
            if self.table.is_turned_away(transactional_id, txn) and txn.state is State.ONGOING:
                self._ending.end(
                    transactional_id,
                    txn,
                    Event.ABORT,
                    draft,
                    raise_epoch=txn.transaction_version >= TV2,
                    owner_may_ask=True,
                )
                code = ErrorCode.concurrent_transactions
            elif wanted:
                value = with_partitions(transactional_id, txn, wanted, transaction_version, now_ms)
                if value is not txn:
                    self.table.put(transactional_id, value, draft.records)
            self.table.turned_away.pop(transactional_id, None)
        except RefusedError as refused:
            code = for_version(ErrorCode(refused.code), api_version, TXN_KNOWS_FENCED)
            if transaction_version >= TV2:
                # The error code is for a response to Produce or TxnOffsetCommit, which cannot contain PRODUCER_FENCED.
                code = without_fenced(code)
        return draft.decision(dict.fromkeys(wanted, code))

    def turn_away(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Note that the broker has refused a partition to the producer's transaction: the producer can then only abort.

        Without this note, clients with TV1 would handle the refusal wrongly. librdkafka also aborts a transaction that
        has not begun at the coordinator. Such a request looks like an abort of the previous transaction, and a refusal
        of the request would end the producer. aiokafka does not abort the records that it has written to other
        partitions, and would commit them with its next transaction. So `end` accepts the abort of librdkafka. When the
        producer begins its next transaction, `add_partitions` aborts the records that aiokafka has left.
        """
        txn = self.table.get(transactional_id)
        if txn is not None and txn.client == (producer_id, producer_epoch):
            self.table.turned_away[transactional_id] = txn.client

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        produce_version: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether partitions are in the producer's open transaction (KIP-890). This changes nothing.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions.
            produce_version: the version of the Produce request whose response will have the codes; None for
                AddPartitionsToTxn.
        """
        wanted = list(partitions)
        try:
            txn = self._of_producer(transactional_id, Identity(producer_id, producer_epoch))
            next_state(txn.state, Event.ADD)
        except RefusedError as refused:
            return dict.fromkeys(wanted, for_produce(ErrorCode(refused.code), produce_version))
        part_of = txn.partitions if txn.state is State.ONGOING and not txn.is_kept else frozenset()
        missing = for_produce(ErrorCode.transaction_abortable, produce_version)
        return {partition: ErrorCode.none if partition in part_of else missing for partition in wanted}

    def _of_producer(self, transactional_id: str, shown: Identity) -> Transaction:
        """Return the state of a transactional id, if the request comes from the producer that holds the id.

        Raises:
            RefusedError: the id is unknown, or another producer holds it.
        """
        txn = self._known(transactional_id)
        client = txn.client
        if shown.producer_id != client.producer_id:
            raise mapping_lost(transactional_id, shown, txn)
        if shown.producer_epoch != client.producer_epoch:
            raise fenced(transactional_id, shown, txn)
        return txn

    def _known(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise RefusedError(ErrorCode.invalid_request, "the request has no transactional id")
        self.joint.checks.check_open(transactional_id)
        txn = self.table.get(transactional_id)
        if txn is None:
            raise RefusedError(
                ErrorCode.invalid_producer_id_mapping,
                f"no producer uses the transactional id {transactional_id}",
            )
        return txn

    # -- the end -------------------------------------------------------------------------------------------

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        *,
        api_version: int,
        open_only: bool = False,
        now_ms: int,
    ) -> Decision[EndAnswer]:
        """Commit or abort the producer's transaction. A repeated request, even after a restart, gets the same answer.

        With TV2 (EndTxn v5) every transaction has its own epoch. The answer has the epoch of the next transaction. A
        delayed request therefore has an old epoch, and is refused.

        With `open_only`, only the end of an open transaction may add records. Any other request that would add a record
        gets the answer COORDINATOR_LOAD_IN_PROGRESS, and changes nothing. With or without `open_only`, a commit gets
        this answer while `table.sequences.are_known` is False.
        """
        version = TV2 if api_version >= END_TXN_TV2 else TV1
        shown = Identity(producer_id, producer_epoch)
        try:
            if self._config.strict and version < TV2:
                raise tv1_refused()
            own_epoch = self.joint.check_end(transactional_id, commit=commit) or version >= TV2
            txn = self._known(transactional_id)
            event = self._end_event(transactional_id, txn, shown, commit=commit, version=version)
            state = next_state(txn.state, event)
            settles = event in _AGAIN and self._is_first_since_start(txn, version)
            if open_only and txn.state is not State.ONGOING and (event not in _AGAIN or settles):
                raise RefusedError(
                    ErrorCode.coordinator_load_in_progress, f"{transactional_id} has no open transaction"
                )
            if event is Event.COMMIT:
                self.table.sequences.check()
        except RefusedError as refused:
            return Decision(EndAnswer(for_version(ErrorCode(refused.code), api_version, TXN_KNOWS_FENCED)))
        assert state is not None
        self.table.turned_away.pop(transactional_id, None)
        draft = Draft(now_ms)
        if event is Event.ABORT_NOTHING and version < TV2:
            txn = txn._replace(
                state=state,
                update_ms=now_ms,
                start_ms=now_ms,
                commit_sequence=NO_SEQUENCE,
                settled_epoch=self._coordinator_epoch,
                unknown_tags=(),
            )
            self.table.put(transactional_id, txn, draft.records)
        elif event not in _AGAIN:
            txn = self._ending.decide(
                transactional_id,
                txn,
                state,
                draft,
                version=version,
                raise_epoch=own_epoch,
                owner_may_ask=True,
            )
        elif settles:
            # Record that the producer's last transaction is over. A crash may have lost the markers of this transaction
            # in partitions that the broker has not opened yet. The transaction's records there must not become part of
            # the producer's next transaction.
            settled = txn._replace(settled_epoch=self._coordinator_epoch, unknown_tags=())
            self.table.put(transactional_id, settled, draft.records)
        return draft.decision(EndAnswer(ErrorCode.none, *(txn.client if version >= TV2 else ())))

    def _is_first_since_start(self, txn: Transaction, version: int) -> bool:
        """Whether an EndTxn that repeats the end of a complete TV1 transaction is the first one that the broker gets
        since its start.

        If so, the coordinator records in the commit log that the transaction has ended. A crash may have lost its
        marker in a partition that is not open yet, and its records there must not join the producer's next transaction.
        """
        return version < TV2 and txn.state.is_complete and txn.settled_epoch < self._coordinator_epoch

    def _end_event(
        self, transactional_id: str, txn: Transaction, shown: Identity, *, commit: bool, version: int
    ) -> Event:
        """Return the event of an EndTxn request: the end of a transaction, or a repeated request for its end. With TV2
        the epoch of the request distinguishes the two.

        Raises:
            RefusedError: the producer does not hold the id.
        """
        ended = txn.state.is_decided or txn.state.is_complete
        again = Event.COMMIT_AGAIN if commit else Event.ABORT_AGAIN
        if shown == txn.client:
            if self.table.is_repeated(transactional_id) and version < TV2:
                # A crash may have lost the record that began the producer's next transaction. Whether the request ends
                # that transaction or repeats the end of the last one is known only when all partitions are open.
                raise RefusedError(
                    ErrorCode.concurrent_transactions,
                    f"the last transaction of {transactional_id} is being completed; try again",
                )
            if self.table.is_turned_away(transactional_id, txn) and (
                commit or txn.state is not State.ONGOING
            ):
                if not commit:
                    return Event.ABORT_NOTHING
                # Refuse the commit even if no transaction is open here: the producer means the transaction that was
                # refused a partition, so the request does not repeat the previous commit.
                raise turned_away(transactional_id)
            if ended and version < TV2:
                # With TV1 the request repeats the last end: the producer has added no partition since, so it has begun
                # no new transaction.
                return again
            if commit:
                return Event.COMMIT
            begun = txn.state is State.ONGOING or version < TV2
            return Event.ABORT if begun else Event.ABORT_NOTHING
        own_epochs = min(version, txn.transaction_version) >= TV2 or child_of(transactional_id)
        if own_epochs and ended and shown == txn.predecessor and shown.producer_epoch != NO_EPOCH:
            return again
        if shown.producer_id != txn.client.producer_id:
            raise mapping_lost(transactional_id, shown, txn)
        raise fenced(transactional_id, shown, txn)

    def markers_done(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, now_ms: int
    ) -> Decision[None]:
        """Mark a transaction as complete: its markers are written to all its partitions.

        A late or repeated call changes nothing.
        """
        txn = self.table.get(transactional_id)
        draft = Draft(now_ms)
        is_current = txn is not None and (txn.producer_id, txn.producer_epoch) == (
            producer_id,
            producer_epoch,
        )
        if txn is None or not txn.state.is_decided or not is_current:
            return draft.decision(None)
        state = next_state(txn.state, Event.MARKED)
        assert state is not None
        value = completed(txn, state, now_ms)
        self.table.put(transactional_id, value, draft.records)
        adopted = self._reconciliation.take_adopted(transactional_id)
        if adopted:
            value = with_partitions(transactional_id, value, adopted, txn.transaction_version, now_ms)
            self.table.put(transactional_id, value, draft.records)
        elif self.table.joints.is_over(transactional_id):
            # The id is a child of a joint commit that is over. Only its tombstone is recorded: the tombstone implies
            # that the transaction is complete.
            draft.records.clear()
            self.table.forget(transactional_id, draft.records)
        return draft.decision(None)

    # -- time and operators --------------------------------------------------------------------------------

    def abort_overdue(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Abort open transactions that have timed out: at most `count_max`, and none after TICK_PARTITION_COUNT
        partitions.

        The producer of such a transaction may continue: InitProducerId gives it the new epoch. While a long joint commit
        is being decided, nothing is aborted, because its children may be among these transactions.

        Returns:
            The decision. Its answer is True if more transactions may have timed out.
        """
        draft = Draft(now_ms)
        if self.joint.acceptance.is_pending:
            return draft.decision(answer=False)
        partition_count = 0
        for transactional_id, txn in self.table.overdue(now_ms, count_max):
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
            partition_count += len(txn.partitions)
            if partition_count >= TICK_PARTITION_COUNT:
                break
        return draft.decision(self.table.may_be_overdue(now_ms))

    def forget_expired(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Forget transactional ids and keys of joint commits that have expired, at most `count_max` of each.

        Returns:
            The decision. Its answer is True if more ids or keys may have expired.
        """
        draft = Draft(now_ms)
        for transactional_id in self.table.expired(now_ms, count_max):
            self.table.forget(transactional_id, draft.records)
        self.table.joints.forget_expired(now_ms, count_max, draft.records)
        return draft.decision(self.table.may_be_expired(now_ms))

    def force_abort(self, transactional_id: str, *, now_ms: int) -> Decision[EndAnswer]:
        """Abort the open transaction for an operator, even if it is prepared (KIP-939). Its producer is fenced."""
        txn = self.table.get(transactional_id)
        if txn is None:
            return Decision(EndAnswer(ErrorCode.transactional_id_not_found))
        if self.joint.acceptance.has(transactional_id):
            return Decision(EndAnswer(ErrorCode.concurrent_transactions))
        draft = Draft(now_ms)
        try:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
        except RefusedError as refused:
            return Decision(EndAnswer(ErrorCode(refused.code)))
        return draft.decision(EndAnswer(ErrorCode.none))

    # -- start ---------------------------------------------------------------------------------------------

    def loaded(self, now_ms: int) -> Decision[bool]:
        """Finish the replay of the commit log, after `table.replay` was called for all its records.

        Returns:
            The markers of all transactions that are decided and not complete, in order. The caller holds the markers of
            each partition back until the partition is open, and then passes them to `reconcile`. The answer says
            whether the records of the decision must be durable before any client writes to a partition. It is True if
            Apache Kafka wrote decisions that lack markers: the records then contain the end offsets of the partitions.
            Other records belong to joint commits (`JointCommits.loaded`).
        """
        draft = Draft(now_ms, self.table.loaded(self._coordinator_epoch, now_ms))
        must_be_durable = bool(draft.records)
        self.joint.loaded(draft)
        draft.markers.clear()
        for transactional_id in self.table.decided():
            order = self._ending.order(transactional_id, self.table.known(transactional_id))
            draft.markers.append(order._replace(repeated=True))
        return draft.decision(must_be_durable)

    def reconcile(
        self,
        target: TopicPartition,
        found: Iterable[OpenTransaction | tuple[int, int]],
        *,
        held: Sequence[MarkerOrder] = (),
        now_ms: int,
    ) -> Decision[None]:
        """Compare the open transactions of an opened partition with the commit log.

        A crash may have lost a marker of a transaction that the commit log has as complete, or the record of a
        transaction that the partition contains. A lost marker is written again. An open transaction that its producer
        can continue becomes the producer's current transaction. Any other open transaction is aborted.

        The decision's markers are all that must be written to `target`, in order. They repeat durable decisions, or end
        transactions whose end was acknowledged to no client, so they need not wait until the records are durable.

        Args:
            target: the partition.
            found: its open transactions.
            held: the marker orders that waited for the partition, in order. The decision's markers include all markers
                in `held` that the partition still needs. When these are written, all orders in `held` count as written
                to this partition.
            now_ms: broker time.
        """
        open_in_it = [OpenTransaction(*txn) for txn in found]
        return self._reconciliation.reconcile(target, open_in_it, held, now_ms=now_ms)
