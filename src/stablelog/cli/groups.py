"""`stablelog groups`: list, describe, reset and delete consumer groups."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from stablelog.cli.admin import administer, chosen_partitions, end_offsets
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.disk_watch import say
from stablelog.cli.offsets import FORMS, Found, OffsetSpec, find_offsets, parse_offset
from stablelog.cli.options import AsJson, Execute, Partitions, command_app, examples
from stablelog.cli.output import as_objects, counted, done, fail, print_json, print_table, show, show_plan
from stablelog.cli.partition_watch import unavailable_partitions
from stablelog.types import TopicPartition

HAS_MEMBERS: Final = "group {group!r} has members: stop them first"
IN_USE: Final = (
    "group {group!r} is in use: it has members, or an open transaction that commits offsets of the group. Stop the members "
    "(`stablelog groups describe` shows them), or end the transaction (`stablelog transactions list`)"
)

app = command_app("List, describe, reset and delete consumer groups.")


@app.command("list", epilog=examples("stablelog groups list"))
@with_broker
def list_groups(as_json: AsJson = False, *, broker: Broker) -> None:
    """List the groups, with their kind and state."""
    bootstrap = broker.reach()
    listed = administer(bootstrap, lambda admin: admin.list_consumer_groups(), "listing groups")
    rows = sorted((group.group_id, _word(group.type), _word(group.state)) for group in listed.valid)
    show("groups", ("group", "kind", "state"), rows, as_json=as_json)


def _word(value: Any) -> str:
    """Return the name of a kind or a state in lower case; empty if there is none."""
    return value.name.lower() if value is not None else ""


def _describe(bootstrap: str, group: str) -> Any:
    return administer(
        bootstrap, lambda admin: admin.describe_consumer_groups([group])[group], f"group {group}"
    )


def _committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed."""
    wanted = [ConsumerGroupTopicPartitions(group)]
    found = administer(
        bootstrap, lambda admin: admin.list_consumer_group_offsets(wanted)[group], f"offsets of {group}"
    )
    return {(at.topic, at.partition): at.offset for at in found.topic_partitions if at.offset >= 0}


@app.command(epilog=examples("stablelog groups describe billing"))
@with_broker
def describe(group: str, as_json: AsJson = False, *, broker: Broker) -> None:
    """Show the members, offsets and lag of a group. The lag counts the records before the last stable offset."""
    bootstrap = broker.reach()
    described = _describe(bootstrap, group)
    committed = _committed(bootstrap, group)
    if described.state.name == "DEAD" and not committed:
        fail(f"there is no group {group!r}")
    owners = {
        (at.topic, at.partition): member
        for member in described.members
        for at in member.assignment.topic_partitions
    }
    targets = sorted(committed.keys() | owners.keys())
    unavailable = unavailable_partitions(bootstrap, {topic for topic, _ in targets})
    served = [target for target in targets if target not in unavailable]
    ends = end_offsets(bootstrap, served, "read_committed")
    rows = []
    for target in targets:
        start, end = ends.get(target, (None, None))
        offset, member = committed.get(target), owners.get(target)
        read_to = start if offset is None else offset
        lag = None if read_to is None or end is None else max(end - read_to, 0)
        client, host = (member.client_id, member.host) if member else ("", "")
        rows.append((*target, offset, end, lag, client, host, unavailable.get(target)))
    columns = ("topic", "partition", "offset", "end", "lag", "client", "host", "unavailable")
    state, kind, count = _word(described.state), _word(described.type), len(described.members)
    if as_json:
        print_json(
            {
                "group": group,
                "kind": kind,
                "state": state,
                "members": count,
                "partitions": as_objects(columns, rows),
            }
        )
    else:
        print_table(f"{kind} group {group}, {state}, {counted(count, 'member')}", columns, rows)


@app.command(
    epilog=examples(
        "stablelog groups reset billing --to earliest",
        "stablelog groups reset billing --shift -100 --topic orders --execute",
    )
)
@with_broker
def reset(
    group: str,
    to: Annotated[str | None, typer.Option(help=f"The new offset: {FORMS}.")] = None,
    shift: Annotated[
        int | None, typer.Option(metavar="N", help="Move the offsets by N; back if N is negative.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            help="Only this topic, with all its partitions (default: the partitions with committed offsets). "
            "The option may be repeated.",
        ),
    ] = None,
    partitions: Partitions = None,
    execute: Execute = False,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Set the committed offsets of a group that has no members. Without --execute, only show the new offsets."""
    if (to is None) == (shift is None):
        fail("the new offsets are missing or ambiguous: give either --to or --shift")
    if partitions and len(topics or ()) != 1:
        fail("--partition needs one --topic")
    spec = parse_offset(to, "--to") if to is not None else None
    bootstrap = broker.reach()
    if _describe(bootstrap, group).members:
        fail(HAS_MEMBERS.format(group=group))
    committed = _committed(bootstrap, group)
    targets = sorted(
        [(topic, index) for topic in topics for index in chosen_partitions(bootstrap, topic, partitions)]
        if topics
        else committed
    )
    if shift is not None:
        targets = [target for target in targets if target in committed]
    if not targets:
        fail(f"group {group!r} has no committed offsets there: name its topics with --topic, and use --to")
    unavailable = unavailable_partitions(bootstrap, {topic for topic, _ in targets})
    served = [target for target in targets if target not in unavailable]
    found = find_offsets(bootstrap, spec or OffsetSpec("earliest"), served, "read_committed")
    new = {
        target: _shifted(at, committed[target] + shift) if shift is not None else at.offset
        for target, at in found.items()
    }
    for (topic, index), at in found.items():
        if spec is not None and spec.kind == "offset" and at.offset != spec.value:
            say(f"{topic}-{index} has no offset {spec.value}: its offsets are {at.start} to {at.end}")
    if execute and new:
        _commit(bootstrap, group, new)
    rows = [(*target, committed.get(target), new.get(target), unavailable.get(target)) for target in targets]
    columns = ("topic", "partition", "offset", "new offset", "unavailable")
    title = f"new offsets of group {group}"
    show_plan(title, columns, rows, is_executed=execute, as_json=as_json, group=group)


def _shifted(found: Found, offset: int) -> int:
    """Limit an offset to those of the partition."""
    return max(min(offset, found.end), found.start)


def _commit(bootstrap: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members.

    Raises:
        UnavailableError: an offset was not committed.
    """
    wanted = [
        ConsumerGroupTopicPartitions(
            group, [KafkaPartition(*target, offset) for target, offset in offsets.items()]
        )
    ]
    committed = administer(
        bootstrap, lambda admin: admin.alter_consumer_group_offsets(wanted)[group], f"offsets of {group}"
    )
    for at in committed.topic_partitions:
        if at.error is not None and at.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
            fail(HAS_MEMBERS.format(group=group))  # a member has joined since the group was described
        if at.error is not None:
            fail(f"the offset of {at.topic}-{at.partition} was not committed: {at.error.str()}")


@app.command(epilog=examples("stablelog groups delete billing"))
@with_broker
def delete(group: str, as_json: AsJson = False, *, broker: Broker) -> None:
    """Delete a group that has no members."""
    bootstrap = broker.reach()
    administer(
        bootstrap,
        lambda admin: admin.delete_consumer_groups([group])[group],
        f"deleting {group}",
        {
            KafkaError.GROUP_ID_NOT_FOUND: f"there is no group {group!r}",
            KafkaError.NON_EMPTY_GROUP: IN_USE.format(group=group),
        },
    )
    done(f"deleted {group}", as_json=as_json, group=group)
