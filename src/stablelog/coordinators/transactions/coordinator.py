"""Transaction coordinator of one transaction group (topics with one order of commits): decides about requests.

Each method takes an event, with the time as an argument, and returns a decision (`transactions.answers`). The
coordinator itself reads and writes no log. Its caller has to follow these rules:

- The caller appends the records of each decision to the commit log as one batch, in the order of the decisions.
- The coordinator's state changes at once. So every effect (marker, response) waits until all records that the commit
  log had at the time of the decision are durable, even if the decision has no records. Only the answer to
  `add_partitions` may be sent earlier, if the acknowledgement of the first batches in these partitions waits instead.
- The caller writes the markers of each partition in the order of the decisions. When the marker of a marker order is
  written to all its partitions, the caller calls `markers_done`. The markers need not be durable then: see `reconcile`.
- At a start the caller calls `table.replay` for each record, and then `finish_replay` once. It holds back the markers that
  `finish_replay` returns. When a partition has been opened, the caller calls `reconcile` with the markers for that partition,
  before anything else writes to it.

`transactions.states` defines which event is valid in which state. `transactions.records` defines the bytes of the
records. `transactions.table` holds the state. Each request has the producer's id and epoch; a request with wrong ones
is refused. A refused request changes nothing.

Words: a transaction is *abort-only* if the broker refused it a partition: its producer can only abort it. A decision
is *repeated* if it was made before the broker's last start. To *adopt* a transaction that is open in a partition is to
treat it as the current transaction of its producer, although a crash has lost the record that added the partition.

Source: KIP-98, KIP-360, KIP-664, KIP-890, KIP-939; docs/decisions/0003-transactions.md.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision, Draft, EndAnswer
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.end_requests import event_of_end_request, is_first_since_start
from stablelog.coordinators.transactions.ending import (
    EndOffsets,
    TransactionEnder,
    completed_state,
    ends_unknown,
)
from stablelog.coordinators.transactions.initialization import Initialization
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partitions import Reconciliation, with_partitions
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.refusals import (
    TXN_KNOWS_FENCED,
    code_for_produce,
    code_for_version,
    code_without_fenced,
    tv1_refusal,
)
from stablelog.coordinators.transactions.requester import Requester
from stablelog.coordinators.transactions.spare_ids import Barrier, durability_unknown
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import (
    NO_SEQUENCE,
    TV1,
    TV2,
    ProducerIdAndEpoch,
)
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition

END_TXN_TV2: Final = 5  # From this version of EndTxn on, the client uses TV2 (transaction version 2).
# The maximum number of transactions that one `abort_overdue` aborts, and of ids that one `forget_expired` forgets.
TICK_COUNT_MAX: Final = 100
# The number of partitions of aborted transactions after which one `abort_overdue` aborts no further transaction.
TICK_PARTITION_COUNT: Final = 1_000

_AGAIN: Final = (TransactionEvent.COMMIT_AGAIN, TransactionEvent.ABORT_AGAIN)


class TransactionCoordinator:
    """Coordinator of the transactions of one transaction group (topics and producers with one order of commits).

    Args:
        config: the settings.
        group: the name of the transaction group; empty for the default group.
        coordinator_epoch: the broker's leader epoch, which grows with each start of the broker. Markers contain it.
        producer_ids: hands out producer ids. The transaction groups of one broker share the space of producer ids.
        end_offsets: returns the present end offsets of partitions: 0 for a partition that the broker has not opened
            since its start, OFFSET_UNKNOWN for a partition that it does not know. After a crash these offsets
            distinguish a TV1 transaction from the producer's next one.
        marker_barrier: returns a marker barrier: a function that tells whether all markers that were written before the
            call of `marker_barrier` are durable. The result is True, False (not yet) or None (never). A producer id is
            used again only after True, and without this argument never.

    Attributes:
        table: the state of the transaction group in memory, with its transactional ids.
        joint: the joint commits of the group, each of which commits the transactions of several producers together.
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
        self._ending = TransactionEnder(self.table, group, coordinator_epoch, end_offsets)
        self.joint = JointCommits(self.table, self._ending, coordinator_epoch)
        self.producers = Initialization(config, self.table, self._ending, self.joint)
        self._requester = Requester(self.table, self.joint.checks)
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
        """Add partitions to the producer's transaction: all of them or none. The first partition begins the
        transaction.

        With transaction version 1, AddPartitionsToTxn and AddOffsetsToTxn call this method. With version 2, the broker
        calls it for the first batch of a transaction in a partition.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions; the offsets log is a partition like any other.
            api_version: version of AddPartitionsToTxn or AddOffsetsToTxn; ignored with transaction version 2.
            transaction_version: the transaction version: 1 (TV1) or 2 (TV2).
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A decision whose answer has the error code of each partition.
        """
        wanted = frozenset(partitions)
        draft = Draft(now_ms)
        code = ErrorCode.none
        try:
            txn = self._requester.require_producer(
                transactional_id, ProducerIdAndEpoch(producer_id, producer_epoch)
            )
            if self._config.strict and transaction_version < TV2:
                raise tv1_refusal()
            if self.table.is_abort_only(transactional_id, txn) and txn.state is TransactionState.ONGOING:
                self._ending.end(
                    transactional_id,
                    txn,
                    TransactionEvent.ABORT,
                    draft,
                    raise_epoch=txn.transaction_version >= TV2,
                    owner_may_ask=True,
                )
                code = ErrorCode.concurrent_transactions
            elif wanted:
                value = with_partitions(transactional_id, txn, wanted, transaction_version, now_ms)
                if value is not txn:
                    self.table.put(transactional_id, value, draft.records)
            self.table.abort_only.pop(transactional_id, None)
        except RefusedError as refused:
            code = code_for_version(ErrorCode(refused.code), api_version, TXN_KNOWS_FENCED)
            if transaction_version >= TV2:
                # The error code is for a response to Produce or TxnOffsetCommit, which cannot contain PRODUCER_FENCED.
                code = code_without_fenced(code)
        return draft.decision(dict.fromkeys(wanted, code))

    def mark_abort_only(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Mark the producer's transaction as abort-only, because the broker refused to add a partition to it. The
        producer can then only abort the transaction.

        Without this mark, two clients with transaction version 1 would handle the refusal wrongly. librdkafka sends an
        abort even if no transaction has begun at the coordinator. This abort looks like one of the previous
        transaction, and its refusal would end the producer; with the mark, `end` accepts it. aiokafka sends no abort
        for the records that it has written to other partitions, and would commit them with its next transaction; with
        the mark, `add_partitions` aborts them when that transaction begins.
        """
        txn = self.table.get(transactional_id)
        if txn is not None and txn.client == (producer_id, producer_epoch):
            self.table.abort_only[transactional_id] = txn.client

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        produce_version: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Return for each partition whether it is in the producer's open transaction (KIP-890), and change nothing.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            partitions: the partitions.
            produce_version: the version of the Produce request whose response will have the codes; None for
                AddPartitionsToTxn.

        Returns:
            By partition, `ErrorCode.none` or the reason why the partition is not in the transaction.
        """
        wanted = list(partitions)
        try:
            txn = self._requester.require_producer(
                transactional_id, ProducerIdAndEpoch(producer_id, producer_epoch)
            )
            next_state(txn.state, TransactionEvent.ADD)
        except RefusedError as refused:
            return dict.fromkeys(wanted, code_for_produce(ErrorCode(refused.code), produce_version))
        part_of = txn.partitions if txn.state is TransactionState.ONGOING and not txn.is_kept else frozenset()
        missing = code_for_produce(ErrorCode.transaction_abortable, produce_version)
        return {partition: ErrorCode.none if partition in part_of else missing for partition in wanted}

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
        """Commit or abort the producer's transaction (EndTxn). A repeated request gets the same answer, even after a
        restart.

        With TV2 (EndTxn v5) every transaction has its own producer epoch, and the answer contains the epoch of the next
        transaction. A delayed request therefore has an old epoch, and is refused.

        Args:
            transactional_id: the transactional id.
            producer_id: producer id of the request.
            producer_epoch: producer epoch of the request.
            commit: whether the request commits or aborts.
            api_version: version of EndTxn.
            open_only: whether only a request that ends an open transaction may add records to the commit log. Any other
                request that would add one gets COORDINATOR_LOAD_IN_PROGRESS, and changes nothing.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A decision. A commit gets the answer COORDINATOR_LOAD_IN_PROGRESS after a start, until the number of the
            next commit is known (`table.sequences.are_known`).
        """
        version = TV2 if api_version >= END_TXN_TV2 else TV1
        shown = ProducerIdAndEpoch(producer_id, producer_epoch)
        try:
            if self._config.strict and version < TV2:
                raise tv1_refusal()
            own_epoch = self.joint.check_end(transactional_id, commit=commit) or version >= TV2
            txn = self._requester.require_transaction(transactional_id)
            event = event_of_end_request(
                self.table, transactional_id, txn, shown, commit=commit, version=version
            )
            state = next_state(txn.state, event)
            settles = event in _AGAIN and is_first_since_start(txn, version, self._coordinator_epoch)
            if open_only and txn.state is not TransactionState.ONGOING and (event not in _AGAIN or settles):
                raise RefusedError(
                    ErrorCode.coordinator_load_in_progress, f"{transactional_id} has no open transaction"
                )
            if event is TransactionEvent.COMMIT:
                self.table.sequences.check_commit_allowed()
        except RefusedError as refused:
            return Decision(
                EndAnswer(code_for_version(ErrorCode(refused.code), api_version, TXN_KNOWS_FENCED))
            )
        assert state is not None
        self.table.abort_only.pop(transactional_id, None)
        draft = Draft(now_ms)
        if event is TransactionEvent.ABORT_NOTHING and version < TV2:
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
        state = next_state(txn.state, TransactionEvent.MARKED)
        assert state is not None
        value = completed_state(txn, state, now_ms)
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
        """Abort open transactions that have timed out.

        At most `count_max` transactions are aborted, and no further one after TICK_PARTITION_COUNT partitions. The
        producers of the aborted transactions may continue: InitProducerId returns the new epoch to them. While a joint
        commit of many transactions is being decided, nothing is aborted, because its transactions may be among those
        that have timed out.

        Returns:
            A decision whose answer is True if more transactions may have timed out.
        """
        draft = Draft(now_ms)
        if self.joint.accepted_children.is_pending:
            return draft.decision(answer=False)
        partition_count = 0
        for transactional_id, txn in self.table.overdue(now_ms, count_max):
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
            partition_count += len(txn.partitions)
            if partition_count >= TICK_PARTITION_COUNT:
                break
        return draft.decision(self.table.may_be_overdue(now_ms))

    def forget_expired(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Forget expired transactional ids, and expired keys of joint commits, at most `count_max` of each.

        Returns:
            A decision whose answer is True if more ids or keys may have expired.
        """
        draft = Draft(now_ms)
        for transactional_id in self.table.expired(now_ms, count_max):
            self.table.forget(transactional_id, draft.records)
        self.table.joints.forget_expired(now_ms, count_max, draft.records)
        return draft.decision(self.table.may_be_expired(now_ms))

    def force_abort(self, transactional_id: str, *, now_ms: int) -> Decision[EndAnswer]:
        """Abort the open transaction of an id on the request of an operator, and fence its producer. This also aborts
        a prepared transaction (KIP-939).

        Returns:
            A decision whose answer has the error code; `ErrorCode.none` if the transaction is aborted.
        """
        txn = self.table.get(transactional_id)
        if txn is None:
            return Decision(EndAnswer(ErrorCode.transactional_id_not_found))
        if self.joint.accepted_children.contains(transactional_id):
            return Decision(EndAnswer(ErrorCode.concurrent_transactions))
        draft = Draft(now_ms)
        try:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=True)
        except RefusedError as refused:
            return Decision(EndAnswer(ErrorCode(refused.code)))
        return draft.decision(EndAnswer(ErrorCode.none))

    # -- start ---------------------------------------------------------------------------------------------

    def finish_replay(self, now_ms: int) -> Decision[bool]:
        """Finish the replay of the commit log, after `table.replay` was called for all its records.

        Returns:
            A decision. Its markers are those of all transactions that are decided and not complete, in the order of the
            decisions. The caller holds the markers of each partition back until the partition is open, and then passes
            them to `reconcile`. Its answer says whether the records of the decision must be durable before any client
            writes to a partition. The answer is True if Apache Kafka wrote decisions that lack markers: the records
            then contain the end offsets of the partitions. Other records belong to joint commits
            (`JointCommits.finish_replay`).
        """
        draft = Draft(now_ms, self.table.finish_replay(self._coordinator_epoch, now_ms))
        must_be_durable = bool(draft.records)
        self.joint.finish_replay(draft)
        draft.markers.clear()
        for transactional_id in self.table.decided_ids():
            order = self._ending.marker_order(transactional_id, self.table.require_state(transactional_id))
            draft.markers.append(order._replace(repeated=True))
        return draft.decision(must_be_durable)

    def reconcile(
        self,
        target: TopicPartition,
        found: Iterable[TransactionInPartition | tuple[int, int]],
        *,
        held: Sequence[MarkerOrder] = (),
        now_ms: int,
    ) -> Decision[None]:
        """Compare the open transactions of a partition that the broker has just opened with the commit log.

        A crash may have lost a marker of a transaction that the commit log has as complete, or the record of a
        transaction that the partition contains. A lost marker is written again. An open transaction that its producer
        can continue becomes the producer's current transaction. Any other open transaction is aborted.

        The decision's markers are all that must be written to `target`, in the order in which they are written. They
        repeat durable decisions, or end transactions whose end was acknowledged to no client, so they need not wait
        until the records are durable.

        Args:
            target: the partition.
            found: its open transactions.
            held: the marker orders (each orders one marker) that waited until the partition was open, oldest first. The
                decision's markers include all markers in `held` that the partition still needs. When these are written,
                all orders in `held` count as written to this partition.
            now_ms: broker time, which never goes back, in ms.
        """
        open_in_it = [TransactionInPartition(*txn) for txn in found]
        return self._reconciliation.reconcile(target, open_in_it, held, now_ms=now_ms)
