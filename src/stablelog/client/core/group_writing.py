"""A transaction that also commits the offsets of a reader of a consumer group: both its records and the offsets are
committed, or neither.

Before the commit, the client writes the offsets into the transaction with the id and the epoch of the member
(TxnOffsetCommit). The coordinator of the group refuses them if the group has replaced the member (KIP-447). No other
member gets the offsets of these partitions until the transaction has ended.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v4 import request as v4
from kio.schema.txn_offset_commit.v5 import request as v5

from stablelog.batch.codec import Codec
from stablelog.client.core.admin.groups import remove_committed
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.coordinators import GROUP_COORDINATOR
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.core.keys import WriterKey
from stablelog.client.core.membership import NOT_A_MEMBER, GroupMember
from stablelog.client.core.outcomes import Committed, FailureT, Outcome, WritingState
from stablelog.client.core.producer import BatchProducer
from stablelog.client.core.steps import Result, Steps
from stablelog.client.core.writing import Writing
from stablelog.client.responses import RETRIABLE_CODES, RetriableError, refused_error
from stablelog.client.topics import by_topic
from stablelog.errors import TransactionAbortedError
from stablelog.types import TopicPartition

ADDING_OFFSETS: Final = "adding offsets to the transaction"


class GroupWriting(Writing):
    """A transaction that also commits the offsets of a reader of a consumer group.

    Args:
        reading: the object that has the state of the reader.
        cluster, key, timeout_s, now, on_end, release, codec: as the arguments of `Writing`, the class of a transaction
            that commits no offsets.
    """

    def __init__(
        self,
        reading: GroupReading,
        cluster: Cluster,
        *,
        key: WriterKey,
        timeout_s: float,
        now: float,
        on_end: Callable[[Outcome], None],
        release: Callable[[Writing], None],
        codec: Codec = Codec.NONE,
    ) -> None:
        super().__init__(
            cluster, key=key, timeout_s=timeout_s, now=now, on_end=on_end, release=release, codec=codec
        )
        self._reading = reading
        self._group_offsets: dict[TopicPartition, int] = {}

    def flush(self) -> Steps[None]:
        """Send all records and the offsets of the reader, and wait until the brokers have acknowledged them. Errors are
        those of `Writing.flush`.
        """
        yield from super().flush()
        yield from self._abort_on_error(self._add_offsets())

    def _add_offsets(self) -> Steps[None]:
        self._group_offsets = self._reading.offsets_to_commit(self)
        if self._group_offsets:
            if self.producer is None:
                yield from self._begin_producer()
            assert self.producer is not None
            yield from add_offsets(
                self.cluster,
                self.transactional_id,
                self.producer,
                self._reading.member,
                self._group_offsets,
                self._reading.seek_tokens(),
            )

    # --- the end: the reader learns of it whenever the program does ---

    def commit(self) -> Steps[Committed]:
        """Commit the transaction: its records, and the offsets of its reader. Result and errors are those of
        `Writing.commit`.
        """
        return (yield from self._rewind_on_error(super().commit()))

    def abort(self) -> Steps[None]:
        """Abort the transaction. Errors are those of `Writing.abort`."""
        yield from self._rewind_on_error(super().abort())

    def end_with_block(self, error: BaseException | None) -> Steps[None]:
        """End the transaction at the end of its `with` block: commit it if `error`, the exception of the block, is
        None; otherwise abort it. Errors are those of `Writing.end_with_block`.
        """
        yield from self._rewind_on_error(super().end_with_block(error))

    def _rewind_on_error(self, steps: Steps[Result]) -> Steps[Result]:
        try:
            return (yield from steps)
        finally:
            self._end_reader_transaction()

    def _end_reader_transaction(self) -> None:
        self._reading.end_transaction(
            self, self._group_offsets if self._state is WritingState.COMMITTED else None
        )

    def _check_state(self) -> None:
        if self.failure is not None:
            self._end_reader_transaction()
        super()._check_state()

    def _set_committed(self, commit_sequence: int) -> Committed:
        committed = super()._set_committed(commit_sequence)
        self._end_reader_transaction()
        return committed

    def _set_failed(self, failure: FailureT, state: WritingState = WritingState.ABORTED) -> FailureT:
        failed = super()._set_failed(failure, state)
        self._end_reader_transaction()
        return failed


def add_offsets(
    cluster: Cluster,
    transactional_id: str,
    producer: BatchProducer,
    member: GroupMember,
    offsets: Mapping[TopicPartition, int],
    metadata: Mapping[TopicPartition, str],
) -> Steps[None]:
    """Add offsets of a consumer group to the open transaction of a producer, which commits them together with its
    records.

    Args:
        cluster: the brokers.
        transactional_id: the transactional id.
        producer: the producer of the transaction.
        member: the member of the group.
        offsets: the offset of the next record to read, by partition.
        metadata: the text to store with the offset, by partition. A partition that is missing here gets no text.

    Raises:
        TransactionAbortedError: the group has replaced the member, so another member may read the same records.
        RefusedError: the coordinator refuses the offsets or the transaction.
        UnavailableError: no response within the deadline.
    """
    left = dict(offsets)
    if not producer.is_tv2:
        yield from cluster.retrying(
            ADDING_OFFSETS, lambda: _add_group(cluster, transactional_id, producer, member.group_id)
        )

    def attempt() -> Steps[None]:
        connection = yield from cluster.coordinator(member.group_id, GROUP_COORDINATOR)
        answer = yield from connection.request_steps(
            _request(transactional_id, producer, member, left, metadata)
        )
        failures = remove_committed(answer, left)
        for code, place in failures:
            failed = f"adding offsets of group {member.group_id!r} for {place} to the transaction failed: {code.name}"
            if code in NOT_A_MEMBER:
                raise TransactionAbortedError(code, f"{failed}: the group has replaced this member")
            if code not in RETRIABLE_CODES:
                raise refused_error(code, failed)
        if left:
            raise RetriableError(
                "adding offsets to the transaction failed: the broker responded with "
                f"{', '.join(code.name for code, _ in failures)}"
            )

    yield from cluster.retrying(ADDING_OFFSETS, attempt)


def _add_group(
    cluster: Cluster, transactional_id: str, producer: BatchProducer, group_id: str
) -> Steps[None]:
    connection = yield from cluster.coordinator(transactional_id)
    answer = yield from connection.request_steps(
        AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group_id,
        )
    )
    if answer.error_code in RETRIABLE_CODES:
        raise RetriableError(f"adding offsets to the transaction failed: {answer.error_code.name}")
    if answer.error_code is not ErrorCode.none:
        raise refused_error(
            answer.error_code,
            f"adding offsets to the transaction of {transactional_id} failed: {answer.error_code.name}",
        )


def _request(
    transactional_id: str,
    producer: BatchProducer,
    member: GroupMember,
    offsets: Mapping[TopicPartition, int],
    metadata: Mapping[TopicPartition, str],
) -> Any:
    form: Any = v5 if producer.is_tv2 else v4
    return form.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=member.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=member.epoch,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(
            form.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=tuple(
                    form.TxnOffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offsets[name, index],
                        committed_metadata=metadata.get((name, index)),
                    )
                    for index in indexes
                ),
            )
            for name, indexes in by_topic(offsets).items()
        ),
    )
