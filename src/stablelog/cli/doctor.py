"""`stablelog doctor`: diagnose a machine, a data directory and a running broker, and print what a report of a fault needs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stablelog import __version__
from stablelog.cli.broker import CommandBroker, connect, with_broker
from stablelog.cli.config import SOURCES
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import FINDINGS, counted, print_done, print_json, print_table, printable
from stablelog.env.clock import SystemClock
from stablelog.errors import StablelogError, UsageError
from stablelog.ops.doctor import machine
from stablelog.ops.doctor.diagnosis import Diagnosis
from stablelog.ops.doctor.directory import directory_facts, directory_volume
from stablelog.ops.doctor.facts import BrokerFacts
from stablelog.ops.doctor.running_broker import broker_facts

app = command_app()


@app.command(
    epilog=examples("stablelog doctor --data data", "stablelog doctor --bootstrap localhost:9092 --json")
)
@with_broker
def doctor(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIRECTORY", help="A data directory to look at.")
    ] = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Show versions, limits, settings without secrets, and findings, each with what to do. The exit code is 1 if there
    are findings. A broker is asked only if `--bootstrap` or a profile names it. This command writes nothing.
    """
    facts = None if data is None else directory_facts(data.absolute())
    diagnosis = Diagnosis(
        machine.versions(__version__),
        machine.limits(),
        SystemClock().wall_ms(),
        directory=facts,
        volume=None if facts is None or facts.failure else directory_volume(facts.path),
        broker=_ask(broker) if broker.is_named else None,
    )
    if as_json:
        print_json(diagnosis.document())
    else:
        _print(diagnosis)
    if diagnosis.findings:
        sys.exit(FINDINGS)


def _ask(broker: CommandBroker) -> BrokerFacts:
    """Ask a broker for what the diagnosis shows of it. A broker that does not respond, does not accept the login, or gives
    responses that cannot be read, is a fact, too.
    """
    try:
        return broker_facts(broker.reach(), broker.admin(), connect, SOURCES)
    except UsageError:
        raise  # such as an address or a key of the options that is not valid
    except StablelogError as error:
        return BrokerFacts(",".join(broker.addresses), failure=str(error))


def _print(diagnosis: Diagnosis) -> None:
    document = diagnosis.document()
    versions = {**document["versions"], **document["versions"]["libraries"]}
    del versions["libraries"]
    print_table("versions", ("what", "version"), versions.items())
    for name in ("limits", "disk", "directory", "broker"):
        if document[name] is not None:
            rows = [(key.replace("_", " "), _cell(value)) for key, value in document[name].items()]
            print_table(name, (name, "value"), rows)
    if diagnosis.directory is not None or diagnosis.broker is not None:
        print_table("settings", ("setting", "value", "source"), diagnosis.settings)
    for finding in diagnosis.findings:
        sys.stdout.write(
            printable(f"{finding.subject}: {finding.problem}") + f"\n  {printable(finding.action)}\n"
        )
    print_done(counted(len(diagnosis.findings), "finding"), as_json=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown or none" if value is None else str(value)
