"""What becomes of a transaction: the coordinator of one transaction group.

Events go in, with the time as an argument; decisions come out (`transactions.decisions`). Nothing is read or
written here. Rules that the caller keeps:

- The records of a decision go into the commit log in the order of the decisions, each decision's in one batch.
- State changes at once. So every effect (marker, answer) waits until the commit log is durable up to where it
  ended at the decision, also where the decision has no records itself. Only `add_partitions` may be answered
  before, if the acknowledgement of the batches that are then written waits.
- Markers are written in each partition in the order of the decisions. When an order is written everywhere,
  `markers_done` is reported. That need not wait until the markers are durable: see `reconcile`.
- On start: `replay` each record, then `loaded` once; its markers are held back for each partition. When a
  partition has been opened, `reconcile` it with what is held back for it, before anyone else writes to it.

Which event is legal in which state is in `transactions.states`, what is kept in which bytes in
`transactions.records`, and what is kept at all in `transactions.table`. A producer shows its id and epoch with each
request; who shows the wrong ones is refused. Whatever is refused leaves everything as it was.

Source: KIP-98, KIP-360, KIP-664, KIP-890, KIP-939; docs/decisions/0003-transactions.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.live_state import LiveState
from stablelog.coordinators.transactions.decisions import (
    REPAIR,
    Decision,
    Description,
    EndAnswer,
    InitAnswer,
    Listed,
    MarkerOrder,
    OpenTransaction,
    TransactionConfig,
)
from stablelog.coordinators.transactions.ending import (
    FIRST_DIALECT,
    SECOND_DIALECT,
    Ending,
    EndOffsets,
    completed,
    ends_unknown,
)
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.log_ends import LogEnd
from stablelog.coordinators.transactions.partitions import Comparison, with_partitions
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TWO_PHASE_TIMEOUT_MS,
    Identity,
    Record,
    Transaction,
)
from stablelog.coordinators.transactions.refusals import (
    INIT_KNOWS_FENCED,
    TXN_KNOWS_FENCED,
    dialect_refused,
    fenced,
    for_produce,
    for_version,
    mapping_lost,
    turned_away,
    without_fenced,
)
from stablelog.coordinators.transactions.spare_ids import Barrier, durability_unknown
from stablelog.coordinators.transactions.states import Event, State, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.errors import Refused
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of

__all__ = [
    "REPAIR",
    "Decision",
    "Description",
    "EndAnswer",
    "InitAnswer",
    "LogEnd",
    "MarkerOrder",
    "OpenTransaction",
    "Record",
    "TopicPartition",
    "TransactionConfig",
    "TransactionCoordinator",
]

END_TXN_SECOND_DIALECT: Final = 5  # EndTxn from this version on
INIT_SECOND_DIALECT: Final = 5  # InitProducerId below this version: surely the first dialect
TRANSACTIONAL_ID_SIZE_MAX: Final = 1024
TICK_COUNT_MAX: Final = 100  # overdue transactions that are aborted at once; ids that are forgotten at once

_AGAIN: Final = (Event.COMMIT_AGAIN, Event.ABORT_AGAIN)


class TransactionCoordinator:
    """The transactions of one group: who may write, what was decided, and in which order.

    Args:
        config: the settings.
        group: name of the transaction group; the default group has the empty name.
        coordinator_epoch: the broker's leader epoch, which all partitions have from this start on. It travels with
            the markers and has to rise with every start.
        producer_ids: where producer ids come from. Several groups of one broker share them.
        end_offsets: end offsets of partitions now, 0 if one has not been opened yet since the start, OFFSET_UNKNOWN if
            it is not known. By them a transaction of the first dialect is told from the producer's next one after a crash.
        marker_barrier: makes a function that says whether all markers written until now are durable: True, False (not
            yet) or None (never). By default None, so that no producer id is used again.
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
        self.config = config
        self.group = group
        self.coordinator_epoch = coordinator_epoch
        self._table = TransactionTable(
            group,
            config.transactional_id_expiration_ms,
            producer_ids if producer_ids is not None else ProducerIds(),
            marker_barrier,
        )
        self._ending = Ending(self._table, group, coordinator_epoch, end_offsets)
        self.joint = JointCommits(self._table, self._ending, coordinator_epoch)
        self._comparison = Comparison(self._table, self._ending)

    # -- producers -----------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        *,
        enable_two_phase: bool = False,
        keep_prepared: bool = False,
        api_version: int,
        now_ms: int,
    ) -> Decision[InitAnswer]:
        """A producer wants an id and epoch; with a transactional id, whoever had it before is fenced.

        Args:
            transactional_id: None for a producer that is idempotent only.
            timeout_ms: how long its transactions may be open.
            producer_id: what it has, if it goes on after an error (KIP-360); -1 if it is new.
            producer_epoch: likewise.
            enable_two_phase: its transactions are never timed out (KIP-939).
            keep_prepared: the open transaction is not aborted but taken over, to be decided.
            api_version: of InitProducerId.
            now_ms: broker time.
        """
        if transactional_id is None:
            records: list[Record] = []
            return Decision(InitAnswer(ErrorCode.none, self._table.take_producer_id(records), 0), records)
        asked = Identity(producer_id, producer_epoch)
        try:
            self._check_init(transactional_id, asked, api_version)
            if (enable_two_phase or keep_prepared) and not self.config.two_phase_commit_enable:
                raise Refused(
                    ErrorCode.transactional_id_authorization_failed,
                    "two-phase commit is off; transaction.two.phase.commit.enable turns it on",
                )
            if not enable_two_phase and not 0 < timeout_ms <= self.config.transaction_timeout_ms_max:
                raise Refused(
                    ErrorCode.invalid_transaction_timeout,
                    f"a transaction timeout of {timeout_ms} ms; 1 to {self.config.transaction_timeout_ms_max} are valid",
                )
            return self._init(
                transactional_id,
                TWO_PHASE_TIMEOUT_MS if enable_two_phase else min(timeout_ms, TWO_PHASE_TIMEOUT_MS - 1),
                asked if producer_id != NO_PRODUCER_ID else None,
                keep=keep_prepared,
                now_ms=now_ms,
            )
        except Refused as refused:
            return Decision(InitAnswer(for_version(refused.code, api_version, INIT_KNOWS_FENCED)))

    def _check_init(self, transactional_id: str, asked: Identity, api_version: int) -> None:
        if not 0 < len(transactional_id) <= TRANSACTIONAL_ID_SIZE_MAX:
            raise Refused(
                ErrorCode.invalid_request,
                f"an id has 1 to {TRANSACTIONAL_ID_SIZE_MAX} characters",
            )
        self.joint.check_open(transactional_id)
        if (asked.producer_id == NO_PRODUCER_ID) != (asked.producer_epoch == NO_EPOCH) or min(asked) < -1:
            raise Refused(ErrorCode.invalid_request, "producer id and epoch are given both or not at all")
        if self.config.strict and api_version < INIT_SECOND_DIALECT:
            raise dialect_refused()

    def _init(
        self, transactional_id: str, timeout_ms: int, asked: Identity | None, *, keep: bool, now_ms: int
    ) -> Decision[InitAnswer]:
        records: list[Record] = []
        txn = self._table.get(transactional_id)
        if txn is None:
            client = self._ending.first_identity(transactional_id, records)
            self._table.put(
                transactional_id, Transaction(*client, timeout_ms, State.EMPTY, update_ms=now_ms), records
            )
            return Decision(InitAnswer(ErrorCode.none, *client), records)
        again = asked is not None and asked == txn.predecessor
        if asked is not None and asked != txn.client and not again:
            raise fenced(transactional_id, asked, txn)
        next_state(txn.state, Event.KEEP if keep else Event.INIT)
        owner = asked is not None
        if again:
            return Decision(self._init_again(transactional_id, txn, keep=keep))
        if txn.state is not State.ONGOING:
            return self._new_incarnation(transactional_id, txn, timeout_ms, owner=owner, now_ms=now_ms)
        if keep:
            return self._keep_open(transactional_id, txn, timeout_ms, owner=owner, now_ms=now_ms)
        markers = self._ending.fence(transactional_id, txn, records, owner_may_ask=owner, now_ms=now_ms)
        return Decision(InitAnswer(ErrorCode.concurrent_transactions), records, markers)

    def _init_again(self, transactional_id: str, txn: Transaction, *, keep: bool) -> InitAnswer:
        """The answer was lost, or a late copy of the request has come: say what was said."""
        if txn.state is not State.ONGOING:
            return InitAnswer(ErrorCode.none, *txn.client)
        if keep and txn.is_kept:
            return InitAnswer(ErrorCode.none, *txn.client, txn.producer_id, txn.producer_epoch)
        # A transaction was begun since, with the answer. (Kafka aborts it.)
        raise fenced(transactional_id, txn.predecessor, txn)

    def _new_incarnation(
        self, transactional_id: str, txn: Transaction, timeout_ms: int, *, owner: bool, now_ms: int
    ) -> Decision[InitAnswer]:
        """A producer takes over an id without an open transaction.

        A successor that had to wait for the abort of its predecessor's transaction gets the epoch with which that
        one was fenced, and which nobody has had. (In the first dialect it is raised again, as in Kafka.)
        """
        records: list[Record] = []
        reserved = (
            txn.state is State.COMPLETE_ABORT
            and txn.transaction_version >= SECOND_DIALECT
            and txn.last_producer_epoch == NO_EPOCH
        )
        client = txn.client if reserved and not owner else self._ending.raised(txn.client, records)
        value = Transaction(
            *client,
            timeout_ms,
            State.EMPTY,
            update_ms=now_ms,
            previous_producer_id=txn.client.producer_id,
            last_producer_epoch=txn.client.producer_epoch if owner else NO_EPOCH,
            transaction_version=txn.transaction_version,
        )
        self._table.put(transactional_id, value, records)
        return Decision(InitAnswer(ErrorCode.none, *client), records)

    def _keep_open(
        self, transactional_id: str, txn: Transaction, timeout_ms: int, *, owner: bool, now_ms: int
    ) -> Decision[InitAnswer]:
        """A producer takes over an id with its open transaction, which keeps the identity of its records."""
        records: list[Record] = []
        client = self._ending.raised(txn.client, records)
        value = txn._replace(
            timeout_ms=max(timeout_ms, txn.timeout_ms),  # what may outlive its producer still may
            update_ms=now_ms,
            previous_producer_id=txn.client.producer_id,
            last_producer_epoch=txn.client.producer_epoch if owner else NO_EPOCH,
            next_producer_id=client.producer_id,
            next_producer_epoch=client.producer_epoch,
            unknown_tags=(),
        )
        self._table.put(transactional_id, value, records)
        return Decision(InitAnswer(ErrorCode.none, *client, txn.producer_id, txn.producer_epoch), records)

    # -- partitions ----------------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        api_version: int,
        transaction_version: int = FIRST_DIALECT,
        now_ms: int,
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        """Partitions become part of the transaction, which begins with the first. All are added, or none.

        In the first dialect AddPartitionsToTxn and AddOffsetsToTxn ask for it; in the second the broker itself,
        when it meets the first batch of a transaction.

        Args:
            transactional_id: whose transaction.
            producer_id: what the producer shows.
            producer_epoch: likewise.
            partitions: the partitions; the offsets log is one like any other.
            api_version: of AddPartitionsToTxn or AddOffsetsToTxn; in the second dialect it is not looked at.
            transaction_version: the dialect.
            now_ms: broker time.
        """
        wanted = frozenset(partitions)
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        code = ErrorCode.none
        try:
            txn = self._of_producer(transactional_id, Identity(producer_id, producer_epoch))
            if self.config.strict and transaction_version < SECOND_DIALECT:
                raise dialect_refused()
            if self._table.is_turned_away(transactional_id, txn) and txn.state is State.ONGOING:
                markers = self._ending.end(
                    transactional_id,
                    txn,
                    Event.ABORT,
                    records,
                    raise_epoch=txn.transaction_version >= SECOND_DIALECT,
                    owner_may_ask=True,
                    now_ms=now_ms,
                )
                code = ErrorCode.concurrent_transactions
            elif wanted:
                value = with_partitions(transactional_id, txn, wanted, transaction_version, now_ms)
                if value is not txn:
                    self._table.put(transactional_id, value, records)
            self._table.turned_away.pop(transactional_id, None)
        except Refused as refused:
            code = for_version(refused.code, api_version, TXN_KNOWS_FENCED)
            if transaction_version >= SECOND_DIALECT:
                code = without_fenced(code)  # it goes into an answer to Produce or TxnOffsetCommit
        return Decision(dict.fromkeys(wanted, code), records, markers)

    def turn_away(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """A partition was refused to the producer's transaction, before the coordinator was asked: it can only abort.

        What clients of the first dialect make of that would end badly. librdkafka aborts also a transaction that has not
        begun here; that looks like an abort of the one before, whose refusal ends the producer. aiokafka does not abort
        what it had written to other partitions, and would commit it with its next transaction. So the first is heeded
        (`end`), and whatever the producer begins next aborts what was left (`add_partitions`).
        """
        txn = self._table.get(transactional_id)
        if txn is not None and txn.client == (producer_id, producer_epoch):
            self._table.turned_away[transactional_id] = txn.client

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        produce_version: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the partitions are part of the producer's open transaction (KIP-890). Changes nothing.

        Args:
            transactional_id: whose transaction.
            producer_id: what the producer shows.
            producer_epoch: likewise.
            partitions: the partitions.
            produce_version: the version of Produce whose answer takes the codes; None for AddPartitionsToTxn.
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
        """The state of the id, for the producer that holds it.

        Raises:
            Refused: there is no such id, or another producer holds it.
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
        txn = self._table.get(transactional_id)
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
        """The producer commits or aborts. Asked again, after any restart, it gets the same answer.

        In the second dialect (v5) every transaction has its own epoch: the answer carries that of the next one,
        and a request that was delayed until then is refused.

        With `open_only`, only the end of an open transaction adds records. Whatever else would add one is answered
        COORDINATOR_LOAD_IN_PROGRESS, and changes nothing. So is a commit between `await_sequences` and `sequences_met`.
        """
        version = SECOND_DIALECT if api_version >= END_TXN_SECOND_DIALECT else FIRST_DIALECT
        shown = Identity(producer_id, producer_epoch)
        try:
            if self.config.strict and version < SECOND_DIALECT:
                raise dialect_refused()
            own_epoch = self.joint.check_end(transactional_id, commit=commit) or version >= SECOND_DIALECT
            txn = self._known(transactional_id)
            event = self._end_event(transactional_id, txn, shown, commit=commit, version=version)
            state = next_state(txn.state, event)
            settles = event in _AGAIN and self._is_first_since_start(txn, version)
            if open_only and txn.state is not State.ONGOING and (event not in _AGAIN or settles):
                raise Refused(
                    ErrorCode.coordinator_load_in_progress, f"{transactional_id} has no open transaction"
                )
            if event is Event.COMMIT:
                self._table.check_sequences()
        except Refused as refused:
            return Decision(EndAnswer(for_version(refused.code, api_version, TXN_KNOWS_FENCED)))
        assert state is not None
        self._table.turned_away.pop(transactional_id, None)
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        if event is Event.ABORT_NOTHING and version < SECOND_DIALECT:
            txn = txn._replace(
                state=state,
                update_ms=now_ms,
                start_ms=now_ms,
                commit_sequence=NO_SEQUENCE,
                settled_epoch=self.coordinator_epoch,
                unknown_tags=(),
            )
            self._table.put(transactional_id, txn, records)
        elif event not in _AGAIN:
            txn, markers = self._ending.decide(
                transactional_id,
                txn,
                state,
                records,
                version=version,
                raise_epoch=own_epoch,
                owner_may_ask=True,
                now_ms=now_ms,
            )
        elif settles:
            # What a crash may have left in partitions that are not open yet cannot be part of what the producer does
            # from now on.
            settled = txn._replace(settled_epoch=self.coordinator_epoch, unknown_tags=())
            self._table.put(transactional_id, settled, records)
        answer = EndAnswer(ErrorCode.none, *(txn.client if version >= SECOND_DIALECT else ()))
        return Decision(answer, records, markers)

    def _is_first_since_start(self, txn: Transaction, version: int) -> bool:
        """Whether a repeated request for this end has to be noted: it is the first one since the start."""
        return (
            version < SECOND_DIALECT and txn.state.is_complete and txn.settled_epoch < self.coordinator_epoch
        )

    def _end_event(
        self, transactional_id: str, txn: Transaction, shown: Identity, *, commit: bool, version: int
    ) -> Event:
        """Whether the request is new or was heeded before; in the second dialect the epoch says so.

        Raises:
            Refused: the producer does not hold the id.
        """
        ended = txn.state.is_decided or txn.state.is_complete
        again = Event.COMMIT_AGAIN if commit else Event.ABORT_AGAIN
        if shown == txn.client:
            if self._table.is_repeated(transactional_id) and version < SECOND_DIALECT:
                # The next transaction may have begun before a crash that took its record away: which of the two is
                # meant is known when the partitions are open.
                raise Refused(
                    ErrorCode.concurrent_transactions,
                    f"the last transaction of {transactional_id} is being completed",
                )
            if self._table.is_turned_away(transactional_id, txn) and (
                commit or txn.state is not State.ONGOING
            ):
                if not commit:
                    return Event.ABORT_NOTHING
                raise turned_away(transactional_id)  # also where nothing has begun: it is not the one before
            if ended and version < SECOND_DIALECT:
                return again  # a new transaction would have begun with a partition
            if commit:
                return Event.COMMIT
            begun = txn.state is State.ONGOING or version < SECOND_DIALECT
            return Event.ABORT if begun else Event.ABORT_NOTHING
        own_epochs = min(version, txn.transaction_version) >= SECOND_DIALECT or child_of(transactional_id)
        if own_epochs and ended and shown == txn.predecessor and shown.producer_epoch != NO_EPOCH:
            return again
        if shown.producer_id != txn.client.producer_id:
            raise mapping_lost(transactional_id, shown, txn)
        raise fenced(transactional_id, shown, txn)

    def markers_done(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, now_ms: int
    ) -> Decision[None]:
        """The markers of an order were written to all its partitions: the transaction is complete.

        A report of what is not so any more, or was reported before, changes nothing.
        """
        txn = self._table.get(transactional_id)
        if txn is None or not txn.state.is_decided:
            return Decision(None)
        if (txn.producer_id, txn.producer_epoch) != (producer_id, producer_epoch):
            return Decision(None)
        records: list[Record] = []
        state = next_state(txn.state, Event.MARKED)
        assert state is not None
        value = completed(txn, state, now_ms)
        self._table.put(transactional_id, value, records)
        adopted = self._comparison.take_adopted(transactional_id)
        if adopted:
            value = with_partitions(transactional_id, value, adopted, txn.transaction_version, now_ms)
            self._table.put(transactional_id, value, records)
        elif self._table.joints.is_over(transactional_id):
            records.clear()  # that it is forgotten says that it is complete
            self._table.forget(transactional_id, records)
        return Decision(None, records)

    # -- time and hands ------------------------------------------------------------------------------------

    def abort_overdue(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Abort open transactions whose time is up, at most `count_max`.

        The producer of a timed-out transaction may go on: it learns its new epoch when it asks.

        Returns:
            The answer says whether there may be more.
        """
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        for transactional_id, txn in self._table.overdue(now_ms, count_max):
            markers += self._ending.fence(transactional_id, txn, records, owner_may_ask=True, now_ms=now_ms)
        return Decision(self._table.may_be_overdue(now_ms), records, markers)

    def forget_expired(self, now_ms: int, count_max: int = TICK_COUNT_MAX) -> Decision[bool]:
        """Forget transactional ids and keys of joint commits that were not used for long, at most `count_max` of each.

        Returns:
            The answer says whether there may be more.
        """
        records: list[Record] = []
        for transactional_id in self._table.expired(now_ms, count_max):
            self._table.forget(transactional_id, records)
        self._table.joints.forget_expired(now_ms, count_max, records)
        return Decision(self._table.may_be_expired(now_ms), records)

    def force_abort(self, transactional_id: str, *, now_ms: int) -> Decision[EndAnswer]:
        """Abort the open transaction by hand, prepared or not. Its producer is fenced."""
        txn = self._table.get(transactional_id)
        if txn is None:
            return Decision(EndAnswer(ErrorCode.transactional_id_not_found))
        records: list[Record] = []
        try:
            markers = self._ending.fence(transactional_id, txn, records, owner_may_ask=True, now_ms=now_ms)
        except Refused as refused:
            return Decision(EndAnswer(refused.code))
        return Decision(EndAnswer(ErrorCode.none), records, markers)

    # -- looking -------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Description | None:
        """What is known of an id; None if nothing is."""
        return self._table.describe(transactional_id)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
        now_ms: int,
    ) -> tuple[Iterator[list[Listed]], list[str]]:
        """The ids that pass every filter, in slices, and the asked states that are none.

        Each slice is looked at when it is asked for; ids of which the coordinator learns meanwhile are not listed.

        Args:
            states: by Kafka's names of the states; empty for all.
            producer_ids: empty for all.
            duration_ms: only transactions that have been open for longer; negative for all.
            id_pattern: a regular expression for the whole id; None or empty for all.
            now_ms: broker time.

        Raises:
            Refused: the pattern is none, or could take very long.
        """
        return self._table.list_transactions(
            states=states,
            producer_ids=producer_ids,
            duration_ms=duration_ms,
            id_pattern=id_pattern,
            now_ms=now_ms,
        )

    @property
    def last_commit_sequence(self) -> int:
        """The number of the last commit that was decided; 0 before the first."""
        return self._table.last_sequence

    @property
    def resolved_commit_sequence(self) -> int:
        """The greatest number up to which every commit has all its markers; 0 before the first."""
        return self._table.resolved_sequence

    def unsettled(self) -> dict[TopicPartition, int]:
        """Partitions not `reconcile`d since the start, with the least commit that may lack its marker there; -1 none."""
        return self._table.history.partitions()

    @property
    def change_count(self) -> int:
        """Changes of the state so far, each of which is in a record of some decision."""
        return self._table.change_count

    @property
    def item_count(self) -> int:
        """Transactional ids and keys of joint commits that are known."""
        return len(self._table) + len(self._table.joints)

    def __len__(self) -> int:
        return len(self._table)

    # -- start and trimming --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a record of the commit log. Kinds that are not known are skipped.

        Raises:
            Corrupt: the record cannot be read.
        """
        self._table.replay(key, value)

    def loaded(self, now_ms: int) -> Decision[None]:
        """Finish the replay: all records were taken in.

        Args:
            now_ms: broker time.

        Returns:
            The markers of what is decided but not complete, in order. They are held back for each partition until
            it is open, and then go through `reconcile`. The records, if there are any, must be durable before any
            partition can be written: they say of Kafka's pending decisions where the partitions ended.
        """
        records = self._table.loaded(self.coordinator_epoch, now_ms)
        markers: list[MarkerOrder] = []
        for transactional_id in self._table.decided():
            txn = self._table.get(transactional_id)
            assert txn is not None
            markers.append(self._ending.order(transactional_id, txn)._replace(repeated=True))
        return Decision(None, records, markers)

    def reconcile(
        self,
        target: TopicPartition,
        found: Iterable[OpenTransaction | tuple[int, int]],
        *,
        held: Sequence[MarkerOrder] = (),
        now_ms: int,
    ) -> Decision[None]:
        """A partition has been opened: compare the transactions open in it with what is known of them.

        A crash may have taken back a marker whose transaction is complete here, or the news here of a transaction
        whose records are there. Lost markers are ordered again, with their outcome; a transaction that its
        producer can still go on with is adopted; any other is aborted.

        The decision's markers are all that is to be written to `target`, in order. They repeat what is durable or
        decide what no one was promised, so they need not wait for the records.

        Args:
            target: the partition.
            found: the transactions that are open in it.
            held: orders for it that could not be written before, in order. Those of them that are still needed
                are among the decision's markers; when these are written, all of `held` counts as written.
            now_ms: broker time.
        """
        open_in_it = [OpenTransaction(*txn) for txn in found]
        return self._comparison.reconcile(target, open_in_it, held, now_ms=now_ms)

    def await_sequences(self) -> None:
        """Decide no commit until `sequences_met`: partitions may have sequences that the commit log does not know."""
        self._table.are_sequences_known = False

    def sequences_met(self) -> None:
        """Decide commits again: `met_sequence` was called with the sequences that partitions have."""
        self._table.are_sequences_known = True

    def met_sequence(self, sequence: int) -> bool:
        """A partition has this commit sequence in a marker: the next commit gets a greater one.

        Returns:
            Whether the commit log did not know of it: it has lost its end, or is older than the partition.
        """
        return self._table.met_sequence(sequence)

    def knows(self, target: TopicPartition, producer_id: int) -> bool:
        """Whether an open transaction of this producer in the partition may be one of this group."""
        return self._table.owner(producer_id) is not None or self._table.history.knows(target, producer_id)

    def partitions_opened(self) -> None:
        """All partitions that can be opened have been: what only `reconcile` needs to be fast is dropped."""
        self._table.partitions_opened()

    def live_state(self) -> LiveState | None:
        """Records that hold the whole live state; None if they cannot be written in slices now.

        Once they are durable, and so are the markers of all that was decided before them, the commit log needs
        nothing that lies before them.
        """
        return self._table.live_state()

    def checkpoint(self) -> list[Record]:
        """The records of `live_state`, all made at once."""
        return self._table.checkpoint()
