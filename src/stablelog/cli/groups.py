"""`stablelog groups`: list, describe and delete consumer groups."""

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError

from stablelog.cli.admin import admin_client, ask, end_offsets
from stablelog.cli.output import counted, done, fail, print_json, print_table, show
from stablelog.cli.partition_watch import unavailable_partitions


def list_groups(bootstrap: str, *, as_json: bool) -> None:
    """List the groups."""
    admin = admin_client(bootstrap)
    listed = ask(bootstrap, admin.list_consumer_groups, "listing groups")
    rows = sorted((group.group_id, group.state.name.lower() if group.state else "") for group in listed.valid)
    show("groups", ("group", "state"), rows, as_json=as_json)


def describe(bootstrap: str, group: str, *, as_json: bool) -> None:
    """Show a group's members, offsets and lag. The lag counts up to the end that read-committed members see."""
    admin = admin_client(bootstrap)
    described = ask(bootstrap, lambda: admin.describe_consumer_groups([group])[group], f"group {group}")
    committed = ask(
        bootstrap,
        lambda: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group],
        f"offsets of {group}",
    ).topic_partitions
    if described.state.name == "DEAD" and not committed:
        fail(f"there is no group {group!r}")
    owners = {
        (at.topic, at.partition): member
        for member in described.members
        for at in member.assignment.topic_partitions
    }
    targets = sorted({(at.topic, at.partition) for at in committed} | set(owners))
    offsets = {(at.topic, at.partition): at.offset for at in committed}
    unavailable = unavailable_partitions(bootstrap, {topic for topic, _ in targets})
    served = [target for target in targets if target not in unavailable]
    ends = end_offsets(bootstrap, served, "read_committed")
    rows = []
    for target in targets:
        offset = offsets.get(target, -1)
        start, end = ends.get(target, (None, None))
        member = owners.get(target)
        lag = None if start is None or end is None else max(end - (offset if offset >= 0 else start), 0)
        rows.append(
            (
                *target,
                offset if offset >= 0 else None,
                end,
                lag,
                member.client_id if member else "",
                member.host if member else "",
                unavailable.get(target),
            )
        )
    columns = ("topic", "partition", "offset", "end", "lag", "client", "host", "unavailable")
    if as_json:
        print_json(
            {
                "group": group,
                "state": described.state.name.lower(),
                "members": len(described.members),
                "partitions": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
        return
    print_table(
        f"group {group}, {described.state.name.lower()}, {counted(len(described.members), 'member')}",
        columns,
        rows,
    )


def delete(bootstrap: str, group: str, *, as_json: bool) -> None:
    """Delete a group."""
    admin = admin_client(bootstrap)
    ask(
        bootstrap,
        lambda: admin.delete_consumer_groups([group])[group],
        f"deleting {group}",
        {
            KafkaError.GROUP_ID_NOT_FOUND: f"there is no group {group!r}",
            KafkaError.NON_EMPTY_GROUP: f"group {group!r} has members: stop them first",
        },
    )
    done(f"deleted {group}", as_json=as_json, group=group)
