"""Two ways to end a transaction of the native client: a joint commit at a stablelog broker, or EndTxn at Apache Kafka.

A joint commit commits the open transactions of several producers together or none; here it has only one transaction. A
key (a text) and a version (the number of the commit under its key) identify a joint commit. The broker stores which
version of a key is committed, so that a repeated commit gets the same response. At Apache Kafka, the client sends
EndTxn, and the coordinator stores only the last transaction of a transactional id. Therefore no other transaction uses
the id while it is unknown whether a commit was carried out, and a repeated EndTxn tells how this transaction has ended.
The coordinator may be unable to tell, for example because an operator has fenced the producer since. Then the client
reads the log: either a batch of the transaction is committed, or its producer is in the list of aborted transactions.
"""

from contextlib import suppress
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.client.core import joint
from stablelog.client.core.cluster import LATEST, Cluster
from stablelog.client.core.joint import JointCommit
from stablelog.client.core.keys import RETENTION_S, WriterKey
from stablelog.client.core.outcomes import UNDECIDED, UNHEARD, lost_outcome, unknown_outcome
from stablelog.client.core.partitions import fetch, list_offsets
from stablelog.client.core.positions import offsets_after_commit
from stablelog.client.core.producer import BatchProducer
from stablelog.client.core.record_buffer import AppendedPlace, RecordBuffer
from stablelog.client.core.steps import Steps
from stablelog.client.core.transaction_requests import end_request
from stablelog.client.responses import FENCED_CODES, RetriableError, UnknownTopicOrPartitionError, check
from stablelog.errors import OffsetOutOfRangeError, RefusedError
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import Fetched

# With these codes, the coordinator refuses to end a transaction that is not open. INVALID_TXN_STATE says that it has ended
# in the other way. The others may also mean that the producer was fenced after the end.
_ENDED: Final = FENCED_CODES | {ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping}
# With these codes, the coordinator has not carried out the request. Any other code, such as UNKNOWN_SERVER_ERROR, leaves
# open whether it has.
_NOT_CARRIED_OUT: Final = _ENDED | UNHEARD | {ErrorCode.transaction_abortable}
NO_SEQUENCE: Final = JointCommit(-1, already=False)  # Apache Kafka does not number commits


class TransactionEnding(Protocol):
    """Ends a transaction at a broker: it sends the requests for the commit and the abort, which depend on the kind of
    broker.

    Attributes:
        transactional_id: the transactional id of the transaction's producer.
        is_joint: whether the commit is a joint commit (stablelog's commit of several transactions together, here of
            one), and not EndTxn (of Apache Kafka).
        is_commit_unanswered: whether the broker may have carried out a request for the commit, and the client has got
            no response.
    """

    transactional_id: str
    is_joint: bool
    is_commit_unanswered: bool

    def commit(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[JointCommit]:
        """Request the commit, and return its result. The call may be repeated after any failure.

        Args:
            producer: the producer, of which the broker has acknowledged all batches.
            place: the partition and the offset at which one batch of the transaction was appended; None if no such
                offset is known.

        Raises:
            RefusedError: the broker has not carried out this request: the transaction is aborted, or the broker has
                refused the request before it looked at the transaction. In the second case, an earlier request may have
                been carried out.
            OutcomeUnknownError: it is unknown how the transaction has ended.
            UnavailableError: no response within the deadline.
        """

    def abort(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[bool]:
        """Request the abort of the transaction from the broker. Arguments and errors are those of `commit`.

        Returns:
            True if the transaction was committed before, so that nothing was aborted. False if it is aborted.
        """


class JointEnding:
    """Ends a transaction at a stablelog broker by a joint commit. A joint commit commits several transactions (its
    children) together; here it has this one child.

    Args:
        cluster: the brokers.
        key: a text and a version (the number of the commit under this text), which identify the joint commit.
        token: a text that no other commit has. The broker stores it as the digest of the joint commit and returns it,
            so that the client recognises a commit as its own.
    """

    is_joint = True

    def __init__(self, cluster: Cluster, key: WriterKey, token: str) -> None:
        self._cluster, self._key, self._token = cluster, key, token
        self.transactional_id = key.transactional_id
        self.is_commit_unanswered = False

    def commit(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[JointCommit]:
        """Request the commit. Arguments, result and errors are those of `TransactionEnding.commit`."""
        return (
            yield from joint.commit(
                self._cluster,
                self._key.name,
                self._key.version,
                self._children(producer),
                retention_ms=RETENTION_S * 1000,
                digest=self._token,
                group=self._key.group,
                on_unanswered=self._set_commit_unanswered,
            )
        )

    def abort(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[bool]:
        """Request the abort. Arguments, result and errors are those of `TransactionEnding.abort`: True means that the
        transaction was committed before.
        """
        return (
            yield from joint.abort(
                self._cluster,
                self._key.name,
                self._key.version,
                self._children(producer),
                group=self._key.group,
            )
        )

    def _set_commit_unanswered(self) -> None:
        self.is_commit_unanswered = True

    def _children(self, producer: BatchProducer) -> list[joint.ChildId]:
        return [producer.identity]


class KafkaEnding:
    """Ends a transaction by EndTxn, at a broker that has no joint commits (commits of several transactions together),
    such as Apache Kafka.

    Args:
        cluster: the brokers.
        transactional_id: no other transaction may use this id until the outcome of this one is known.
    """

    is_joint = False

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self.is_commit_unanswered = False

    def commit(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[JointCommit]:
        """Request the commit. Arguments, result and errors are those of `TransactionEnding.commit`."""
        try:
            yield from self._request_end(producer, commit=True)
        except RefusedError as refused:
            if not self.is_commit_unanswered or refused.code is ErrorCode.invalid_txn_state:
                raise  # the transaction is not committed
            if refused.code not in _ENDED:
                raise unknown_outcome(UNDECIDED, refused) from refused
            if not (yield from self._is_committed(producer, place, refused)):
                raise
        return NO_SEQUENCE

    def abort(self, producer: BatchProducer, place: AppendedPlace | None) -> Steps[bool]:
        """Request the abort. Arguments, result and errors are those of `TransactionEnding.abort`: True means that the
        transaction was committed before.
        """
        try:
            yield from self._request_end(producer, commit=False)
        except RefusedError as refused:
            if refused.code not in _ENDED or not self.is_commit_unanswered:
                raise
            try:  # the transaction is not open any more, so that this only asks how it has ended
                yield from self.commit(producer, place)
            except RefusedError as ended:
                if ended.code not in _ENDED:
                    raise
            else:
                return True
        return False

    def _is_committed(
        self, producer: BatchProducer, place: AppendedPlace | None, ended: RefusedError
    ) -> Steps[bool]:
        try:
            return (yield from is_committed(self._cluster, producer, place, ended))
        except UnknownTopicOrPartitionError as missing:
            raise lost_outcome(
                f"the broker no longer knows the outcome of the transaction ({ended}), and its records "
                f"cannot be looked up: {missing}"
            ) from missing
        except RefusedError as refused:  # it is about the read, not about the transaction
            raise unknown_outcome(UNDECIDED, refused) from refused

    def _request_end(self, producer: BatchProducer, *, commit: bool) -> Steps[None]:
        what = f"{'committing' if commit else 'aborting'} the transaction of {self.transactional_id!r}"
        request = end_request(producer.identity, is_tv2=producer.is_tv2, commit=commit)

        def attempt() -> Steps[None]:
            coordinator = yield from self._cluster.coordinator(self.transactional_id)
            is_answered = False
            try:
                answer = yield from coordinator.request_steps(request)
                is_answered = answer.error_code is ErrorCode.none or answer.error_code in _NOT_CARRIED_OUT
            finally:
                if commit and not is_answered:
                    self.is_commit_unanswered = True
            check(answer.error_code, what)

        yield from self._cluster.retrying(what, attempt)


def find_offsets(
    cluster: Cluster,
    ending: TransactionEnding,
    commit_sequence: int,
    buffer: RecordBuffer,
) -> Steps[None]:
    """Find the offsets of the records of a committed transaction, and store them in its buffer. Errors are those of
    `positions.offsets_after_commit`.

    Args:
        cluster: the brokers.
        ending: the object that has committed the transaction; its class says by which request.
        commit_sequence: the commit sequence of the transaction: the number of its commit in its transaction group, the
            topics whose commits have one order.
        buffer: the records of the transaction.
    """
    written = [records for records in buffer.partitions.values() if records.sent_count]
    sent = [records.sent_batches(buffer.base_offsets) for records in written]
    if ending.is_joint:
        found = yield from offsets_after_commit(cluster, commit_sequence, sent)
    else:
        found = [one.as_appended() for one in sent]
    for records, offsets in zip(written, found, strict=True):
        records.offsets = offsets


def choose_ending(cluster: Cluster, key: WriterKey, token: str) -> Steps[JointEnding | KafkaEnding]:
    """Choose by which requests a transaction is ended at this broker, and return the object that sends them: a joint
    commit (a commit of several producers' transactions, here of one) if the broker supports that, otherwise EndTxn.

    Args:
        cluster: the brokers.
        key: a text and a version (the number of the commit under this text), which identify the joint commit.
        token: a text that no other commit has. The broker stores it as the digest of the joint commit and returns it,
            so that the client recognises a commit as its own.

    Raises:
        RefusedError: the key belongs to a named transaction group (topics whose commits have one order), and the broker
            has no such groups.
        UnavailableError: no broker responds.
    """
    connection = yield from cluster.retrying("asking the broker for its APIs", cluster.any_connection)
    if connection.supports_api(ApiKey.COMMIT_JOINT):
        return JointEnding(cluster, key, token)
    if key.group:
        raise RefusedError(
            ErrorCode.unsupported_version,
            f"the broker at {cluster.bootstrap} has no transaction group {key.group!r}; only a stablelog "
            "broker has such groups (topics whose commits have one order). Begin the transaction in the "
            "default group",
        )
    return KafkaEnding(cluster, f"{connection.client_id}-{key.name}")


def is_committed(
    cluster: Cluster, producer: BatchProducer, place: AppendedPlace | None, refused: RefusedError
) -> Steps[bool]:
    """Look up in the log whether a transaction that has ended was committed. The client does this when the coordinator
    does not know the outcome any more. Return False if the transaction was aborted.

    Args:
        cluster: the brokers.
        producer: the producer of the transaction.
        place: the partition and the offset at which one batch of the transaction was appended; None if no such offset
            is known.
        refused: the error by which the coordinator said that it does not know the outcome. It becomes part of the
            message if the log does not show the outcome, either.

    Raises:
        OutcomeUnknownError: the batch is not in the log any more, or its place is not known.
        RefusedError: the user may not read the partition.
        UnavailableError: no response within the deadline.
    """
    if place is None:
        raise lost_outcome(
            f"the broker no longer knows the outcome of the transaction: {refused}"
        ) from refused
    target, offset = place

    def attempt() -> Steps[None]:
        end = yield from list_offsets(cluster, {target: LATEST}, "read_committed")
        if end[target].offset <= offset:
            raise RetriableError(f"{target[0]}-{target[1]} has an open transaction at offset {offset}")

    yield from cluster.retrying("waiting for the end of the transaction", attempt)
    fetched: Fetched | None = None
    with suppress(OffsetOutOfRangeError):
        fetched = yield from fetch(cluster, *target, offset, 1, "read_committed", wait_ms=0)
    headers = () if fetched is None else (header for _, header in headers_in(fetched.records))
    header = next(iter(headers), None)
    writer = (producer.producer_id, producer.producer_epoch)
    if header is None or fetched is None or (header.producer_id, header.producer_epoch) != writer:
        raise lost_outcome(
            f"the broker no longer knows the outcome of the transaction ({refused}), and the transaction's "
            f"records in {target[0]}-{target[1]} are removed"
        ) from refused
    return all(id_ != producer.producer_id or first > offset for id_, first in fetched.aborted)
