"""`stablelog transactions`: list, describe, find hanging and abort transactions (KIP-664)."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import timedelta
from functools import cache
from types import GenericAlias
from typing import Any, get_args

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.cli.admin import cluster, known_topic
from stablelog.cli.disk_watch import say
from stablelog.cli.output import done, fail, show
from stablelog.cli.partition_watch import unavailable_partitions
from stablelog.client.connection import Connection, check
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_of
from stablelog.wire.extension.transaction_groups import group_of
from stablelog.wire.messages import message_class

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class OpenInPartition:
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    open_ms: int
    transactional_id: str | None


def _module_of(client: Connection, api_key: int) -> Any:
    import sys

    return sys.modules[client.request_class(api_key).__module__]


def _listed(client: Connection, states: Iterable[str] = (), longer_than_ms: int = -1) -> list[Any]:
    fields: dict[str, Any] = {"state_filters": tuple(states), "producer_id_filters": ()}
    request_class = client.request_class(ApiKey.LIST_TRANSACTIONS)
    if request_class.__version__ >= 1:
        fields["duration_filter"] = longer_than_ms
    response = client.call(request_class(**fields))
    check(response.error_code, "listing transactions")
    if response.unknown_state_filters:
        fail(
            f"there is no state {', '.join(response.unknown_state_filters)}: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
        )
    return list(response.transaction_states)


def list_transactions(bootstrap: str, state: str | None, longer_than_ms: int, *, as_json: bool) -> None:
    """List transactional ids."""
    with Connection(bootstrap) as client:
        found = _listed(client, (state,) if state else (), longer_than_ms)
    rows = [
        (
            txn.transactional_id,
            group_of(txn.transactional_id),
            txn.producer_id,
            txn.transaction_state,
            _part_of(txn.transactional_id),
        )
        for txn in sorted(found, key=lambda txn: txn.transactional_id)
    ]
    columns = ("transactional id", "group", "producer id", "state", "part of")
    show("transactions", columns, rows, as_json=as_json)


def _part_of(transactional_id: str) -> str | None:
    """Describe the joint commit to which a child's transactional id belongs; None if it is not a child's id."""
    child = child_of(transactional_id)
    if child is None:
        return None
    return f"version {child.version} of joint commit {child.name.key!r}" + (
        f", run {child.run}" if child.run else ""
    )


@cache
def _description_class() -> Any:
    """Return kio's response class with the start time as a number, because kio refuses the -1 for no transaction."""
    plain = message_class(ApiKey.DESCRIBE_TRANSACTIONS, 0, "response")
    state_class = get_args(next(f.type for f in fields(plain) if f.name == "transaction_states"))[0]
    state = _with_field(state_class, "transaction_start_time", i64, "int64")
    return _with_field(plain, "transaction_states", GenericAlias(tuple, (state, ...)), None)


def _with_field(kio_class: Any, name: str, annotation: Any, kafka_type: str | None) -> Any:
    metadata = {"kafka_type": kafka_type} if kafka_type else {}
    changed = [
        (f.name, annotation, field(metadata=metadata))
        if f.name == name
        else (f.name, f.type, field(metadata=f.metadata))
        for f in fields(kio_class)
    ]
    constants = {key: value for key, value in vars(kio_class).items() if key in _KIO_CONSTANTS}
    return make_dataclass(kio_class.__name__, changed, namespace=constants, kw_only=True, frozen=True)


_KIO_CONSTANTS = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


def _described(client: Connection, transactional_id: str) -> Any:
    request = client.request_class(ApiKey.DESCRIBE_TRANSACTIONS)(transactional_ids=(transactional_id,))
    found = client.call(request, _description_class()).transaction_states[0]
    check(found.error_code, f"transactional id {transactional_id!r}")
    return found


def describe(bootstrap: str, transactional_id: str, *, as_json: bool) -> None:
    """Show a transactional id."""
    with Connection(bootstrap) as client:
        found = _described(client, transactional_id)
    started_ms = found.transaction_start_time
    partitions = [f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions]
    row = (
        found.transactional_id,
        group_of(found.transactional_id),
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout // timedelta(milliseconds=1),
        int(time.time() * 1000) - started_ms
        if found.transaction_state in OPEN_STATES and started_ms > 0
        else None,
        ", ".join(partitions),
        _part_of(found.transactional_id),
    )
    columns = (
        "transactional id",
        "group",
        "state",
        "producer id",
        "epoch",
        "timeout ms",
        "open ms",
        "partitions",
        "part of",
    )
    show("transaction", columns, [row], as_json=as_json)


def open_in_topic(client: Connection, topic: str, partitions: list[int]) -> dict[int, list[OpenInPartition]]:
    """Return the transactions that are open in a topic's partitions, by partition, the oldest first."""
    names = {txn.producer_id: txn.transactional_id for txn in _listed(client)}
    module = _module_of(client, ApiKey.DESCRIBE_PRODUCERS)
    request = module.DescribeProducersRequest(
        topics=(module.TopicRequest(name=topic, partition_indexes=tuple(partitions)),)
    )
    now_ms = int(time.time() * 1000)
    found: dict[int, list[OpenInPartition]] = defaultdict(list)
    for partition in client.call(request).topics[0].partitions:
        check(partition.error_code, f"{topic}-{partition.partition_index}")
        for producer in partition.active_producers:
            if producer.current_txn_start_offset >= 0:
                found[partition.partition_index].append(
                    OpenInPartition(
                        topic,
                        partition.partition_index,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        now_ms - producer.last_timestamp,
                        names.get(producer.producer_id),
                    )
                )
    for transactions in found.values():
        transactions.sort(key=lambda txn: txn.start_offset)
    return dict(found)


def find_hanging(bootstrap: str, topic: str | None, older_than_ms: int, *, as_json: bool) -> None:
    """Find transactions that are open in a partition although their coordinator does not have them open there."""
    topics = cluster(bootstrap).topics if topic is None else {topic: known_topic(bootstrap, topic)}
    unavailable = unavailable_partitions(bootstrap, topics)
    for (name, index), why in unavailable.items():
        say(f"{name}-{index} is left out: it is {why}")
    rows = []
    with Connection(bootstrap) as client:
        for name, metadata in topics.items():
            served = [index for index in metadata.partitions if (name, index) not in unavailable]
            for transactions in open_in_topic(client, name, served).values():
                rows += [
                    (
                        txn.topic,
                        txn.partition,
                        txn.producer_id,
                        txn.producer_epoch,
                        txn.start_offset,
                        txn.open_ms,
                    )
                    for txn in transactions
                    if txn.open_ms >= older_than_ms and not _is_coordinated(client, txn)
                ]
    columns = ("topic", "partition", "producer id", "epoch", "start offset", "idle ms")
    show("hanging transactions", columns, rows, as_json=as_json)


def _is_coordinated(client: Connection, txn: OpenInPartition) -> bool:
    if txn.transactional_id is None:
        return False
    known = _described(client, txn.transactional_id)
    return any(topic.topic == txn.topic and txn.partition in topic.partitions for topic in known.topics)


def abort(
    bootstrap: str,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    *,
    as_json: bool,
) -> None:
    """End a transaction: by its id if a coordinator has it open, by topic, partition and offset if it is hanging."""
    with Connection(bootstrap) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id)
            done(
                f"aborted the transaction of {transactional_id}",
                as_json=as_json,
                transactional_id=transactional_id,
            )
        elif topic is not None and partition is not None and start_offset is not None:
            known_topic(bootstrap, topic)
            _abort_by_place(client, topic, partition, start_offset)
            done(
                f"aborted the transaction at {topic}-{partition}@{start_offset}",
                as_json=as_json,
                topic=topic,
                partition=partition,
            )
        else:
            fail(
                "say which: a transactional id, or --topic, --partition and --start-offset of a hanging transaction"
            )


def _abort_by_id(client: Connection, transactional_id: str) -> None:
    """Abort by InitProducerId: a new producer with the same id aborts and fences its predecessor."""
    known = _described(client, transactional_id)
    if known.transaction_state != "Ongoing":
        fail(f"{transactional_id} has no open transaction: it is in state {known.transaction_state}")
    timeout = min(known.transaction_timeout, timedelta(minutes=1))
    request_class = message_class(ApiKey.INIT_PRODUCER_ID, 5, "request")
    for _ in range(50):
        answer = client.call(request_class(transactional_id=transactional_id, transaction_timeout=timeout))
        if answer.error_code is not ErrorCode.concurrent_transactions:
            check(answer.error_code, f"ending the transaction of {transactional_id}")
            return
        time.sleep(0.1)
    fail(f"the transaction of {transactional_id} is still being ended")


def _abort_by_place(client: Connection, topic: str, partition: int, start_offset: int) -> None:
    found = open_in_topic(client, topic, [partition]).get(partition, [])
    hanging = next((txn for txn in found if txn.start_offset == start_offset), None)
    if hanging is None:
        starts = ", ".join(str(txn.start_offset) for txn in found) or "none"
        fail(
            f"no transaction is open in {topic}-{partition} from offset {start_offset}; open ones begin at: {starts}"
        )
    module = _module_of(client, ApiKey.WRITE_TXN_MARKERS)
    marker = module.WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=(module.WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
    )
    response = client.call(module.WriteTxnMarkersRequest(markers=(marker,)))
    check(
        response.markers[0].topics[0].partitions[0].error_code,
        f"ending the transaction at {topic}-{partition}@{start_offset}",
    )
