"""The table of the commands: their help, their options, and what else a user of a command relies on."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from stablelog.cli.commands import app
from tests.reference_tables import table

# Every command that talks to a broker has these options. The page describes them once.
SHARED = {"--json", "--bootstrap", "--profile", "--timeout", "--command-config", "-X", "--help"}
# What the help of an option says, or a section of another page, and a user of the command relies on.
MORE = {
    "topics describe": "The state of a partition is `online`, `offline` or `opening`, with the reason.",
    "topics alter": "`--config name=` removes a setting.",
    "topics trim": "See [Show and execute](#show-and-execute).",
    "produce": "See [Write records](#write-records).",
    "consume": "See [Read records](#read-records). The command checks the CRC of each batch, names unavailable partitions "
    "on stderr, and reads the others. If partitions stay offline or damaged for 30 s, the exit code is 2.",
    "cut": "The topics are commit-ordered topics of one transaction group. `--at`: the cut at this commit sequence, and not "
    "the last one.",
    "groups list": "The kind is consumer with `group.protocol=consumer`, and classic otherwise.",
    "groups describe": "An unavailable partition has no end and no lag.",
    "groups reset": "See [Show and execute](#show-and-execute).",
    "config show": "The sources are `topic`, `dynamic broker`, `dynamic default`, `static broker` (command line or file) and "
    "`default`.",
    "acls list": "See [ACLs](#acls).",
    "users list": "See [Log in](../guides/secure.md#log-in).",
    "quotas list": "See [Quotas](../guides/secure.md#quotas).",
    "transactions list": "Each id has its transaction group and its joint commit.",
    "transactions find-hanging": "The default age is 15 minutes. Unavailable partitions are named on stderr.",
    "inspect": "`--records` decodes those of the commit logs and of `__consumer_offsets`.",
    "verify": "For a data directory, it also names missing files and partitions.",
    "repair": "See [Repair a data directory](../guides/troubleshoot.md#repair-a-data-directory).",
    "storage check": "See [Object stores](stores.md).",
    "storage clean": "`--older-than-days` is 7 by default, by the clock of the store.",
    "restore": "See [Restore a broker from the store](../guides/back-up.md#restore-a-broker-from-the-store).",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command of the command line: its words, and how it is declared."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    if not names:
        yield " ".join(path), command
    for name in names:
        yield from commands(command.get_command(None, name), (*path, name))


COMMANDS: dict[str, Any] = dict(commands(get_command(app)))


def row(words: str, command: Any) -> tuple[str, str, str]:
    """The command with its arguments, what it does, and its own options."""
    arguments = [one.name.upper() for one in command.params if one.param_type_name == "argument"]
    options = [
        f"`{one.opts[0]}`"
        for one in command.params
        if one.param_type_name == "option" and not SHARED & set(one.opts)
    ]
    name = " ".join(["stablelog", words, *arguments])
    return f"`{name}`", " ".join(f"{command.help} {MORE.get(words, '')}".split()), ", ".join(options)


def tables() -> dict[str, str]:
    assert MORE.keys() <= COMMANDS.keys()
    rows = [row(words, command) for words, command in COMMANDS.items()]
    return {"commands": table(("command", "what it does", "options"), rows)}
