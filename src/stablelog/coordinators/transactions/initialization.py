"""InitProducerId: a producer gets its producer id and epoch, and becomes the only producer of its transactional id.

Each transaction group (topics and producers with one order of commits) has a commit log and transactional ids of its
own. Until a group has its commit log, the default group holds the transactional ids of the group. When the group
begins, it imports these ids.

Source: KIP-98, KIP-360, KIP-890, KIP-939.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision, Draft, InitAnswer
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.ending import TransactionEnder
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.refusals import (
    INIT_KNOWS_FENCED,
    code_for_version,
    fenced_refusal,
    tv1_refusal,
)
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState, next_state
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TV2,
    TWO_PHASE_TIMEOUT_MS,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from stablelog.errors import RefusedError
from stablelog.wire.extension.transaction_groups import TRANSACTIONAL_ID_SIZE_MAX

# A client that sends InitProducerId below this version supports only TV1 (transaction version 1).
TV2_VERSION: Final = 5


class Initialization:
    """Answers InitProducerId for one transaction group (topics and producers with one order of commits).

    Args:
        config: the coordinator's settings.
        table: the group's transactional ids.
        ending: makes the decisions that end transactions.
        joint: the joint commits, each of which commits the transactions of several producers together.
    """

    def __init__(
        self,
        config: TransactionConfig,
        table: TransactionTable,
        ending: TransactionEnder,
        joint: JointCommits,
    ) -> None:
        self._config = config
        self._table = table
        self._ending = ending
        self._joint = joint

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
        """Assign a producer id and epoch to a producer. An earlier producer with the same transactional id is fenced.

        Args:
            transactional_id: None for a producer that is only idempotent.
            timeout_ms: the maximum duration of the producer's transactions.
            producer_id: the producer id of a producer that continues after an error (KIP-360); -1 for a new producer.
            producer_epoch: the epoch of `producer_id`; -1 for a new producer.
            enable_two_phase: whether the producer's transactions never time out (KIP-939).
            keep_prepared: whether the producer keeps the open transaction of the transactional id, to commit or abort
                it (KIP-939). Otherwise the open transaction is aborted.
            api_version: the version of InitProducerId.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A decision whose answer has the producer id and epoch, or the error code of a refused request.
        """
        draft = Draft(now_ms)
        if transactional_id is None:
            return draft.decision(InitAnswer(ErrorCode.none, self._table.take_producer_id(draft.records), 0))
        asked = ProducerIdAndEpoch(producer_id, producer_epoch)
        try:
            self._check(transactional_id, asked, api_version)
            if (enable_two_phase or keep_prepared) and not self._config.two_phase_commit_enable:
                raise RefusedError(
                    ErrorCode.transactional_id_authorization_failed,
                    "two-phase commit is not enabled: set transaction.two.phase.commit.enable=true",
                )
            if not enable_two_phase and not 0 < timeout_ms <= self._config.transaction_timeout_ms_max:
                raise RefusedError(
                    ErrorCode.invalid_transaction_timeout,
                    f"a transaction timeout of {timeout_ms} ms is not valid; 1 to "
                    f"{self._config.transaction_timeout_ms_max} are allowed: change the transaction timeout "
                    "of the producer",
                )
            answer = self._init(
                transactional_id,
                TWO_PHASE_TIMEOUT_MS if enable_two_phase else min(timeout_ms, TWO_PHASE_TIMEOUT_MS - 1),
                asked if producer_id != NO_PRODUCER_ID else None,
                draft,
                keep=keep_prepared,
            )
        except RefusedError as refused:
            answer = InitAnswer(code_for_version(ErrorCode(refused.code), api_version, INIT_KNOWS_FENCED))
        return draft.decision(answer)

    def import_id(self, transactional_id: str, held: TransactionMetadata, *, now_ms: int) -> Decision[None]:
        """Add a transactional id to this transaction group. Until now, the default group (that of topics without a
        group) has held the id, because this group had no commit log. The producer of the id keeps its producer id and
        epoch.

        Args:
            transactional_id: the id, which this group does not have.
            held: the state of the id in the default group, without an open transaction.
            now_ms: broker time, which never goes back, in ms.
        """
        assert not held.state.is_open
        assert transactional_id not in self._table
        draft = Draft(now_ms)
        value = TransactionMetadata(
            *held.client,
            held.timeout_ms,
            TransactionState.EMPTY,
            update_ms=now_ms,
            previous_producer_id=held.previous_producer_id,
            last_producer_epoch=held.last_producer_epoch,
            transaction_version=held.transaction_version,
        )
        self._table.put(transactional_id, value, draft.records)
        return draft.decision(None)

    def forget_id(self, transactional_id: str, *, now_ms: int) -> Decision[None]:
        """Remove a transactional id from this group, the default group, because another transaction group (topics and
        producers with one commit log) has imported it: the one that the id names before its first slash.
        """
        draft = Draft(now_ms)
        self._table.forget(transactional_id, draft.records)
        return draft.decision(None)

    def _check(self, transactional_id: str, asked: ProducerIdAndEpoch, api_version: int) -> None:
        if not 0 < len(transactional_id) <= TRANSACTIONAL_ID_SIZE_MAX:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"the transactional id is empty, or has more than {TRANSACTIONAL_ID_SIZE_MAX} characters",
            )
        self._joint.checks.check_open(transactional_id)
        if (asked.producer_id == NO_PRODUCER_ID) != (asked.producer_epoch == NO_EPOCH) or min(asked) < -1:
            raise RefusedError(
                ErrorCode.invalid_request,
                "the request has a producer id without an epoch, or an epoch without a producer id",
            )
        if self._config.strict and api_version < TV2_VERSION:
            raise tv1_refusal()

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        asked: ProducerIdAndEpoch | None,
        draft: Draft,
        *,
        keep: bool,
    ) -> InitAnswer:
        txn = self._table.get(transactional_id)
        if txn is None:
            client = self._ending.first_identity(transactional_id, draft.records)
            txn = TransactionMetadata(*client, timeout_ms, TransactionState.EMPTY, update_ms=draft.now_ms)
            self._table.put(transactional_id, txn, draft.records)
            return InitAnswer(ErrorCode.none, *client)
        owner = asked is not None
        again = asked is not None and asked == txn.predecessor
        if asked is not None and asked != txn.client and not again:
            raise fenced_refusal(transactional_id, asked, txn)
        next_state(txn.state, TransactionEvent.KEEP if keep else TransactionEvent.INIT)
        if again:
            return _repeated_answer(transactional_id, txn, keep=keep)
        if txn.state is not TransactionState.ONGOING:
            return self._new_incarnation(transactional_id, txn, timeout_ms, draft, owner=owner)
        if keep:
            return self._keep_open(transactional_id, txn, timeout_ms, draft, owner=owner)
        self._ending.fence(transactional_id, txn, draft, owner_may_ask=owner)
        return InitAnswer(ErrorCode.concurrent_transactions)

    def _new_incarnation(
        self, transactional_id: str, txn: TransactionMetadata, timeout_ms: int, draft: Draft, *, owner: bool
    ) -> InitAnswer:
        """Begin a new incarnation of a producer whose transactional id has no open transaction: assign the next
        producer epoch to it.

        A new producer may have waited until the transaction of the previous producer was aborted. It then gets the
        epoch with which the previous producer was fenced, because no producer has used this epoch. (With TV1 the epoch
        is raised again, as in Kafka.)

        `owner` says whether the request names the current producer id and epoch, so that it comes from the current
        producer. Only this producer may repeat its request and get the same answer.
        """
        reserved = (
            txn.state is TransactionState.COMPLETE_ABORT
            and txn.transaction_version >= TV2
            and txn.last_producer_epoch == NO_EPOCH
        )
        client = (
            txn.client if reserved and not owner else self._ending.next_identity(txn.client, draft.records)
        )
        value = TransactionMetadata(
            *client,
            timeout_ms,
            TransactionState.EMPTY,
            update_ms=draft.now_ms,
            previous_producer_id=txn.client.producer_id,
            last_producer_epoch=txn.client.producer_epoch if owner else NO_EPOCH,
            transaction_version=txn.transaction_version,
        )
        self._table.put(transactional_id, value, draft.records)
        return InitAnswer(ErrorCode.none, *client)

    def _keep_open(
        self, transactional_id: str, txn: TransactionMetadata, timeout_ms: int, draft: Draft, *, owner: bool
    ) -> InitAnswer:
        """Let a new producer of a transactional id keep the id's open transaction (KIP-939).

        The new producer gets another producer id and epoch than the earlier one, and can end the transaction. The
        transaction's records and markers keep the producer id of the producer that has written the records.

        `owner` says whether the request names the current producer id and epoch, so that it comes from the current
        producer. Only this producer may repeat its request and get the same answer.
        """
        client = self._ending.next_identity(txn.client, draft.records)
        value = txn._replace(
            # A transaction that never times out (the longest timeout) keeps this property.
            timeout_ms=max(timeout_ms, txn.timeout_ms),
            update_ms=draft.now_ms,
            previous_producer_id=txn.client.producer_id,
            last_producer_epoch=txn.client.producer_epoch if owner else NO_EPOCH,
            next_producer_id=client.producer_id,
            next_producer_epoch=client.producer_epoch,
            unknown_tags=(),
        )
        self._table.put(transactional_id, value, draft.records)
        return InitAnswer(ErrorCode.none, *client, txn.producer_id, txn.producer_epoch)


def _repeated_answer(transactional_id: str, txn: TransactionMetadata, *, keep: bool) -> InitAnswer:
    """Return the answer to a repeated request: the response to the first one was lost, or the request has arrived
    twice. `keep` says whether the request asks to keep the open transaction (KIP-939).

    Raises:
        RefusedError: the producer has begun a transaction since, so this is a late copy of its earlier request.
    """
    if txn.state is not TransactionState.ONGOING:
        return InitAnswer(ErrorCode.none, *txn.client)
    if keep and txn.is_kept:
        return InitAnswer(ErrorCode.none, *txn.client, txn.producer_id, txn.producer_epoch)
    # The producer has begun a transaction since the previous answer, so it must have got that answer. This request is a
    # late copy of the earlier one: refuse it. (Kafka aborts the transaction here.)
    raise fenced_refusal(transactional_id, txn.predecessor, txn)
