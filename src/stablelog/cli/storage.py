"""`stablelog storage`: object stores for tiered storage."""

import sys
from typing import Annotated

import typer

from stablelog.cli.options import PAIR, AsJson, command_app
from stablelog.cli.output import counted, done, fail, print_json
from stablelog.env.objects.check import TRIALS
from stablelog.env.objects.check import check as check_promises
from stablelog.env.objects.opening import open_store

app = command_app("Check object stores.")


@app.callback()
def _every_command() -> None:
    """Do nothing. Without a callback, typer would make `check`, the only command of this module, the whole group."""


@app.command()
def check(
    url: Annotated[
        str,
        typer.Argument(
            help="s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory."
        ),
    ],
    allow_http: Annotated[bool, typer.Option("--allow-http", help="Send requests without TLS.")] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar=PAIR,
            help="An option of the store, such as aws_endpoint=URL. Credentials come from the environment. "
            "The option may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a store keeps what tiered storage needs. Exit code 1 if it does not.

    The check writes about 20 MiB under `check/` of the URL and deletes it again.

    Example: stablelog storage check s3://bucket/prefix
    """
    store = open_store(url, allow_http=allow_http, options=dict(pair(option) for option in options or []))
    findings = []
    for finding in check_promises(store):
        findings.append(finding)
        if not as_json:
            sys.stdout.write(f"{'FAULT' if finding.fault else 'ok':5}  {finding.promise}\n")
            if finding.fault:
                sys.stdout.write(f"       {finding.fault}\n")
            sys.stdout.flush()
    faults = [finding for finding in findings if finding.fault]
    if as_json:
        print_json([{"promise": finding.promise, "fault": finding.fault} for finding in findings])
    else:
        done(
            f"{counted(len(TRIALS), 'promise')} of {store.url}, {counted(len(faults), 'fault')}",
            as_json=False,
        )
    if faults:
        sys.exit(1)


def pair(option: str) -> tuple[str, str]:
    """Split an option of a store, NAME=VALUE."""
    name, equals, value = option.partition("=")
    if not name or not equals:
        fail(f"--option {option!r} is not NAME=VALUE")
    return name, value
