"""The tables of the commands, of their settings by Kafka's names, and of the escapes of `consume --format`."""

import re
from collections.abc import Iterator

from typer.main import get_command

from stablelog.cli.client_settings import EVERY, SETTINGS
from stablelog.cli.commands import app
from stablelog.cli.record_format import FIELDS
from tests.reference_tables import table

SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")


def commands(command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each command of the command line: its words and arguments, and the first sentence of its help."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    for name in names:
        yield from commands(command.get_command(None, name), (*path, name))
    if not names:
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        words = [one.make_metavar(None).strip("[]").upper() for one in arguments]
        yield f"`stablelog {' '.join((*path, *words))}`", SENTENCE.split(" ".join(command.help.split()))[0]


def tables() -> dict[str, str]:
    settings = (
        (
            f"`{name}`",
            "all" if one.kinds == EVERY else ", ".join(f"`{kind}`" for kind in one.kinds),
            one.meaning,
        )
        for name, one in SETTINGS.items()
    )
    escapes = ((f"`%{name}`", field.meaning) for name, field in FIELDS.items())
    return {
        "commands": table(("command", "what it does"), commands(get_command(app))),
        "command-settings": table(("setting", "commands", "meaning"), settings),
        "format-escapes": table(("escape", "what it writes"), escapes),
    }
