"""`stablelog config`: show the settings of the broker and of topics."""

from typing import Annotated, Final

import typer
from confluent_kafka.admin import ResourceType

from stablelog.cli.admin import cluster, configs_of, known_topic
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import as_objects, print_json, print_table

# The sources of a setting in DescribeConfigs.
SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default",
    4: "static broker",
    5: "default",
}

app = command_app("Show the settings of the broker and of topics.")


# Without a callback, typer would make `show`, the only command of this group, the group itself.
@app.callback()
def _every_command() -> None:
    pass


@app.command(epilog=examples("stablelog config show --changed", "stablelog config show --topic orders"))
@with_broker
def show(
    topic: Annotated[
        str | None, typer.Option(help="Show the settings of this topic, not of the broker.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Leave out settings with their default.")
    ] = False,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Show the settings of the broker or of a topic, each with its source."""
    bootstrap = broker.reach()
    if topic is None:
        name, kind = str(min(cluster(bootstrap).brokers)), ResourceType.BROKER
        what = f"broker {name}"
    else:
        known_topic(bootstrap, topic)
        name, kind, what = topic, ResourceType.TOPIC, f"topic {topic}"
    entries = configs_of(bootstrap, kind, name, f"settings of {what}")
    rows = sorted(
        (entry.name, entry.value, SOURCES.get(entry.source, "unknown"))
        for entry in entries.values()
        if not changed or SOURCES.get(entry.source) != "default"
    )
    columns = ("setting", "value", "source")
    if as_json:
        print_json({"topic": topic, "settings": as_objects(columns, rows)})
    else:
        print_table(f"settings of {what}", columns, rows)
