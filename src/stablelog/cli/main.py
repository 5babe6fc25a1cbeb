"""The entry point of the command line. The module of a command is imported only when the command runs or its help is
shown.

An error is one line on stderr. docs/commands.md has a table of the exit codes.
"""

import contextlib
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from stablelog.cli.broker import NoBrokerError
from stablelog.cli.options import PAIR, AsJson, examples
from stablelog.cli.output import Output, OutputError
from stablelog.errors import StablelogError

FAILED, NO_BROKER = 2, 3
READER_GONE = 128 + signal.SIGPIPE
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
)


class Commands(TyperGroup):
    """The group of all commands: those of this module and those of MODULES. It imports the module of a command on
    demand.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
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
        from importlib.metadata import version  # imported here, because the import takes long

        sys.stdout.write(f"stablelog {version('stablelog')}\n")
        raise typer.Exit


# Without a callback, typer would make `serve`, the only command of this module, the whole program.
@app.callback()
def _every_command(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command(epilog=examples("stablelog serve --data data --set num.partitions=4"))
def serve(
    data: Annotated[
        Path, typer.Option(help="The data directory. The broker creates it if it does not exist.")
    ],
    host: Annotated[str | None, typer.Option(help="The host to listen on (default 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on (default 9092); 0 for a free port.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A file of settings, one name=value on each line.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar=PAIR, help="A setting, name=value. The option may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM stops it."""
    from stablelog.cli.serve import (
        run_serve,  # in a module without typer, because `stablelog.serve()` uses it, too
    )

    run_serve(data, host, port, config, settings or [], as_json=as_json)


def run() -> None:
    """Run the command line: the entry point of the program."""
    Output.install()
    try:
        _run_and_flush()
    except OutputError as failed:
        Output.discard()
        if failed.is_closed:
            sys.exit(READER_GONE)  # exit without a message, like a program that SIGPIPE ends
        _end(failed)


def _run_and_flush() -> None:
    try:
        app()
    except StablelogError as error:
        _end(error)
    finally:
        sys.stdout.flush()


def _end(error: Exception) -> NoReturn:
    with contextlib.suppress(OSError):  # stderr may be closed, as standard output is
        sys.stderr.write(f"stablelog: {error}\n")
    sys.exit(NO_BROKER if isinstance(error, NoBrokerError) else FAILED)


if __name__ == "__main__":
    run()
