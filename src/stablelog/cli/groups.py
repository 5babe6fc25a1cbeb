"""`stablelog groups`: list, describe and delete consumer groups."""

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError

from stablelog.cli.admin import administer, end_offsets
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.options import AsJson, command_app
from stablelog.cli.output import as_objects, counted, done, fail, print_json, print_table, show
from stablelog.cli.partition_watch import unavailable_partitions

app = command_app("List, describe and delete consumer groups.")


@app.command("list")
@with_broker
def list_groups(as_json: AsJson = False, *, broker: Broker) -> None:
    """List the consumer groups."""
    bootstrap = broker.reach()
    listed = administer(bootstrap, lambda admin: admin.list_consumer_groups(), "listing groups")
    rows = sorted((group.group_id, group.state.name.lower() if group.state else "") for group in listed.valid)
    show("groups", ("group", "state"), rows, as_json=as_json)


@app.command()
@with_broker
def describe(group: str, as_json: AsJson = False, *, broker: Broker) -> None:
    """Show the members, offsets and lag of a group. The lag counts the records before the last stable offset."""
    bootstrap = broker.reach()
    described = administer(
        bootstrap, lambda admin: admin.describe_consumer_groups([group])[group], f"group {group}"
    )
    wanted = [ConsumerGroupTopicPartitions(group)]
    committed = administer(
        bootstrap, lambda admin: admin.list_consumer_group_offsets(wanted)[group], f"offsets of {group}"
    ).topic_partitions
    if described.state.name == "DEAD" and not committed:
        fail(f"there is no group {group!r}")
    owners = {
        (at.topic, at.partition): member
        for member in described.members
        for at in member.assignment.topic_partitions
    }
    offsets = {(at.topic, at.partition): at.offset for at in committed if at.offset >= 0}
    targets = sorted({(at.topic, at.partition) for at in committed} | owners.keys())
    unavailable = unavailable_partitions(bootstrap, {topic for topic, _ in targets})
    served = [target for target in targets if target not in unavailable]
    ends = end_offsets(bootstrap, served, "read_committed")
    rows = []
    for target in targets:
        start, end = ends.get(target, (None, None))
        offset, member = offsets.get(target), owners.get(target)
        read_to = start if offset is None else offset
        lag = None if read_to is None or end is None else max(end - read_to, 0)
        client, host = (member.client_id, member.host) if member else ("", "")
        rows.append((*target, offset, end, lag, client, host, unavailable.get(target)))
    columns = ("topic", "partition", "offset", "end", "lag", "client", "host", "unavailable")
    state, count = described.state.name.lower(), len(described.members)
    if as_json:
        print_json(
            {"group": group, "state": state, "members": count, "partitions": as_objects(columns, rows)}
        )
    else:
        print_table(f"group {group}, {state}, {counted(count, 'member')}", columns, rows)


@app.command()
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
            KafkaError.NON_EMPTY_GROUP: f"group {group!r} has members: stop them first",
        },
    )
    done(f"deleted {group}", as_json=as_json, group=group)
