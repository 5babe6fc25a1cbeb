"""What the commands share: how a command is declared, and the options that several of them have."""

from typing import Annotated

import typer

BOOTSTRAP = "127.0.0.1:9092"
PAIR = "NAME=VALUE"

Bootstrap = Annotated[str, typer.Option(help="The address of the broker.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs: one document, or one on each line.")
]


def command_app(help_text: str | None = None) -> typer.Typer:
    """Make the Typer app of one command, or with a help text that of a group of commands."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=help_text is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
