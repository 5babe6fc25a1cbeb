"""Options and Typer apps that several commands share."""

from typing import Annotated

import typer

PAIR = "NAME=VALUE"

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs: one document, or one on each line.")
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Make the changes. Without this option they are only shown.")
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition. The option may be repeated."),
]

StoreUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory.",
    ),
]
AllowHttp = Annotated[bool, typer.Option("--allow-http", help="Send requests without TLS.")]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar=PAIR,
        help="An option of the store, such as aws_endpoint=URL. Credentials come from the environment. "
        "The option may be repeated.",
    ),
]


def command_app(help_text: str | None = None) -> typer.Typer:
    """Make the app of one command for the library Typer. If a help text is given, the command is a group of
    subcommands, and this is the text of the group.
    """
    return typer.Typer(
        help=help_text,
        no_args_is_help=help_text is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def examples(*commands: str) -> str:
    """Return the last paragraph of a command's help, which shows examples: one line for each of the commands."""
    # \b keeps the lines of a paragraph as they are.
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' if len(commands) > 1 else ''}:\n{lines}"
