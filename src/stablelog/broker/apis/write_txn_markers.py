"""WriteTxnMarkers (27): write transaction markers for an administrator, who ends a hanging transaction this way.

Behaviour: the markers are written to the named partitions, and the transaction coordinator does not take part. A marker
is refused if its producer epoch is older than that in the partition's producer state. An abort marker is refused if the
coordinator has decided to commit the transaction: its commit marker follows. A marker for a commit log (the log of a
transaction coordinator) is refused. A commit marker for a commit-ordered topic is refused, because it would have no
commit sequence (the number of a commit), by which readers order the transactions. The response is sent when the markers
are durable. A disk error at one partition becomes the error code of that partition; the markers of the others are
written. While the disk is full, a marker of a producer without an open transaction in the partition is refused. Version
notes: v2 the transaction version, which decides how the epoch is checked.
"""

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.batch.markers import Marker, MarkerType
from stablelog.broker.apis import (
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    check_no_missing_markers,
    for_each,
    for_each_part,
    wait_durable_code,
)
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.errors import RefusedError
from stablelog.log.partition import MarkerWrite, Partition
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

PARTITION_CODES = COMMON
# While the disk is full, a request is served only if it ends an open transaction.
WHILE_FULL = WhileFull(
    ErrorCode.kafka_storage_error, exception="A marker that ends an open transaction is served."
)
API = ServedApi(
    ApiKey.WRITE_TXN_MARKERS,
    first_version=1,
    last_version=2,
    is_appending=True,
    rights=(
        on_cluster(Operation.ALTER, without="the next right is needed"),
        on_cluster(Operation.CLUSTER_ACTION),
    ),
    codes={"": PARTITION_CODES},
    while_full=WHILE_FULL,
)
messages = API.messages


log = logging.getLogger(__name__)


def _ends_open_transaction(broker: Broker, partition: Partition, producer_id: int) -> bool:
    """Return whether a marker would end an open transaction of the producer in the partition.

    Only such a marker may be written while the disk is full. The result is also False if the partition is the offsets
    log and records of this log wait for disk space: the marker must not be appended before these earlier records.
    """
    groups = broker.groups.journal
    if partition is groups.partition and groups.is_waiting:
        # Earlier records of the offsets log wait for disk space, and a marker must not get into the log before them.
        return False
    return any(txn.producer_id == producer_id for txn in partition.log.open_transactions())


def _write_marker(
    broker: Broker, name: str, index: int, asked: "WritableTxnMarker"
) -> "ErrorCode | asyncio.Future[None]":
    """Append a marker to one partition.

    Returns:
        The error code of the partition if the marker was refused; otherwise a future that is done when the marker is
        durable.
    """
    marker = Marker(
        type=MarkerType.COMMIT if asked.transaction_result else MarkerType.ABORT,
        coordinator_epoch=asked.coordinator_epoch,
        group=None,
        commit_sequence=-1,
    )
    if is_internal(name) and name != CONSUMER_OFFSETS_TOPIC:
        return ErrorCode.invalid_topic_exception  # No transaction ever writes to the other internal topics.
    try:
        partition = broker.partitions.require(name, index, PARTITION_CODES)
        check_no_missing_markers(broker, (name, index), PARTITION_CODES.offline)
        if asked.transaction_result and partition.view is not None:
            return ErrorCode.invalid_request
        if not asked.transaction_result and broker.transactions.are_committing(asked.producer_id):
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"the abort marker is refused: the coordinator has decided to commit the transaction of producer id "
                f"{asked.producer_id}, so the broker writes a commit marker",
            )
        if broker.reserve.is_full and not _ends_open_transaction(broker, partition, asked.producer_id):
            broker.reserve.check(WHILE_FULL)
        write = MarkerWrite(asked.producer_id, asked.producer_epoch, marker, asked.transaction_version)
        append = partial(
            partition.append_markers, [write], now_ms=broker.now_ms(), wall_ms=broker.clock.wall_ms()
        )
        outcome = broker.reserve.attempt(append)[0]
    except PARTITION_ERRORS as error:
        if not isinstance(error, RefusedError):
            log.error(
                "the marker of producer %d for %s-%d was not written: %s. Repeat the request",
                asked.producer_id,
                name,
                index,
                error,
            )
        return PARTITION_CODES.code_for_error(error)
    if isinstance(outcome, RefusedError):
        return ErrorCode(outcome.code)
    if name == CONSUMER_OFFSETS_TOPIC:
        broker.groups.transaction_ended(asked.producer_id, commit=asked.transaction_result)
    return broker.flush.durable_future(partition, partition.end_offset) or ErrorCode.none


async def handle(
    broker: Broker, request: "WriteTxnMarkersRequest", context: Context
) -> "WriteTxnMarkersResponse":
    """Write all markers of the request, wait until they are durable, and return an error code for each partition."""
    is_denied = not context.allows(
        Operation.ALTER, ResourceType.CLUSTER, is_logged=False
    ) and not context.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    asked_topics = [(asked, topic) for asked in request.markers for topic in asked.topics]
    async with context.appending:
        written = await for_each_part(
            asked_topics,
            lambda of: of[1].partition_indexes,
            lambda of, index: (
                of[1].name,
                index,
                ErrorCode.cluster_authorization_failed
                if is_denied
                else _write_marker(broker, of[1].name, index, of[0]),
            ),
            lambda _, outcomes: outcomes,
            at_once=AT_ONCE_MAX,
        )
    outcomes = [outcome for of_topic in written for outcome in of_topic]
    codes = iter(
        [
            outcome
            if isinstance(outcome, ErrorCode)
            else await wait_durable_code(broker, (name, index), outcome, PARTITION_CODES)
            async for name, index, outcome in in_turns(outcomes)
        ]
    )
    topics = iter(
        await for_each_part(
            asked_topics,
            lambda of: of[1].partition_indexes,
            lambda _, index: messages.WritableTxnMarkerPartitionResult(
                partition_index=index, error_code=next(codes)
            ),
            lambda of, results: messages.WritableTxnMarkerTopicResult(name=of[1].name, partitions=results),
        )
    )
    return messages.WriteTxnMarkersResponse(
        markers=await for_each(
            request.markers,
            lambda asked: messages.WritableTxnMarkerResult(
                producer_id=asked.producer_id, topics=tuple(islice(topics, len(asked.topics)))
            ),
        )
    )
