"""`stablelog consume`: print the records of a topic."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stablelog.cli.admin import chosen_partitions, end_offsets, held_back, topic_of_records
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.disk_watch import WaitReporter, disk_watch, print_to_stderr
from stablelog.cli.leaders import without_leader
from stablelog.cli.offsets import FORMS, OffsetSpec, find_offsets, parse_offset
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.options import Partitions as PartitionNumbers
from stablelog.cli.output import counted, fail
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.cli.record_format import FIELDS, Render, parse_format, render_json, render_plain
from stablelog.cli.record_reader import ChosenPartitions, GroupPartitions, RecordPrinter
from stablelog.client.blocking.admin import Admin
from stablelog.client.blocking.cluster import EARLIEST
from stablelog.client.core.group_reading import STARTS
from stablelog.client.core.membership import GroupMember
from stablelog.client.core.record_reader import RecordReader
from stablelog.client.topics import TopicDescription
from stablelog.errors import StablelogError
from stablelog.types import TopicPartition

app = command_app()


class OneTopicCommand(TyperCommand):
    """A command that reads one topic. It says what to do if several are given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line. If they name more than one topic, end the command with a message."""
        ctx.allow_extra_args = True
        left: list[str] = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            ctx.fail(
                f"unexpected {' '.join(left)}: consume prints one topic, so call it for each. `stablelog cut` shows up "
                "to which offsets several topics have the same commits"
            )
        return left


@app.command(
    cls=OneTopicCommand,
    epilog=examples(
        "stablelog consume orders --offset -10 --format '%p %o %T %k %v\\n'",
        "stablelog consume orders --offset @2026-01-31T12:00:00Z --count 100 --json",
        "stablelog consume orders --group billing --follow",
    ),
)
@with_broker
def consume(
    topic: str,
    isolation: Annotated[
        str | None, typer.Option(help="read_committed (default) or read_uncommitted.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--offset", "-o", help=f"Where to begin (default earliest): {FORMS}.")
    ] = None,
    partitions: PartitionNumbers = None,
    count_max: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this number of records.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit the offsets.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--exit", " /-e", help="At the end, wait for new records, or exit.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="The form of a record: "
            + ", ".join(f"%{name} {field.meaning}" for name, field in FIELDS.items())
            + "; \\n \\r \\t \\0 \\xNN.",
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Print the records of a topic up to its end. With --follow, wait for new records at the end."""
    given = broker.settings
    isolation = given.get("isolation.level", "read_committed") if isolation is None else isolation
    start = given.get("auto.offset.reset", "earliest") if start is None else start
    instance_id = given.get("group.instance.id")
    if instance_id is not None and group is None:
        fail("group.instance.id has no effect without --group: name a group, or leave it out")
    spec = _check(isolation, start, partitions, group)
    render = _render(form, as_json=as_json)
    admin, bootstrap = broker.admin(), broker.reach()
    found = topic_of_records(admin, topic)
    chosen = chosen_partitions(found, partitions)
    places = _places(admin, found, chosen, spec, isolation) if group is None else {}
    begin = {index: at for (_, index), at in places.items() if at >= 0 or at == EARLIEST}
    watch = PartitionWatch(bootstrap, topic, chosen if group is None else (), begin, isolation)
    with broker.cluster() as cluster:
        records = RecordReader(cluster.core, places, isolation)
        if group is None:
            reader = RecordPrinter(ChosenPartitions(cluster, records), watch, render, follow=follow)
            with watch, _stopped_by_signals(reader):
                reader.print_records(count_max)
            if isolation == "read_committed" and count_max is None and not reader.is_stopped:
                _report_held_back(admin, found, chosen)
            return
        member = GroupPartitions(
            cluster,
            records,
            GroupMember(cluster.core, group, [topic], instance_id=instance_id),
            STARTS[spec.kind],
        )
        reader = RecordPrinter(member, watch, render, follow=follow)
        with watch, _joining(bootstrap, group, member), _stopped_by_signals(reader):
            try:
                reader.print_records(count_max)
            finally:
                member.leave_group()


def _report_held_back(admin: Admin, found: TopicDescription, partitions: Sequence[int]) -> None:
    """Write to stderr how many offsets at the end of the chosen partitions wait for the end of a transaction, if any do:
    without this line, the topic looks as if it had no such records.
    """
    topic = found.name
    unavailable = without_leader({topic: found}, [topic])
    served = [(topic, index) for index in partitions if (topic, index) not in unavailable]
    with contextlib.suppress(StablelogError):  # All records are printed; this is advice only.
        ends = end_offsets(admin, served, "read_uncommitted")
        waiting = held_back(admin, ends, end_offsets(admin, served, "read_committed"))
        count = sum(one or 0 for one in waiting.values())
        if count > 0:
            print_to_stderr(
                f"an open transaction holds back {counted(count, 'offset')} at the end of {topic}: "
                f"'stablelog topics describe {topic}' names it"
            )


def _check(isolation: str, start: str, partitions: Sequence[int] | None, group: str | None) -> OffsetSpec:
    """Check the options of the command. Return the parsed form of the offset at which to begin.

    Args:
        isolation: the isolation level.
        start: where to begin.
        partitions: the chosen partitions; None for all.
        group: the consumer group as whose member to read; None for none.

    Raises:
        UnavailableError: an option is not valid.
    """
    if isolation not in ("read_committed", "read_uncommitted"):
        fail(f"--isolation {isolation} is not valid: read_committed or read_uncommitted")
    spec = parse_offset(start, "--offset")
    if group is None:
        return spec
    if group == "":
        fail("--group '' is not valid: the name of a group has one character or more")
    if spec.kind not in STARTS:
        fail(
            f"--offset {start} is not valid with --group: a group continues at its committed offsets; earliest or "
            "latest say where a new group begins"
        )
    if partitions:
        fail("--partition is not valid with --group: the group assigns the partitions to its members")
    return spec


def _render(form: str | None, *, as_json: bool) -> Render:
    """Return the function that turns a record into the bytes to print: with the format `form` of the option --format,
    as JSON if `as_json` is true, or else as key and value.
    """
    if form is None:
        return render_json if as_json else render_plain
    if as_json:
        fail("--format is not valid with --json: choose one of them")
    return parse_format(form)


@contextlib.contextmanager
def _stopped_by_signals(reader: RecordPrinter) -> Iterator[None]:
    """Context in which SIGINT and SIGTERM stop the reader, after it has printed the present record. A second signal
    ends the command at once. The context has no value.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can have signal handlers
        return

    def stop(_number: int, _frame: object) -> None:
        if reader.is_stopped:
            raise KeyboardInterrupt
        reader.is_stopped = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _joining(bootstrap: str, group: str, member: GroupPartitions) -> WaitReporter:
    """Return a reporter for the time in which the command joins its group: it writes a message to stderr if the command
    has to wait because the broker's disk is full, so that it accepts no members.
    """
    return disk_watch(
        bootstrap,
        lambda: not member.positions(),
        f"group {group} may accept no members until the disk has space",
        f"group {group} is joined",
    )


def _places(
    admin: Admin, found: TopicDescription, partitions: list[int], spec: OffsetSpec, isolation: str
) -> dict[TopicPartition, int]:
    """Return the offset in each partition at which to begin to read.

    Args:
        admin: administers the cluster.
        found: the topic.
        partitions: the numbers of the partitions.
        spec: the offset that the user has chosen, such as "earliest" or a number.
        isolation: read_committed or read_uncommitted, which decides where a partition ends.

    Returns:
        For each partition the offset that `spec` stands for, but at most the end of the partition. A negative number
        stands for the start or the end of the partition, whose offset the reader finds itself.

    Raises:
        UnavailableError: the offset is past the end of all partitions, or a partition has no leader that could find it.
    """
    topic = found.name
    if spec.kind in STARTS:  # the reader finds it itself, also later in a partition that has no leader now
        return {(topic, index): STARTS[spec.kind] for index in partitions}
    unavailable = without_leader({topic: found}, [topic])
    served = [(topic, index) for index in partitions if (topic, index) not in unavailable]
    missing = [index for index in partitions if (topic, index) in unavailable]
    if missing and spec.kind != "offset":
        why = unavailable[topic, missing[0]]
        fail(
            f"--offset cannot be found in {topic}-{missing[0]}, which is {why}. Name other partitions with --partition"
        )
    offsets = find_offsets(admin, spec, served, isolation)
    end_max = max((at.end for at in offsets.values()), default=0)
    if spec.kind == "offset" and spec.value > end_max and not missing:
        fail(f"--offset {spec.value} is not valid: {topic} ends at offset {end_max}")
    places = {target: at.offset for target, at in offsets.items()}
    return places | {(topic, index): spec.value for index in missing}
