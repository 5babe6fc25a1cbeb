"""The commands of the command line. The module of each command is imported when the command runs.

Errors are one line on stderr. Exit codes: 1 if `verify` has findings or `repair` leaves damage, 2 if the command fails,
130 after Ctrl-C, 141 if standard output is a pipe whose reader has ended.
"""

import contextlib
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from stablelog.cli.output import Output, OutputError
from stablelog.errors import StablelogError

BOOTSTRAP = "127.0.0.1:9092"
READER_GONE = 128 + signal.SIGPIPE
PAIR = "NAME=VALUE"
PARTITIONS_MAX = 100_000  # the limit of librdkafka

app = typer.Typer(
    name="stablelog",
    help="A transactional log that every Kafka client can use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topics = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
groups = typer.Typer(help="List, describe and delete consumer groups.", no_args_is_help=True)
transactions = typer.Typer(help="List, describe, find and end transactions.", no_args_is_help=True)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.add_typer(transactions, name="transactions")

Bootstrap = Annotated[str, typer.Option(help="The broker's address.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON document, or one a line.")]


@app.command()
def serve(
    data: Annotated[Path, typer.Option(help="The data directory; made if it is not there.")],
    host: Annotated[str | None, typer.Option(help="Where to listen (default 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(help="Where to listen; 0 takes a free port (default 9092).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A file of settings, name=value on each line.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar=PAIR, help="One setting, name=value; may be repeated."),
    ] = None,
) -> None:
    """Run a broker until it is told to stop (Ctrl-C or SIGTERM)."""
    from stablelog.cli.serve import run_serve

    run_serve(data, host, port, config, settings or [])


@topics.command("create")
def topics_create(
    name: str,
    partitions: Annotated[
        int, typer.Option(min=-1, max=PARTITIONS_MAX, help="How many partitions; -1: the broker's default.")
    ] = -1,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", metavar=PAIR, help="A setting, name=value; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from stablelog.cli import topics as command

    command.create(bootstrap, name, partitions, configs or [], as_json=as_json)


@topics.command("list")
def topics_list(
    bootstrap: Bootstrap = BOOTSTRAP,
    internal: Annotated[bool, typer.Option(help="The broker's own topics, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    from stablelog.cli import topics as command

    command.list_topics(bootstrap, internal=internal, as_json=as_json)


@topics.command("describe")
def topics_describe(name: str, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: offsets, what readers can see, and which transaction holds them up."""
    from stablelog.cli import topics as command

    command.describe(bootstrap, name, as_json=as_json)


@topics.command("alter")
def topics_alter(
    name: str,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", metavar=PAIR, help="A setting, name=value; name= removes it."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=PARTITIONS_MAX, help="The new, larger count of partitions.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    from stablelog.cli import topics as command

    command.alter(bootstrap, name, configs or [], partitions, as_json=as_json)


@topics.command("delete")
def topics_delete(name: str, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """Delete a topic with everything in it."""
    from stablelog.cli import topics as command

    command.delete(bootstrap, name, as_json=as_json)


@app.command()
def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Option(help="Where the lines come from; standard input if it is not given.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What parts the key from the value in a line.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option(help="Write all lines in one transaction of this id.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Append each line as a record."""
    from stablelog.cli.records import run_produce

    run_produce(bootstrap, topic, file, key_separator, transactional_id, as_json=as_json)


@app.command()
def consume(
    topic: str,
    isolation: Annotated[str, typer.Option(help="read_committed or read_uncommitted.")] = "read_committed",
    start: Annotated[str, typer.Option("--from", help="earliest, latest, or an offset.")] = "earliest",
    count_max: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many records.")] = None,
    group: Annotated[str | None, typer.Option(help="Read as a member of this group, and commit.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print a topic's records."""
    from stablelog.cli.records import run_consume

    run_consume(bootstrap, topic, isolation, start, count_max, group, follow=follow, as_json=as_json)


@groups.command("list")
def groups_list(bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the groups."""
    from stablelog.cli import groups as command

    command.list_groups(bootstrap, as_json=as_json)


@groups.command("describe")
def groups_describe(group: str, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a group's members, offsets and lag."""
    from stablelog.cli import groups as command

    command.describe(bootstrap, group, as_json=as_json)


@groups.command("delete")
def groups_delete(group: str, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """Delete a group that has no members."""
    from stablelog.cli import groups as command

    command.delete(bootstrap, group, as_json=as_json)


@transactions.command("list")
def transactions_list(
    state: Annotated[str | None, typer.Option(help="Only in this state, such as Ongoing.")] = None,
    longer_than_ms: Annotated[int, typer.Option(help="Only open for longer than this.")] = -1,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids."""
    from stablelog.cli import transactions as command

    command.list_transactions(bootstrap, state, longer_than_ms, as_json=as_json)


@transactions.command("describe")
def transactions_describe(
    transactional_id: str, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show a transactional id: its state, since when, and where it writes."""
    from stablelog.cli import transactions as command

    command.describe(bootstrap, transactional_id, as_json=as_json)


@transactions.command("find-hanging")
def transactions_find_hanging(
    topic: Annotated[str | None, typer.Option(help="Only in this topic.")] = None,
    older_than_ms: Annotated[int, typer.Option(help="Only open for longer than this.")] = 900_000,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open in a partition and that no coordinator knows of."""
    from stablelog.cli import transactions as command

    command.find_hanging(bootstrap, topic, older_than_ms, as_json=as_json)


@transactions.command("abort")
def transactions_abort(
    transactional_id: Annotated[str | None, typer.Argument(help="Abort this id's open transaction.")] = None,
    topic: Annotated[str | None, typer.Option(help="Or: of a hanging transaction, the topic,")] = None,
    partition: Annotated[int | None, typer.Option(help="the partition,")] = None,
    start_offset: Annotated[int | None, typer.Option(help="and its first offset.")] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """End an open transaction by hand, and fence its producer."""
    from stablelog.cli import transactions as command

    command.abort(bootstrap, transactional_id, topic, partition, start_offset, as_json=as_json)


@app.command()
def cut(
    topics: Annotated[list[str], typer.Argument(help="Commit-ordered topics.")],
    at: Annotated[
        int | None, typer.Option(help="A commit sequence; the last one that is resolved if not given.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show up to which commit everything is whole, where that is in each partition, and what it waits for."""
    from stablelog.cli import cut as command

    command.cut(bootstrap, topics, at, as_json=as_json)


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(help="A file of a partition, a partition's directory, or a data directory.")
    ],
    records: Annotated[
        bool, typer.Option(help="Show the records of each batch; those of the broker's own logs decoded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what stands in the files: batches, indexes, snapshots, summaries. Writes nothing."""
    from stablelog.cli.inspect import run_inspect

    run_inspect(path, records=records, as_json=as_json)


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="A partition's directory, or a data directory.")],
    as_json: AsJson = False,
) -> None:
    """Prove every index from the log. Exit code 1 if something does not agree. Writes nothing."""
    from stablelog.cli.inspect import run_verify

    run_verify(directory, as_json=as_json)


@app.command()
def repair(
    directory: Annotated[Path, typer.Argument(help="A partition's directory, or a data directory.")],
    yes: Annotated[bool, typer.Option("--yes", help="Cut without a question.")] = False,
    at_first_damage: Annotated[
        bool,
        typer.Option(
            "--at-first-damage", help="Cut one partition also where a start would open it all the same."
        ),
    ] = False,
) -> None:
    """Cut a damaged log where a start would refuse it. Shows what that loses, and asks. What is cut is kept."""
    from stablelog.cli.repair import run_repair

    run_repair(directory, yes=yes, at_first_damage=at_first_damage)


def run() -> None:
    """Run the command line: the entry point of the program."""
    Output.install()
    try:
        _run_and_flush()
    except OutputError as failed:
        Output.discard()
        if failed.is_closed:
            sys.exit(READER_GONE)  # without a message, as a program that SIGPIPE ends
        _end(failed)


def _run_and_flush() -> None:
    try:
        app()
    except StablelogError as error:
        _end(error)
    finally:
        sys.stdout.flush()


def _end(error: Exception) -> NoReturn:
    with contextlib.suppress(OSError):  # stderr may be closed, too
        sys.stderr.write(f"stablelog: {error}\n")
    sys.exit(2)


if __name__ == "__main__":
    run()
