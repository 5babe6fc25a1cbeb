"""All commands of the command line, by typer. The module of a command is imported only when the command runs or its help
is shown.
"""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from stablelog import __version__
from stablelog.cli.core_commands import CORE_COMMANDS, CoreCommand
from stablelog.cli.options import examples

# The commands with their own module, which has the command's name. The module's Typer app is `app`.
MODULES = (
    "topics",
    "produce",
    "consume",
    "groups",
    "config",
    "acls",
    "users",
    "quotas",
    "transactions",
    "cut",
    "inspect",
    "verify",
    "repair",
    "storage",
    "restore",
    "doctor",
)


def _listed(command: CoreCommand) -> TyperCommand:
    """Return a command of the core as typer shows it in the help and completes it."""
    options = [
        TyperOption(
            param_decls=[option.name, option.keyword],
            help=option.help,
            metavar=option.metavar or None,
            type=None if not option.metavar else option.parse,
            is_flag=not option.metavar,
            required=option.is_required,
            multiple=option.is_repeated,
        )
        for option in command.options
    ]
    return TyperCommand(
        command.name,
        params=[*options],
        callback=command.run,
        help=command.help,
        epilog=examples(command.example),
        rich_markup_mode=None,
    )


class Commands(TyperGroup):
    """The group of all commands: those of the core and those of MODULES. It imports the module of a command on demand."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update((name, _listed(command)) for name, command in CORE_COMMANDS.items())
        # Placeholders, which `get_command` replaces by the commands.
        self.commands.update((name, TyperCommand(name)) for name in MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. Import its module if it has its own."""
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        return typer.main.get_command(import_module(f"stablelog.cli.{cmd_name}").app)


app = typer.Typer(
    name="stablelog",
    cls=Commands,
    help="A transactional log that every Kafka client can use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"stablelog {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass
