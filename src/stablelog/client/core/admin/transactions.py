"""Requests to list, describe and abort transactions, also hanging ones (KIP-664)."""

from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.brokers import every_connection
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.coordinators import TRANSACTION_COORDINATOR
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError, check
from stablelog.client.topics import by_topic
from stablelog.errors import RefusedError, UsageError
from stablelog.types import TopicPartition

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
ONGOING: Final = "Ongoing"
# With this timeout a producer is made that only ends the transaction of another one.
ABORT_TIMEOUT_MAX: Final = timedelta(minutes=1)
_KIO_CONSTANTS: Final = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


class ListedTransaction(NamedTuple):
    """A transactional id in a list, with its producer id and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """A transactional id with the state of its transaction, as its coordinator knows it.

    Attributes:
        transactional_id: the transactional id.
        state: Kafka's name of the state, such as "Ongoing".
        producer_id: the id of the producer that uses the transactional id now.
        producer_epoch: its epoch.
        timeout_ms: the time after which the coordinator aborts an open transaction.
        started_ms: when the transaction began, in ms since 1970; -1 if none is open.
        partitions: the partitions of the transaction.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """The state of a producer in one partition, as the leader of the partition knows it.

    Attributes:
        producer_id: the producer.
        producer_epoch: its epoch.
        last_sequence: the sequence number of the producer's last record in the partition; -1 if unknown.
        last_timestamp_ms: the timestamp of the producer's last batch in the partition; -1 if unknown.
        coordinator_epoch: the coordinator epoch in the producer's last transaction marker; -1 if there is no marker.
        start_offset: the first offset of the producer's open transaction in the partition; -1 if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int


def list_transactions(
    cluster: Cluster, *, states: Iterable[str] = (), longer_than_ms: int = -1
) -> Steps[list[ListedTransaction]]:
    """Return the transactional ids that the user may describe, of all coordinators, sorted by id.

    Args:
        cluster: the brokers.
        states: only ids in one of these states; empty for all.
        longer_than_ms: only ids whose transaction has been open for more than so many ms; -1 for all.

    Raises:
        UsageError: a state is unknown.
        UnavailableError: a broker does not respond.
    """
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest

    request = ListTransactionsRequest(state_filters=tuple(states), duration_filter=longer_than_ms)

    def attempt() -> Steps[list[ListedTransaction]]:
        found: dict[str, ListedTransaction] = {}
        for connection in (yield from every_connection(cluster)):
            response = yield from connection.request_steps(request)
            check(response.error_code, "listing transactions")
            if response.unknown_state_filters:
                raise UsageError(
                    f"there is no state {', '.join(response.unknown_state_filters)}: the states are {', '.join(STATES)}"
                )
            for one in response.transaction_states:
                found[one.transactional_id] = ListedTransaction(
                    one.transactional_id, one.producer_id, one.transaction_state
                )
        return sorted(found.values())

    return (yield from cluster.retrying("listing transactions", attempt))


def describe_transaction(cluster: Cluster, transactional_id: str) -> Steps[DescribedTransaction]:
    """Return the state of a transactional id and its transaction.

    Raises:
        RefusedError: the coordinator does not know the id, or the user may not see it.
        UnavailableError: the coordinator does not respond.
    """

    def attempt() -> Steps[DescribedTransaction]:
        connection = yield from cluster.coordinator(transactional_id, TRANSACTION_COORDINATOR)
        return (yield from describe_at_coordinator(connection, transactional_id))

    return (yield from cluster.retrying(f"asking for transactional id {transactional_id!r}", attempt))


def describe_at_coordinator(
    connection: BrokerConnection, transactional_id: str
) -> Steps[DescribedTransaction]:
    """Request the state of a transactional id and its transaction from one coordinator, without a retry, and return it.

    Args:
        connection: a connection to the coordinator.
        transactional_id: the transactional id.

    Raises:
        RefusedError: the coordinator does not know the id.
        UnavailableError: the coordinator does not respond.
    """
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    yield from connection.negotiate()
    connection.newest_version(
        DescribeTransactionsRequest.__api_key__, DescribeTransactionsRequest.__version__
    )
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    (found,) = (yield from connection.request_unchanged_steps(request, _response_class())).transaction_states
    check(found.error_code, f"transactional id {transactional_id!r}")
    return DescribedTransaction(
        found.transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout // timedelta(milliseconds=1),
        found.transaction_start_time,
        tuple((topic.topic, index) for topic in found.topics for index in topic.partitions),
    )


@cache
def _response_class() -> Any:
    """Return a class for the response to DescribeTransactions in which the start time of a transaction is a number. The
    class of the kio library refuses the value -1, by which brokers say that no transaction is open.
    """
    from types import GenericAlias

    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TransactionState
    from kio.static.primitive import i64

    state = _with_field(TransactionState, "transaction_start_time", i64, "int64")
    return _with_field(
        DescribeTransactionsResponse, "transaction_states", GenericAlias(tuple, (state, ...)), None
    )


def _with_field(kio_class: Any, name: str, annotation: Any, kafka_type: str | None) -> Any:
    """Return a copy of a message class of the kio library in which one field has another type: `annotation` in Python,
    and `kafka_type` on the wire.
    """
    from dataclasses import field, fields, make_dataclass

    changed = {name: (annotation, {"kafka_type": kafka_type} if kafka_type else {})}
    members = [(f.name, *changed.get(f.name, (f.type, f.metadata))) for f in fields(kio_class)]
    return make_dataclass(
        kio_class.__name__,
        [(member, kind, field(metadata=metadata)) for member, kind, metadata in members],
        namespace={key: value for key, value in vars(kio_class).items() if key in _KIO_CONSTANTS},
        kw_only=True,
        frozen=True,
    )


def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, list[ActiveProducer]]]:
    """Return the producers that are active in each partition, as the leader of the partition knows them.

    Raises:
        RefusedError: a partition does not exist, or the user may not read it.
        UnavailableError: a leader does not respond.
    """
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

    wanted = list(partitions)
    found: dict[TopicPartition, list[ActiveProducer]] = {}

    def attempt() -> Steps[dict[TopicPartition, list[ActiveProducer]]]:
        left = [target for target in wanted if target not in found]
        for leader_id, targets in (yield from cluster.group_by_leader(left)).items():
            connection = yield from cluster.connection_to(leader_id)
            topics = tuple(
                TopicRequest(name=topic, partition_indexes=tuple(indexes))
                for topic, indexes in by_topic(targets).items()
            )
            for topic in (
                yield from connection.request_steps(DescribeProducersRequest(topics=topics))
            ).topics:
                for partition in topic.partitions:
                    name = f"{topic.name}-{partition.partition_index}"
                    check(partition.error_code, f"the producers of {name}", partition.error_message)
                    found[topic.name, partition.partition_index] = [
                        ActiveProducer(
                            one.producer_id,
                            one.producer_epoch,
                            one.last_sequence,
                            one.last_timestamp,
                            one.coordinator_epoch,
                            one.current_txn_start_offset,
                        )
                        for one in partition.active_producers
                    ]
        return found

    return (yield from cluster.retrying("asking for the producers of partitions", attempt))


def abort_transaction(cluster: Cluster, transactional_id: str) -> Steps[None]:
    """Abort the open transaction of a transactional id, and fence its producer.

    Raises:
        RefusedError: the id is not known, or it has no open transaction.
        UnavailableError: the coordinator does not respond, or the transaction is still being ended.
    """
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    known = yield from describe_transaction(cluster, transactional_id)
    if known.state != ONGOING:
        raise RefusedError(
            ErrorCode.invalid_txn_state,
            f"the transactional id {transactional_id} has no open transaction: its state is {known.state}",
        )
    timeout = min(timedelta(milliseconds=known.timeout_ms), ABORT_TIMEOUT_MAX)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=timeout)

    def attempt() -> Steps[None]:
        connection = yield from cluster.coordinator(transactional_id, TRANSACTION_COORDINATOR)
        answer = yield from connection.request_steps(request)
        check(answer.error_code, f"ending the transaction of {transactional_id}")

    yield from cluster.retrying(f"ending the transaction of {transactional_id}", attempt)


def abort_hanging(cluster: Cluster, topic: str, partition: int, start_offset: int) -> Steps[None]:
    """Abort a hanging transaction in one partition: one that its coordinator has forgotten. An abort marker is written
    directly to the leader of the partition.

    Args:
        cluster: the brokers.
        topic: the topic.
        partition: the partition.
        start_offset: the first offset of the transaction in this partition.

    Raises:
        RefusedError: no transaction that begins at this offset is open in the partition.
        UnavailableError: the leader does not respond.
    """
    from kio.schema.write_txn_markers.v2.request import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    place = f"{topic}-{partition}"
    producers = (yield from describe_producers(cluster, [(topic, partition)]))[topic, partition]
    open_there = sorted((one for one in producers if one.start_offset >= 0), key=lambda one: one.start_offset)
    hanging = next((one for one in open_there if one.start_offset == start_offset), None)
    if hanging is None:
        starts = ", ".join(str(one.start_offset) for one in open_there) or "none"
        raise RefusedError(
            ErrorCode.invalid_txn_state,
            f"no transaction is open in {place} from offset {start_offset}; open ones begin at: {starts}",
        )
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
    )

    def attempt() -> Steps[None]:
        connection = yield from cluster.leader_connection(topic, partition)
        response = yield from connection.request_steps(WriteTxnMarkersRequest(markers=(marker,)))
        if not response.markers:
            raise RetriableError(f"the broker {connection.address} did not answer for the partition {place}")
        code = response.markers[0].topics[0].partitions[0].error_code
        check(code, f"ending the transaction at {place}@{start_offset}")

    yield from cluster.retrying(f"ending the transaction at {place}@{start_offset}", attempt)
