"""`stablelog transactions`: list, describe, find hanging and abort transactions (KIP-664)."""

import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from stablelog.cli.admin import known_topic
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.disk_watch import print_to_stderr
from stablelog.cli.leaders import without_leader
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import fail, print_done, print_rows
from stablelog.client.blocking.admin import Admin
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import child_of
from stablelog.wire.extension.transaction_groups import group_of

app = command_app("List, describe, find and abort transactions.")

HANGING_COLUMNS = ("topic", "partition", "producer id", "epoch", "start offset", "idle ms")
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class OpenInPartition(NamedTuple):
    """An open transaction in one partition. `open_ms` is how many milliseconds have passed since the producer's last
    record in the partition.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    open_ms: int
    transactional_id: str | None


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
    broker: CommandBroker,
) -> None:
    """List transactional ids and the states of their transactions."""
    states = (state,) if state else ()
    found = broker.admin().transactions.list(states=states, longer_than_ms=longer_than_ms)
    rows = [
        (
            txn.transactional_id,
            group_of(txn.transactional_id),
            txn.producer_id,
            txn.state,
            _part_of(txn.transactional_id),
        )
        for txn in found
    ]
    columns = ("transactional id", "group", "producer id", "state", "part of")
    print_rows("transactions", columns, rows, as_json=as_json)


def _part_of(transactional_id: str) -> str | None:
    """Return a text that names the joint commit of which a transaction is a part: a commit of the transactions of
    several producers together, such as those of a Spark job. None if the transactional id belongs to none.
    """
    child = child_of(transactional_id)
    if child is None:
        return None
    run = f", run {child.run}" if child.run else ""
    return f"version {child.version} of joint commit {child.name.key!r}{run}"


@app.command(epilog=examples("stablelog transactions describe payments/worker-3"))
@with_broker
def describe(transactional_id: str, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """Show the transaction of a transactional id: its state, for how long it is open, and its partitions."""
    found = broker.admin().transactions.describe(transactional_id)
    is_open = found.state in OPEN_STATES and found.started_ms > 0
    row = {
        "transactional id": found.transactional_id,
        "group": group_of(found.transactional_id),
        "state": found.state,
        "producer id": found.producer_id,
        "epoch": found.producer_epoch,
        "timeout ms": found.timeout_ms,
        "open ms": int(time.time() * 1000) - found.started_ms if is_open else None,
        "partitions": ", ".join(f"{topic}-{index}" for topic, index in found.partitions),
        "part of": _part_of(found.transactional_id),
    }
    print_rows("transaction", list(row), [list(row.values())], as_json=as_json)


def open_transactions(
    admin: Admin, targets: Sequence[TopicPartition]
) -> dict[TopicPartition, list[OpenInPartition]]:
    """Return the transactions that are open in partitions, the oldest first. A partition without one is left out."""
    if not targets:
        return {}
    names = {txn.producer_id: txn.transactional_id for txn in admin.transactions.list()}
    found: dict[TopicPartition, list[OpenInPartition]] = {}
    for target, producers in admin.transactions.producers(targets).items():
        now_ms = int(time.time() * 1000)
        found[target] = sorted(
            (
                OpenInPartition(
                    *target,
                    one.producer_id,
                    one.producer_epoch,
                    one.start_offset,
                    now_ms - one.last_timestamp_ms,
                    names.get(one.producer_id),
                )
                for one in producers
                if one.start_offset >= 0
            ),
            key=lambda txn: txn.start_offset,
        )
    return {target: transactions for target, transactions in found.items() if transactions}


def held_by(transactions: Sequence[OpenInPartition]) -> str:
    """Return a text that names the oldest open transaction of a partition, which keeps read-committed readers from
    later records; empty if no transaction is open.
    """
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
    broker: CommandBroker,
) -> None:
    """Find hanging transactions: open in a partition, but unknown to their coordinator."""
    admin = broker.admin()
    topics = admin.topics.list(internal=True) if topic is None else {topic: known_topic(admin, topic)}
    unavailable = without_leader(topics, topics)
    for (name, index), why in unavailable.items():
        print_to_stderr(f"{name}-{index} is left out: it is {why}")
    served = [
        (name, index)
        for name, found in topics.items()
        for index in found.partitions
        if (name, index) not in unavailable
    ]
    rows = [
        txn[: len(HANGING_COLUMNS)]
        for transactions in open_transactions(admin, served).values()
        for txn in transactions
        if txn.open_ms >= older_than_ms and not _is_coordinated(admin, txn)
    ]
    print_rows("hanging transactions", HANGING_COLUMNS, rows, as_json=as_json)


def _is_coordinated(admin: Admin, txn: OpenInPartition) -> bool:
    if txn.transactional_id is None:
        return False
    known = admin.transactions.describe(txn.transactional_id)
    return (txn.topic, txn.partition) in known.partitions


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
    broker: CommandBroker,
) -> None:
    """Abort an open transaction and fence its producer, or abort a hanging transaction by topic, partition and start
    offset.
    """
    admin = broker.admin()
    if transactional_id is not None:
        admin.transactions.abort(transactional_id)
        message = f"aborted the transaction of {transactional_id}"
        print_done(message, as_json=as_json, transactional_id=transactional_id)
    elif topic is not None and partition is not None and start_offset is not None:
        known_topic(admin, topic)
        admin.transactions.abort_hanging(topic, partition, start_offset)
        message = f"aborted the transaction at {topic}-{partition}@{start_offset}"
        print_done(message, as_json=as_json, topic=topic, partition=partition)
    else:
        fail(
            "nothing to abort: give a transactional id, or --topic, --partition and --start-offset of a hanging transaction"
        )
