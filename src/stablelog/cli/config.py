"""`stablelog config`: show the settings of the broker and of topics."""

from typing import Annotated, Final

import typer

from stablelog.cli.admin import known_topic
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import as_objects, print_json, print_table
from stablelog.client.core.admin.configs import ConfigSource

# The sources of a setting, in words.
SOURCES: Final = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "dynamic broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "dynamic default",
    ConfigSource.STATIC_BROKER: "static broker",
    ConfigSource.DEFAULT: "default",
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
    broker: CommandBroker,
) -> None:
    """Show the settings of the broker or of a topic, each with its source."""
    admin = broker.admin()
    if topic is None:
        name = str(min(admin.brokers.list()))
        what = f"broker {name}"
        found = admin.configs.describe("broker", name)
    else:
        known_topic(admin, topic)
        what = f"topic {topic}"
        found = admin.configs.describe("topic", topic)
    rows = sorted(
        (config.name, config.value, SOURCES.get(config.source, "unknown"))
        for config in found.values()
        if not changed or config.source is not ConfigSource.DEFAULT
    )
    columns = ("setting", "value", "source")
    if as_json:
        print_json({"topic": topic, "settings": as_objects(columns, rows)})
    else:
        print_table(f"settings of {what}", columns, rows)
