"""Transaction coordinator of one transaction group: decides about requests, timeouts and crashes.

Each method takes an event, with the time as an argument, and returns a decision (`transactions.decisions`). Nothing is
read or written here. The caller keeps these rules:

- It appends the records of each decision to the commit log as one batch, in the order of the decisions.
- The coordinator's state changes at once. So every effect (marker, response) waits until the commit log is durable up to
  its end at the time of the decision, even if the decision has no records. Only the answer to `add_partitions` may be
  sent earlier, if the acknowledgement of the batches that are then written waits.
- It writes the markers of each partition in the order of the decisions. When an order is written to all its partitions,
  it calls `markers_done`. The markers need not be durable then: see `reconcile`.
- At a start it calls `table.replay` for each record, then `loaded` once, and holds the markers back for each partition.
  When a partition has been opened, it calls `reconcile` with those markers, before anything else writes to it.

`transactions.states` defines which event is valid in which state, `transactions.records` the bytes of the records, and
`transactions.table` the state. Each request has the producer's id and epoch; a request with wrong ones is refused. A
refused request changes nothing.

Words: a transaction is *turned away* if the broker refused it a partition; its producer can only abort it. A decision is
*repeated* if it was made before the last start. To *adopt* an open transaction is to take it as its producer's current
one, although the record of its partition was lost.

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
from stablelog.errors import Refused
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of

END_TXN_TV2: Final = 5  # EndTxn uses TV2 from this version on.
TICK_COUNT_MAX: Final = 100  # Transactions that one call aborts; ids that one call forgets.

_AGAIN: Final = (Event.COMMIT_AGAIN, Event.ABORT_AGAIN)


class TransactionCoordinator:
    """Coordinator of the transactions of one group.

    Args:
        config: the settings.
        group: name of the transaction group; empty for the default group.
        coordinator_epoch: the broker's leader epoch, which all partitions have from this start on. Markers carry it. It
            must rise with every start.
        producer_ids: hands out producer ids, which the groups of one broker share.
        end_offsets: returns the end offsets of partitions now; 0 for a partition that was not opened since the start,
            OFFSET_UNKNOWN where it is unknown. After a crash they tell a TV1 transaction from the producer's next one.
        marker_barrier: makes a function that tells whether all markers written until now are durable: True, False (not
            yet) or None (never). The default is None, so that no producer id is reused.

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
        """Add partitions to the transaction, which begins with the first one. All are added, or none.

        With TV1, AddPartitionsToTxn and AddOffsetsToTxn call it. With TV2 the broker calls it for the first batch of a
        transaction in a partition.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions; the offsets log is a partition like any other.
            api_version: version of AddPartitionsToTxn or AddOffsetsToTxn; ignored with TV2.
            transaction_version: the transaction version.
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
        except Refused as refused:
            code = for_version(refused.code, api_version, TXN_KNOWS_FENCED)
            if transaction_version >= TV2:
                code = without_fenced(code)  # The code goes into a response to Produce or TxnOffsetCommit.
        return draft.decision(dict.fromkeys(wanted, code))

    def turn_away(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Note that the broker refused the producer's transaction a partition: it can only abort.

        Without this note, clients with TV1 would handle the refusal wrongly. librdkafka also aborts a transaction that
        has not begun here. That looks like an abort of the transaction before, and its refusal would end the producer.
        aiokafka does not abort what it had written to other partitions, and would commit it with its next transaction.
        So `end` accepts the abort, and `add_partitions` aborts what was left when the producer begins its next
        transaction.
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
        """Verify that partitions are in the producer's open transaction (KIP-890). Changes nothing.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions.
            produce_version: version of Produce, whose response gets the codes; None for AddPartitionsToTxn.
        """
        wanted = list(partitions)
        try:
            txn = self._of_producer(transactional_id, Identity(producer_id, producer_epoch))
            next_state(txn.state, Event.ADD)
        except Refused as refused:
            return dict.fromkeys(wanted, for_produce(refused.code, produce_version))
        part_of = txn.partitions if txn.state is State.ONGOING and not txn.is_kept else frozenset()
        missing = for_produce(ErrorCode.transaction_abortable, produce_version)
        return {partition: ErrorCode.none if partition in part_of else missing for partition in wanted}

    def _of_producer(self, transactional_id: str, shown: Identity) -> Transaction:
        """Return the state of the id, for the producer that holds it.

        Raises:
            Refused: the id is unknown, or another producer holds it.
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
            raise Refused(ErrorCode.invalid_request, "the transactional id is missing")
        self.joint.check_open(transactional_id)
        txn = self.table.get(transactional_id)
        if txn is None:
            raise Refused(ErrorCode.invalid_producer_id_mapping, f"no producer has the id {transactional_id}")
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
        """Commit or abort for the producer. A repeated request, even after a restart, gets the same answer.

        With TV2 (EndTxn v5) every transaction has its own epoch. The answer has the epoch of the next transaction, and
        a delayed request is refused then.

        With `open_only`, only the end of an open transaction adds records. Any other request that would add one is
        answered COORDINATOR_LOAD_IN_PROGRESS, and changes nothing. So is a commit while `are_sequences_known` is False.
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
                raise Refused(
                    ErrorCode.coordinator_load_in_progress, f"{transactional_id} has no open transaction"
                )
            if event is Event.COMMIT:
                self.table.check_sequences()
        except Refused as refused:
            return Decision(EndAnswer(for_version(refused.code, api_version, TXN_KNOWS_FENCED)))
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
            # What a crash may have left in partitions that are not open yet cannot be part of what the producer does
            # from now on.
            settled = txn._replace(settled_epoch=self._coordinator_epoch, unknown_tags=())
            self.table.put(transactional_id, settled, draft.records)
        return draft.decision(EndAnswer(ErrorCode.none, *(txn.client if version >= TV2 else ())))

    def _is_first_since_start(self, txn: Transaction, version: int) -> bool:
        """Whether a repeated request for this end must be recorded: it is the first one since the start."""
        return version < TV2 and txn.state.is_complete and txn.settled_epoch < self._coordinator_epoch

    def _end_event(
        self, transactional_id: str, txn: Transaction, shown: Identity, *, commit: bool, version: int
    ) -> Event:
        """Return the event of a request: a new end or a repeated one. With TV2 its epoch tells.

        Raises:
            Refused: the producer does not hold the id.
        """
        ended = txn.state.is_decided or txn.state.is_complete
        again = Event.COMMIT_AGAIN if commit else Event.ABORT_AGAIN
        if shown == txn.client:
            if self.table.is_repeated(transactional_id) and version < TV2:
                # A crash may have lost the record that began the producer's next transaction. Which of the two the
                # request means is known when the partitions are open.
                raise Refused(
                    ErrorCode.concurrent_transactions,
                    f"the last transaction of {transactional_id} is being completed",
                )
            if self.table.is_turned_away(transactional_id, txn) and (
                commit or txn.state is not State.ONGOING
            ):
                if not commit:
                    return Event.ABORT_NOTHING
                raise turned_away(
                    transactional_id
                )  # Even if it has not begun: it is not the transaction before.
            if ended and version < TV2:
                return again  # A new transaction would have begun with a partition.
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
        """Complete a transaction: the markers of its order are written to all partitions.

        A call that is late or repeated changes nothing.
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
            draft.records.clear()  # The tombstone implies that the transaction is complete.
            self.table.forget(transactional_id, draft.records)
        return draft.decision(None)

    # -- time and operators --------------------------------------------------------------------------------

    def abort_overdue(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Abort open transactions that have timed out, at most `count_max`.

        The producer of such a transaction may continue: it gets its new epoch when it asks.

        Returns:
            The answer is whether there may be more.
        """
        draft = Draft(now_ms)
        for transactional_id, txn in self.table.overdue(now_ms, count_max):
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
        return draft.decision(self.table.may_be_overdue(now_ms))

    def forget_expired(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Forget transactional ids and keys of joint commits that have expired, at most `count_max` of each.

        Returns:
            The answer is whether there may be more.
        """
        draft = Draft(now_ms)
        for transactional_id in self.table.expired(now_ms, count_max):
            self.table.forget(transactional_id, draft.records)
        self.table.joints.forget_expired(now_ms, count_max, draft.records)
        return draft.decision(self.table.may_be_expired(now_ms))

    def force_abort(self, transactional_id: str, *, now_ms: int) -> Decision[EndAnswer]:
        """Abort the open transaction for an operator, prepared or not. Its producer is fenced."""
        txn = self.table.get(transactional_id)
        if txn is None:
            return Decision(EndAnswer(ErrorCode.transactional_id_not_found))
        draft = Draft(now_ms)
        try:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
        except Refused as refused:
            return Decision(EndAnswer(refused.code))
        return draft.decision(EndAnswer(ErrorCode.none))

    # -- start ---------------------------------------------------------------------------------------------

    def loaded(self, now_ms: int) -> Decision[None]:
        """Finish the replay, when `table.replay` has taken in all records.

        Returns:
            The markers of all transactions that are decided and not complete, in order. The caller holds them back for
            each partition until it is open, and then passes them to `reconcile`. If there are records, they must be
            durable before any client writes to a partition: they say where the partitions of Kafka's pending decisions
            ended.
        """
        draft = Draft(now_ms, self.table.loaded(self._coordinator_epoch, now_ms))
        for transactional_id in self.table.decided():
            order = self._ending.order(transactional_id, self.table.known(transactional_id))
            draft.markers.append(order._replace(repeated=True))
        return draft.decision(None)

    def reconcile(
        self,
        target: TopicPartition,
        found: Iterable[OpenTransaction | tuple[int, int]],
        *,
        held: Sequence[MarkerOrder] = (),
        now_ms: int,
    ) -> Decision[None]:
        """Compare the open transactions of an opened partition with the commit log.

        A crash may have lost a marker whose transaction is complete here, or a record of a transaction that the
        partition contains. Lost markers are ordered again. A transaction that its producer can continue is adopted. Any
        other is aborted.

        The decision's markers are all that must be written to `target`, in order. They repeat durable decisions, or
        decide what was promised to no client, so they need not wait for the records.

        Args:
            target: the partition.
            found: its open transactions.
            held: orders for it that could not be written before, in order. The decision's markers contain those that
                are still needed. When they are written, all of `held` counts as written.
            now_ms: broker time.
        """
        open_in_it = [OpenTransaction(*txn) for txn in found]
        return self._reconciliation.reconcile(target, open_in_it, held, now_ms=now_ms)
