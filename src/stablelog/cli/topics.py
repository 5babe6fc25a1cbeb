"""`stablelog topics`: create, list, describe, alter, trim and delete topics."""

from collections import Counter
from typing import Annotated

import typer

from stablelog.cli.admin import chosen_partitions, end_offsets, held_back, known_topic, start_and_end
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.leaders import state_of, without_leader
from stablelog.cli.offsets import FORMS, find_offsets, parse_offset
from stablelog.cli.options import PAIR, AsJson, Execute, Partitions, command_app, examples
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
from stablelog.cli.pairs import split_pair
from stablelog.client.core.admin.configs import ConfigSource

PARTITIONS_MAX = 100_000

app = command_app("Create, list, describe, alter, trim and delete topics.")


@app.command(
    epilog=examples(
        "stablelog topics create orders --partitions 4",
        "stablelog topics create paid --config stablelog.order=commit --config stablelog.group=payments",
    )
)
@with_broker
def create(
    name: str,
    partitions: Annotated[
        int,
        typer.Option(
            min=-1, max=PARTITIONS_MAX, help="The number of partitions; -1 for the default of the broker."
        ),
    ] = -1,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", metavar=PAIR, help="A setting, name=value. The option may be repeated."),
    ] = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Create a topic."""
    admin = broker.admin()
    admin.topics.create(name, partitions=partitions, configs=dict(map(split_pair, configs or ())))
    count = len(known_topic(admin, name).partitions)
    print_done(
        f"created {name} with {counted(count, 'partition')}", as_json=as_json, topic=name, partitions=count
    )


@app.command("list", epilog=examples("stablelog topics list --internal"))
@with_broker
def list_topics(
    internal: Annotated[bool, typer.Option(help="List the internal topics of the broker, too.")] = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """List the topics, and how many of their partitions are offline or not open yet."""
    topics = broker.admin().topics.list(internal=internal)
    listed = {name: len(topic.partitions) for name, topic in topics.items()}
    states = Counter((name, state_of(why)) for (name, _), why in without_leader(topics, listed).items())
    rows = [
        (name, count, states[name, "offline"], states[name, "opening"])
        for name, count in sorted(listed.items())
    ]
    print_rows("topics", ("topic", "partitions", "offline", "opening"), rows, as_json=as_json)


@app.command(epilog=examples("stablelog topics describe orders"))
@with_broker
def describe(name: str, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """Show the settings and partitions of a topic: offsets, and the oldest open transaction, which limits the last
    stable offset. `held back` is the number of offsets from there to the high watermark; readers of a commit-ordered
    topic wait for no transaction, so it is 0 there.
    """
    from stablelog.cli.transactions import held_by, open_transactions  # only here: the import takes long

    admin = broker.admin()
    topic = known_topic(admin, name)
    partitions = [(name, index) for index in sorted(topic.partitions)]
    unavailable = without_leader({name: topic}, [name])
    served = [target for target in partitions if target not in unavailable]
    marks = start_and_end(admin, served, "read_uncommitted")
    stable = end_offsets(admin, served, "read_committed")
    waiting = held_back(admin, {target: end for target, (_, end) in marks.items()}, stable)
    open_txns = open_transactions(admin, served)
    found = admin.configs.describe("topic", name)
    rows: list[tuple[object, ...]] = []
    for target in partitions:
        if target in unavailable:
            why = unavailable[target]
            rows.append((target[1], state_of(why), None, None, None, None, None, why))
            continue
        start, high_watermark = marks[target]
        last_stable = stable[target]
        holder = held_by(open_txns.get(target, ()))
        rows.append(
            (target[1], state_of(None), start, last_stable, high_watermark, waiting[target], holder, None)
        )
    configs = {config.name: config.value for config in found.values() if config.source is ConfigSource.TOPIC}
    columns = (
        "partition",
        "state",
        "start",
        "last stable",
        "high watermark",
        "held back",
        "held by",
        "unavailable",
    )
    if as_json:
        print_json({"topic": name, "configs": configs, "partitions": as_objects(columns, rows)})
        return
    print_table(f"topic {name}", columns, rows)
    print_table("settings of its own", ("setting", "value"), sorted(configs.items()))


@app.command(
    epilog=examples(
        "stablelog topics alter orders --config retention.ms=86400000",
        "stablelog topics alter orders --partitions 8",
    )
)
@with_broker
def alter(
    name: str,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", metavar=PAIR, help="A setting, name=value; name= removes the setting."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=PARTITIONS_MAX, help="The new number of partitions, greater than the old one."
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Change the settings of a topic, or add partitions."""
    if not configs and partitions is None:
        fail(f"nothing to change of {name}: give --config name=value or --partitions")
    admin = broker.admin()
    known_topic(admin, name)
    if configs:
        changes = {key: value or None for key, value in map(split_pair, configs)}
        admin.configs.alter("topic", name, changes)
    if partitions is not None:
        admin.topics.add_partitions(name, partitions)
    print_done(f"altered {name}", as_json=as_json, topic=name)


@app.command(
    epilog=examples(
        "stablelog topics trim orders --before @2026-01-31T12:00:00Z",
        "stablelog topics trim orders --before 1000 --partition 0 --execute",
    )
)
@with_broker
def trim(
    name: str,
    before: Annotated[str, typer.Option(help=f"Delete the records before this offset: {FORMS}.")],
    partitions: Partitions = None,
    execute: Execute = False,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Delete the records of a topic before an offset or a time. Without --execute, only show what would be deleted."""
    spec = parse_offset(before, "--before")
    admin = broker.admin()
    topic = known_topic(admin, name)
    targets = [(name, index) for index in chosen_partitions(topic, partitions)]
    unavailable = without_leader({name: topic}, [name])
    served = [target for target in targets if target not in unavailable]
    found = find_offsets(admin, spec, served, "read_committed")
    wanted = {target: at.offset for target, at in found.items() if at.offset > at.start}
    if execute and wanted:
        admin.topics.delete_records(wanted)
    rows: list[tuple[object, ...]] = []
    for target in targets:
        if target in unavailable:
            rows.append((target[1], None, None, None, unavailable[target]))
        else:
            at = found[target]
            rows.append((target[1], at.start, at.offset, at.offset - at.start, None))
    columns = ("partition", "start", "new start", "deleted offsets", "unavailable")
    title = f"{'deleted' if execute else 'to delete'} from {name}"
    print_plan(title, columns, rows, is_executed=execute, as_json=as_json, topic=name)


@app.command(epilog=examples("stablelog topics delete orders"))
@with_broker
def delete(name: str, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """Delete a topic and all its records."""
    admin = broker.admin()
    known_topic(admin, name)
    admin.topics.delete(name)
    print_done(f"deleted {name}", as_json=as_json, topic=name)
