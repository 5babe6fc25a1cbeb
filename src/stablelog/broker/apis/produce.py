"""Produce (0): append batches.

Behaviour: each partition's batch is appended or refused as a whole, independently of the others. With acks=all and
acks=1 the response is sent when the batch is durable (see `broker.durability.flush`); with acks=0 there is none. For
every transactional batch, the coordinator must confirm that its producer has an open transaction. A transaction accepts
no more batches when it is decided, or when a new producer has continued it with `keepPreparedTxn` (KIP-939), even in
partitions that it has written to before. In transaction version 1 the client must have added the partition to the
transaction; in version 2 (v12+) the Produce request adds it. A transaction writes only to topics of its own transaction
group (topics whose commits have one order); for other topics the response has TOPIC_AUTHORIZATION_FAILED with a
message. A partition that is deleted or fails before its batch is durable gets an error code of its own. Version notes:
v3 transactional id; v8 the errors of single records (KIP-467); v11 TRANSACTION_ABORTABLE; v12 transaction version 2.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import BatchHeader
from stablelog.broker.apis import (
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    check_no_missing_markers,
    wait_durable_code,
)
from stablelog.broker.apis.preparation import BatchPreparation, preparation_for, with_record_errors
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.network.long_messages import ENTRY_COUNT_MAX
from stablelog.broker.topic_names import check_clients_may_write
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS, PartitionCodes, PartitionState
from stablelog.errors import DamageError, RecordsRefusedError, RefusedError, UnavailableError
from stablelog.log.partition import Isolation, Partition
from stablelog.security.api_rights import on_topic, on_transactional_id
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.transaction_groups import group_of
from stablelog.wire.guard import Buffer
from stablelog.wire.produce import (
    PartitionProduceData,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    encode_produce_response,
)

PARTITION_CODES = COMMON._replace(storage_error_since=4)
WHILE_FULL = WhileFull(
    ErrorCode.kafka_storage_error, exception="Before v4 the code is NOT_LEADER_OR_FOLLOWER."
)
# ApiVersions names Produce from version 0, as Kafka does: without version 0, librdkafka before 2.11.1 would not
# compress. Requests below version 3 are refused: only record batches of version 2 are accepted, and these need
# version 3.
API = ServedApi(
    ApiKey.PRODUCE,
    first_version=0,
    last_version=12,
    served_from=3,
    is_appending=True,
    rights=(on_topic(Operation.WRITE), on_transactional_id(Operation.WRITE)),
    codes={"": PARTITION_CODES},
    while_full=WHILE_FULL,
)

SECOND_DIALECT_VERSION = 12
NOT_AUTHORIZED = (
    "the client is not authorized to WRITE to the topic or with the transactional id: ask for an ACL"
)
KNOWN_ACKS = (-1, 0, 1)
# The greatest number of records that the errors of one response name. A request can have 12,000 batches.
RECORD_ERRORS_MAX = 1000


class PendingAppend(NamedTuple):
    """An appended batch whose response waits until the batch is durable.

    Attributes:
        topic: name of the topic.
        produced: the list of the response's entries for the partitions of the topic.
        place: the index in `produced` of the entry for this batch.
        durable: a future that is done when the batch is durable.
    """

    topic: str
    produced: list[ProducedPartition]
    place: int
    durable: "asyncio.Future[None]"


def _transaction_check(
    broker: Broker, transactional_id: str | None, api_version: int, target: TopicPartition
) -> Callable[[BatchHeader], None]:
    """Return a function that the log calls with the header of a transactional batch before it appends the batch.

    The function raises RefusedError, unless the coordinator confirms that the producer has an open transaction on the
    partition.
    """

    def check(header: BatchHeader) -> None:
        if transactional_id is None:
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                "the request has a transactional batch and no transactional id: set the transactional "
                "id of the producer",
            )
        if api_version >= SECOND_DIALECT_VERSION:
            group = broker.transactions.begin_group(
                transactional_id, header.producer_id, header.producer_epoch, WHILE_FULL
            )
            code = group.apply(
                group.coordinator.add_partitions(
                    transactional_id,
                    header.producer_id,
                    header.producer_epoch,
                    [target],
                    api_version=api_version,
                    transaction_version=2,
                    now_ms=broker.now_ms(),
                )
            )[target]
        else:
            group = broker.transactions.require_group(transactional_id)
            code = group.coordinator.verify_partitions(
                transactional_id,
                header.producer_id,
                header.producer_epoch,
                [target],
                produce_version=api_version,
            )[target]
        if code is not ErrorCode.none:
            raise RefusedError(
                code,
                f"transactional id {transactional_id} has no open transaction on partition "
                f"{target[0]}-{target[1]}: {code.name}",
            )

    return check


def _check_writable(
    broker: Broker, request: ProduceRequest, name: str, asked: PartitionProduceData, codes: PartitionCodes
) -> tuple[Partition, Buffer]:
    """Check that a partition accepts batches of this request.

    Returns:
        (the partition, the bytes of the batch that the request has for it).

    Raises:
        RefusedError: the partition does not accept batches of this request.
    """
    check_clients_may_write(name)
    partition = broker.partitions.require(name, asked.index, codes)
    if broker.reserve.is_full:
        raise codes.refusal(PartitionState.OFFLINE, broker.reserve.state())
    check_no_missing_markers(broker, (name, asked.index), codes.offline)
    if not asked.records:
        raise RefusedError(
            ErrorCode.invalid_record, f"the request has no records for partition {name}-{asked.index}"
        )
    if request.transactional_id:
        # Check the topic's transaction group before the log checks sequence numbers. After this refusal aiokafka sends
        # the refused batches again together with later ones. The log would find a gap in the sequence numbers of these
        # batches, and the client would get that error instead of the refusal.
        broker.transactions.check_topic(request.transactional_id, name)
    return partition, asked.records


async def _prepare(
    broker: Broker,
    find: Callable[[], tuple[Partition, Buffer]],
    partition: Partition,
    records: Buffer,
    *,
    require_first_sequence_zero: bool,
) -> tuple[Partition, Buffer, BatchPreparation | None]:
    """Prepare a batch for its append: check and recompress its records, if necessary.

    Args:
        broker: the broker.
        find: returns the partition and the batch again. It is called after work in a thread, because the partition may
            have been deleted and created again meanwhile.
        partition: the partition.
        records: the batch.
        require_first_sequence_zero: whether the first batch of a producer that the partition does not know must have
            sequence 0.

    Returns:
        (the partition, the batch to append, the work that was done). The work is None if none was necessary.

    Raises:
        RefusedError: the partition does not accept this batch, or a record is not valid.
        DamageError: the bytes are not a batch, or do not match its CRC.
    """
    while True:
        work = preparation_for(
            partition,
            records,
            wall_ms=broker.clock.wall_ms(),
            require_first_sequence_zero=require_first_sequence_zero,
        )
        if work is None or work.is_done_soon():
            return partition, records, work
        prepared = await broker.run_batch_work(work.run)
        # Other tasks ran during the work. They may have deleted the partition and created it again, or have changed its
        # settings. Then the batch is prepared again.
        before = partition
        partition, records = find()
        if partition is before and partition.config == work.config:
            return partition, prepared, work


async def _append_one(
    broker: Broker,
    request: ProduceRequest,
    api_version: int,
    name: str,
    asked: PartitionProduceData,
    codes: PartitionCodes,
) -> "tuple[ProducedPartition, asyncio.Future[None] | None]":
    """Append the batch that the request has for one partition.

    Returns:
        The response's entry for the partition, and a future that is done when the batch is durable. None in place of
        the future if the response need not wait.
    """
    partition = None
    find = partial(_check_writable, broker, request, name, asked, codes)
    require_first_sequence_zero = (
        request.transactional_id is not None and api_version >= SECOND_DIALECT_VERSION
    )
    try:
        partition, records = find()
        partition, records, work = await _prepare(
            broker, find, partition, records, require_first_sequence_zero=require_first_sequence_zero
        )
        appended = partition.append(
            records,
            now_ms=broker.now_ms(),
            wall_ms=broker.clock.wall_ms(),
            transaction_check=_transaction_check(
                broker, request.transactional_id, api_version, (name, asked.index)
            ),
            require_first_sequence_zero=require_first_sequence_zero,
            are_records_checked=work is not None and work.checks_records,
            checked_header=None if work is None else work.checked_header,
        )
        broker.flush.mark_dirty(partition)
    except DamageError as corrupt:  # The client has sent damaged bytes.
        return _refused_partition(asked, ErrorCode.corrupt_message, str(corrupt)), None
    except PARTITION_ERRORS as error:
        if isinstance(error, UnavailableError):
            broker.refused_appends.log_refusal(name, asked.index, error)
        if isinstance(error, RefusedError) and partition is not None and asked.records:
            error = await with_record_errors(broker, partition, asked.records, error)
        return _refused_partition(asked, codes.code_for_error(error), str(error), error), None
    answer = ProducedPartition(
        asked.index,
        base_offset=appended.first_offset,
        append_time_ms=appended.append_time_ms,
        log_start_offset=partition.known_start(Isolation.READ_UNCOMMITTED),
    )
    return answer, broker.flush.durable_future(partition, appended.last_offset + 1) if request.acks else None


def _refused_partition(
    asked: PartitionProduceData, code: ErrorCode, why: str, error: Exception | None = None
) -> ProducedPartition:
    errors = error.errors if isinstance(error, RecordsRefusedError) else ()
    return ProducedPartition(asked.index, code, message=why, record_errors=errors)


def _denied_code(request: ProduceRequest, topic: str, context: Context) -> ErrorCode | None:
    """Return the error code if the client may not write to a topic with its transactional id; None if it may."""
    if request.transactional_id is not None:
        denied = context.denied_code(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        if denied is not None:
            return denied
    return context.denied_code(Operation.WRITE, ResourceType.TOPIC, topic)


async def _append_all(
    broker: Broker, request: ProduceRequest, version: int, context: Context
) -> "tuple[list[ProducedTopic], list[PendingAppend]]":
    """Append the batches of all partitions.

    If the batches are many or large, other tasks run in between; otherwise there is no await.

    Returns:
        The parts of the response, and a `PendingAppend` for each part that is valid only when its batch is durable.
    """
    codes = PARTITION_CODES.for_version(version)
    answers: list[ProducedTopic] = []
    waits: list[PendingAppend] = []

    def parts() -> Iterator[tuple[str, list[ProducedPartition], PartitionProduceData, ErrorCode | None]]:
        for topic in request.topics:
            produced: list[ProducedPartition] = []
            answers.append(ProducedTopic(topic.name, produced))
            denied = None if context.access is None else _denied_code(request, topic.name, context)
            for asked in topic.partitions:
                yield topic.name, produced, asked, denied

    record_errors_left = RECORD_ERRORS_MAX
    async for name, into, asked, denied in in_turns(parts()):
        if denied is not None:
            into.append(_refused_partition(asked, denied, NOT_AUTHORIZED))
            continue
        answer, durable = await _append_one(broker, request, version, name, asked, codes)
        if durable is not None:
            waits.append(PendingAppend(name, into, len(into), durable))
        if answer.record_errors:
            answer.record_errors = answer.record_errors[:record_errors_left]
            record_errors_left -= len(answer.record_errors)
        into.append(answer)
    return answers, waits


async def handle(broker: Broker, request: ProduceRequest, context: Context) -> list[Buffer] | None:
    """Append the batches, wait until they are durable, and return the encoded response; None with acks=0."""
    version = context.api_version
    if context.throttle is not None:
        context.throttle.charge_produce()
    if request.acks not in KNOWN_ACKS:
        why = f"acks={request.acks} is not valid: use 0, 1 or all (-1)"
        answers = [
            ProducedTopic(
                topic.name,
                [_refused_partition(p, ErrorCode.invalid_required_acks, why) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        return await _encode(broker, context, answers)
    async with context.appending:
        answers, waits = await _append_all(broker, request, version, context)
    broker.metrics.appended_size += sum(len(p.records or b"") for t in request.topics for p in t.partitions)
    if request.acks == 0:
        # With acks=0 the client expects no response: if a batch was refused, the connection is closed, as in Apache
        # Kafka.
        for topic_answer in answers:
            for partition in topic_answer.partitions:
                if partition.error is not ErrorCode.none:
                    raise RefusedError(
                        partition.error, f"an append with acks=0 was refused: {partition.message}"
                    )
        return None
    decided = _commit_log_durable(broker, request) if waits else None
    async for name, produced, place, durable in in_turns(waits):
        index = produced[place].index
        code = await wait_durable_code(broker, (name, index), durable, PARTITION_CODES.for_version(version))
        if code is not ErrorCode.none:
            produced[place] = ProducedPartition(
                index, code, message="the partition was deleted or failed before the batch was durable"
            )
    if decided is not None:
        await decided
    return await _encode(broker, context, answers)


async def _encode(broker: Broker, context: Context, answers: list[ProducedTopic]) -> list[Buffer]:
    """Encode the response and return it. If it has many entries, it is encoded in a thread."""
    count = sum(
        1 + sum(1 + len(partition.record_errors) for partition in topic.partitions) for topic in answers
    )
    throttle_ms = 0
    if context.throttle is not None:
        context.throttle.charge_time()
        throttle_ms = context.throttle.ms
    response = (context.api_version, context.correlation_id, answers, throttle_ms)
    if count > ENTRY_COUNT_MAX:
        return await in_thread(broker.message_threads, encode_produce_response, *response)
    return encode_produce_response(*response)


def _commit_log_durable(broker: Broker, request: ProduceRequest) -> "asyncio.Future[None] | None":
    """Return a future that is done when the commit log (the log of the transaction coordinator) is durable; None if the
    response need not wait for it.

    A Produce response waits for it, so that after any crash the coordinator knows each transaction that has an
    acknowledged batch. There is nothing to wait for if the commit log is durable already, or if the request is not
    transactional.
    """
    group = broker.transactions.get(group_of(request.transactional_id or ""))
    if request.transactional_id is None or group is None:
        return None
    return group.journal.durable_future()
