"""`stablelog groups`: list, describe, reset and delete consumer groups."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import typer
from kio.schema.errors import ErrorCode

from stablelog.cli.admin import (
    chosen_partitions,
    end_offsets,
    held_back,
    known_topic,
    start_and_end,
)
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.disk_watch import print_to_stderr
from stablelog.cli.lag import visible_end
from stablelog.cli.leaders import without_leader
from stablelog.cli.offsets import FORMS, OffsetSpec, ResolvedOffset, find_offsets, parse_offset
from stablelog.cli.options import AsJson, Execute, Partitions, command_app, examples
from stablelog.cli.output import (
    as_objects,
    counted,
    fail,
    print_done,
    print_json,
    print_plan,
    print_rows,
    print_table,
)
from stablelog.cli.transactions import held_by, open_transactions
from stablelog.client.blocking.admin import Admin
from stablelog.client.core.admin.groups import DEAD
from stablelog.errors import RefusedError, StablelogError
from stablelog.types import TopicPartition

HAS_MEMBERS: Final = "group {group!r} has members: stop them first"
IN_USE: Final = (
    "group {group!r} is in use: it has members, or an open transaction that commits offsets of the group. Stop the members "
    "(`stablelog groups describe` shows them), or end the transaction (`stablelog transactions list`)"
)

app = command_app("List, describe, reset and delete consumer groups.")


@app.command("list", epilog=examples("stablelog groups list"))
@with_broker
def list_groups(as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """List the groups, with their kind and state."""
    rows = [(group.group_id, group.group_type, _word(group.state)) for group in broker.admin().groups.list()]
    print_rows("groups", ("group", "kind", "state"), rows, as_json=as_json)


def _word(state: str) -> str:
    """Return Kafka's name of a group's state as one word in lower case: `preparing_rebalance` for
    `PreparingRebalance`.
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state).lower()


def _committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group."""
    return {target: at.offset for target, at in admin.groups.offsets(group).items()}


class Lag(NamedTuple):
    """The lag of a group in one partition.

    Attributes:
        end: the last stable offset.
        visible_end: the offset after the last record that a read-committed consumer can read.
        lag: the number of offsets from the committed offset to the visible end; below 0 if the committed offset is past
            the end of the partition.
        held_back: the number of offsets from the last stable offset to the high watermark; 0 in commit order, in which
            consumers wait for no transaction; None if the user may not know the order.
        held_by: the open transaction that limits the last stable offset; empty if there is none, or if the user may not
            describe it.
        unavailable: the reason why the partition cannot be read; the other fields are then None.
    """

    end: int | None = None
    visible_end: int | None = None
    lag: int | None = None
    held_back: int | None = None
    held_by: str | None = None
    unavailable: str | None = None


def _lags(
    admin: Admin,
    broker: CommandBroker,
    targets: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    unavailable: Mapping[TopicPartition, str],
) -> dict[TopicPartition, Lag]:
    """Return the lag of the group in each partition.

    Args:
        admin: administers the cluster.
        broker: the broker of the command.
        targets: the partitions.
        committed: the committed offsets of the group. The lag of a partition without one counts from its start.
        unavailable: the partitions that have no leader, each with the reason.
    """
    served = [target for target in targets if target not in unavailable]
    marks = start_and_end(admin, served, "read_uncommitted")
    stable = end_offsets(admin, served, "read_committed")
    holders: dict[TopicPartition, str] = {}
    waiting = held_back(admin, {target: end for target, (_, end) in marks.items()}, stable)
    held = [target for target, count in waiting.items() if count != 0]
    with contextlib.suppress(RefusedError):  # the user may not see the transactions
        holders = {target: held_by(found) for target, found in open_transactions(admin, held).items()}
    found = {target: Lag(unavailable=why) for target, why in unavailable.items() if target in targets}
    with broker.cluster() as client:
        for target in served:
            (start, high_watermark), end = marks[target], stable[target]
            position = committed.get(target, start)
            visible = end
            with contextlib.suppress(StablelogError):  # without the right to read, the markers count
                visible = visible_end(client, target, max(position, start), end)
            # A read-uncommitted consumer may be behind the last stable offset, and is not past the end.
            lag = max(visible - position, 0) if position <= high_watermark else high_watermark - position
            found[target] = Lag(end, visible, lag, waiting[target], holders.get(target, ""))
    return found


@app.command(epilog=examples("stablelog groups describe billing"))
@with_broker
def describe(group: str, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """Show the members, offsets and lag of a group, and what holds back its consumers. The lag ends at the last record
    that a read-committed consumer can read.
    """
    admin = broker.admin()
    described = admin.groups.describe(group)
    committed = _committed(admin, group)
    if described.state == DEAD and not committed:
        fail(f"there is no group {group!r}")
    owners = {target: member for member in described.members for target in member.partitions}
    topics = {topic for topic, _ in committed.keys() | owners.keys()}
    known = admin.topics.list(internal=True)
    targets = sorted(
        committed.keys()
        | owners.keys()
        | {(name, index) for name in topics & known.keys() for index in known[name].partitions}
    )
    # A topic that the user may not describe is not in the list, and may be there.
    unavailable = without_leader(known, topics)
    lags = _lags(admin, broker, targets, committed, unavailable)
    rows = []
    for target in targets:
        lag, member = lags[target], owners.get(target)
        # A partition that is held back from its first offset has no committed offset yet.
        if target not in committed and member is None and not lag.held_back:
            continue
        client, host = (member.client_id, member.host) if member else ("", "")
        rows.append((*target, committed.get(target), *lag[:-1], client, host, lag.unavailable))
    columns = (
        "topic",
        "partition",
        "offset",
        *(name.replace("_", " ") for name in Lag._fields[:-1]),
        "client",
        "host",
        "unavailable",
    )
    state, kind, count = _word(described.state), described.group_type, len(described.members)
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
    broker: CommandBroker,
) -> None:
    """Set the committed offsets of a group that has no members. Without --execute, only show the new offsets."""
    if (to is None) == (shift is None):
        fail("the new offsets are missing or ambiguous: give either --to or --shift")
    if partitions and len(topics or ()) != 1:
        fail("--partition needs one --topic")
    spec = parse_offset(to, "--to") if to is not None else None
    admin = broker.admin()
    if admin.groups.describe(group).members:
        fail(HAS_MEMBERS.format(group=group))
    committed = _committed(admin, group)
    known = {name: known_topic(admin, name) for name in topics or ()}
    targets = sorted(
        [(name, index) for name, topic in known.items() for index in chosen_partitions(topic, partitions)]
        if topics
        else committed
    )
    if shift is not None:
        targets = [target for target in targets if target in committed]
    if not targets:
        fail(f"group {group!r} has no committed offsets there: name its topics with --topic, and use --to")
    unavailable = without_leader(known or admin.topics.list(internal=True), {topic for topic, _ in targets})
    served = [target for target in targets if target not in unavailable]
    found = find_offsets(admin, spec or OffsetSpec("earliest"), served, "read_committed")
    new = {
        target: _shifted(at, committed[target] + shift) if shift is not None else at.offset
        for target, at in found.items()
    }
    for (topic, index), at in found.items():
        if spec is not None and spec.kind == "offset" and at.offset != spec.value:
            print_to_stderr(
                f"{topic}-{index} has no offset {spec.value}: its offsets are {at.start} to {at.end}"
            )
    if execute and new:
        _commit(admin, group, new)
    rows = [(*target, committed.get(target), new.get(target), unavailable.get(target)) for target in targets]
    columns = ("topic", "partition", "offset", "new offset", "unavailable")
    title = f"new offsets of group {group}"
    print_plan(title, columns, rows, is_executed=execute, as_json=as_json, group=group)


def _shifted(found: ResolvedOffset, offset: int) -> int:
    """Return the shifted offset of a group if it is between the start and the end of the partition (`found` has both);
    otherwise that one of these two which is nearer.
    """
    return max(min(offset, found.end), found.start)


def _commit(admin: Admin, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group that has no members.

    Raises:
        UnavailableError: an offset was not committed.
    """
    try:
        admin.groups.commit_offsets(group, offsets)
    except RefusedError as refused:
        if refused.code == ErrorCode.unknown_member_id:
            fail(HAS_MEMBERS.format(group=group))  # a member has joined since the group was described
        raise


@app.command(epilog=examples("stablelog groups delete billing"))
@with_broker
def delete(group: str, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """Delete a group that has no members."""
    try:
        broker.admin().groups.delete(group)
    except RefusedError as refused:
        if refused.code == ErrorCode.group_id_not_found:
            fail(f"there is no group {group!r}")
        if refused.code == ErrorCode.non_empty_group:
            fail(IN_USE.format(group=group))
        raise
    print_done(f"deleted {group}", as_json=as_json, group=group)
