"""`stablelog transactions`: list, describe, find hanging and abort transactions (KIP-664)."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

import typer
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_transactions.v1.request import ListTransactionsRequest
from kio.schema.write_txn_markers.v2.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

from stablelog.cli.admin import cluster, known_topic
from stablelog.cli.broker import Broker, connect, with_broker
from stablelog.cli.disk_watch import say
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import done, fail, show
from stablelog.cli.partition_watch import unavailable_partitions
from stablelog.client.connection import Connection
from stablelog.client.responses import check
from stablelog.client.transaction_state import describe_transaction
from stablelog.wire.extension.children import child_of
from stablelog.wire.extension.transaction_groups import group_of

app = command_app("List, describe, find and abort transactions.")

HANGING_COLUMNS = ("topic", "partition", "producer id", "epoch", "start offset", "idle ms")
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class OpenInPartition(NamedTuple):
    """A transaction that is open in a partition. `open_ms` is the time since the producer's last record there."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    open_ms: int
    coordinator_epoch: int
    transactional_id: str | None


def _listed(client: Connection, states: Iterable[str] = (), longer_than_ms: int = -1) -> list[Any]:
    response = client.ask(
        ListTransactionsRequest(state_filters=tuple(states), duration_filter=longer_than_ms)
    )
    check(response.error_code, "listing transactions")
    if response.unknown_state_filters:
        fail(
            f"there is no state {', '.join(response.unknown_state_filters)}: the states are Empty, Ongoing, PrepareCommit, "
            "PrepareAbort, CompleteCommit and CompleteAbort"
        )
    return list(response.transaction_states)


@app.command("list", epilog=examples("stablelog transactions list --state Ongoing"))
@with_broker
def list_transactions(
    state: Annotated[
        str | None, typer.Option(help="List only transactions in this state, such as Ongoing.")
    ] = None,
    longer_than_ms: Annotated[
        int, typer.Option(help="List only transactions that are open for longer than this; -1 for all.")
    ] = -1,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """List transactional ids and the states of their transactions."""
    bootstrap = broker.reach()
    with connect(bootstrap) as client:
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
    run = f", run {child.run}" if child.run else ""
    return f"version {child.version} of joint commit {child.name.key!r}{run}"


@app.command(epilog=examples("stablelog transactions describe payments/worker-3"))
@with_broker
def describe(transactional_id: str, as_json: AsJson = False, *, broker: Broker) -> None:
    """Show the transaction of a transactional id: its state, for how long it is open, and its partitions."""
    bootstrap = broker.reach()
    with connect(bootstrap) as client:
        found = describe_transaction(client, transactional_id)
    started_ms = found.transaction_start_time
    partitions = [f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions]
    is_open = found.transaction_state in OPEN_STATES and started_ms > 0
    row = {
        "transactional id": found.transactional_id,
        "group": group_of(found.transactional_id),
        "state": found.transaction_state,
        "producer id": found.producer_id,
        "epoch": found.producer_epoch,
        "timeout ms": found.transaction_timeout // timedelta(milliseconds=1),
        "open ms": int(time.time() * 1000) - started_ms if is_open else None,
        "partitions": ", ".join(partitions),
        "part of": _part_of(found.transactional_id),
    }
    show("transaction", list(row), [list(row.values())], as_json=as_json)


def open_in_topic(client: Connection, topic: str, partitions: list[int]) -> dict[int, list[OpenInPartition]]:
    """Return the transactions that are open in a topic's partitions, by partition, the oldest first."""
    names = {txn.producer_id: txn.transactional_id for txn in _listed(client)}
    request = DescribeProducersRequest(
        topics=(TopicRequest(name=topic, partition_indexes=tuple(partitions)),)
    )
    now_ms = int(time.time() * 1000)
    found: dict[int, list[OpenInPartition]] = defaultdict(list)
    for partition in client.ask(request).topics[0].partitions:
        check(partition.error_code, f"{topic}-{partition.partition_index}")
        for producer in partition.active_producers:
            if producer.current_txn_start_offset >= 0:
                found[partition.partition_index].append(
                    OpenInPartition(
                        topic,
                        partition.partition_index,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.current_txn_start_offset,
                        now_ms - producer.last_timestamp,
                        producer.coordinator_epoch,
                        names.get(producer.producer_id),
                    )
                )
    for transactions in found.values():
        transactions.sort(key=lambda txn: txn.start_offset)
    return dict(found)


def held_by(transactions: Sequence[OpenInPartition]) -> str:
    """Return the transaction that holds back the readers of a partition, in words; empty if none is open."""
    if not transactions:
        return ""
    oldest = transactions[0]
    who = oldest.transactional_id or f"producer {oldest.producer_id}"
    return f"{who} since offset {oldest.start_offset}"


@app.command("find-hanging", epilog=examples("stablelog transactions find-hanging --topic orders"))
@with_broker
def find_hanging(
    topic: Annotated[str | None, typer.Option(help="Search only this topic.")] = None,
    older_than_ms: Annotated[
        int, typer.Option(help="Find only transactions without a record for longer than this.")
    ] = 900_000,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Find hanging transactions: open in a partition, but unknown to their coordinator."""
    bootstrap = broker.reach()
    topics = cluster(bootstrap).topics if topic is None else {topic: known_topic(bootstrap, topic)}
    unavailable = unavailable_partitions(bootstrap, topics)
    for (name, index), why in unavailable.items():
        say(f"{name}-{index} is left out: it is {why}")
    rows: list[tuple[object, ...]] = []
    with connect(bootstrap) as client:
        for name, metadata in topics.items():
            served = [index for index in metadata.partitions if (name, index) not in unavailable]
            for transactions in open_in_topic(client, name, served).values():
                rows += [
                    txn[: len(HANGING_COLUMNS)]
                    for txn in transactions
                    if txn.open_ms >= older_than_ms and not _is_coordinated(client, txn)
                ]
    show("hanging transactions", HANGING_COLUMNS, rows, as_json=as_json)


def _is_coordinated(client: Connection, txn: OpenInPartition) -> bool:
    if txn.transactional_id is None:
        return False
    known = describe_transaction(client, txn.transactional_id)
    return any(topic.topic == txn.topic and txn.partition in topic.partitions for topic in known.topics)


@app.command(
    epilog=examples(
        "stablelog transactions abort payments/worker-3",
        "stablelog transactions abort --topic orders --partition 0 --start-offset 41",
    )
)
@with_broker
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The transactional id whose open transaction to abort.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic of a hanging transaction.")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition of the hanging transaction.")] = None,
    start_offset: Annotated[
        int | None, typer.Option(help="The first offset of the hanging transaction.")
    ] = None,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Abort an open transaction and fence its producer, or abort a hanging transaction by topic, partition and start
    offset.
    """
    bootstrap = broker.reach()
    with connect(bootstrap) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id)
            message = f"aborted the transaction of {transactional_id}"
            done(message, as_json=as_json, transactional_id=transactional_id)
        elif topic is not None and partition is not None and start_offset is not None:
            known_topic(bootstrap, topic)
            _abort_by_place(client, topic, partition, start_offset)
            message = f"aborted the transaction at {topic}-{partition}@{start_offset}"
            done(message, as_json=as_json, topic=topic, partition=partition)
        else:
            fail(
                "nothing to abort: give a transactional id, or --topic, --partition and --start-offset of a hanging transaction"
            )


def _abort_by_id(client: Connection, transactional_id: str) -> None:
    """Abort a transaction by InitProducerId with its transactional id, which aborts the open transaction and fences its
    producer.
    """
    known = describe_transaction(client, transactional_id)
    if known.transaction_state != "Ongoing":
        fail(f"{transactional_id} has no open transaction: it is in state {known.transaction_state}")
    timeout = min(known.transaction_timeout, timedelta(minutes=1))
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=timeout)
    for _ in range(50):
        answer = client.ask(request)
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
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
    )
    response = client.ask(WriteTxnMarkersRequest(markers=(marker,)))
    check(
        response.markers[0].topics[0].partitions[0].error_code,
        f"ending the transaction at {topic}-{partition}@{start_offset}",
    )
