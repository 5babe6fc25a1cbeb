"""`stablelog produce`: append the records of a file or of standard input."""

import contextlib
import itertools
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import KafkaException, Producer

from stablelog.cli.admin import group_of_topic, topic_to_write
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.disk_watch import disk_watch, fail_if_full
from stablelog.cli.librdkafka import TIMEOUT_S, ask, interrupts, quiet
from stablelog.cli.offsets import parse_time_ms
from stablelog.cli.options import PAIR, AsJson, command_app, examples
from stablelog.cli.output import counted, done, fail
from stablelog.cli.parquet_input import read_parquet
from stablelog.cli.record_input import (
    PARTITION_MAX,
    BadRecordError,
    Header,
    Record,
    read_csv,
    read_json,
    read_lines,
)
from stablelog.cli.record_writer import DELIVERY_TIMEOUT_MS, Writer
from stablelog.client.admin import Admin
from stablelog.errors import UnavailableError

INTERRUPTED_S = 2.0  # after Ctrl-C, how long the command waits for a broker that may not respond
TRANSACTION_TIMEOUT_S = 60.0

app = command_app()


class Form(StrEnum):
    """The forms of the input."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """The codecs of Kafka's record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


File = Annotated[Path | None, typer.Option(help="The file to read; by default standard input.")]
Input = Annotated[Form, typer.Option("--input", help="The form of the input.")]
KeySeparator = Annotated[
    str | None,
    typer.Option(help="The text between key and value in a line; by default a line has no key."),
]
EmptyIsNull = Annotated[
    bool, typer.Option("--empty-is-null", "-Z", help="Write an empty value of a line or CSV row as null.")
]
Key = Annotated[str | None, typer.Option(help="The key of records that have none.")]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition", "-p", min=0, max=PARTITION_MAX, help="The partition of records that name none."
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar=PAIR,
        help="A header of records that have none. The option may be repeated.",
    ),
]
Timestamp = Annotated[
    str | None,
    typer.Option(help="The timestamp of records that have none, in ms or ISO 8601; by default the time now."),
]
Codec = Annotated[Compression, typer.Option(help="How to compress batches.")]
InTransaction = Annotated[bool, typer.Option("--transaction", help="Append all records in one transaction.")]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Append each N records in a transaction of their own.", metavar="N")
]
TransactionalId = Annotated[
    str | None, typer.Option(help="The transactional id. Without --batch, it implies --transaction.")
]
TransactionTimeout = Annotated[
    float,
    typer.Option(
        "--transaction-timeout",
        min=1,
        metavar="SECONDS",
        help="The time after which a transaction is aborted.",
    ),
]


@app.command(
    epilog=examples(
        "stablelog produce orders --key-separator : < lines.txt",
        "stablelog produce orders --input csv --file orders.csv --transaction",
        "stablelog consume orders --json | stablelog produce copy --input json --batch 1000",
    )
)
@with_broker
def produce(
    topic: str,
    file: File = None,
    form: Input = Form.LINES,
    key_separator: KeySeparator = None,
    empty_is_null: EmptyIsNull = False,
    key: Key = None,
    partition: Partition = None,
    headers: Headers = None,
    timestamp: Timestamp = None,
    compression: Codec = Compression.NONE,
    transaction: InTransaction = False,
    batch: Batch = None,
    transactional_id: TransactionalId = None,
    transaction_timeout_s: TransactionTimeout = TRANSACTION_TIMEOUT_S,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Append records from lines, JSON lines, CSV or Parquet. In a transaction, append all records or none."""
    if transactional_id == "":
        fail("--transactional-id '' is not valid: an id has one character or more")
    if transaction and batch is not None:
        fail("--transaction is not valid with --batch: choose one of them")
    if form is Form.PARQUET and file is None:
        fail("--input parquet needs --file: Parquet cannot be read from standard input")
    given = Record(
        "",
        None if key is None else key.encode(),
        None,
        partition,
        None if timestamp is None else parse_time_ms(timestamp, "--timestamp "),
        [_header(one) for one in headers] if headers else None,
    )
    records = _completed(_records(file, form, key_separator, empty_is_null=empty_is_null), given)
    admin, bootstrap = broker.admin(), broker.reach()
    partition_count = len(topic_to_write(admin, topic).partitions)
    if transactional_id is None and (transaction or batch is not None):
        transactional_id = _new_id(group_of_topic(admin, topic) or "")
    settings: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "compression.type": compression.value,
    }
    if transactional_id is not None:
        timeout_ms = round(transaction_timeout_s * 1000)
        settings["transactional.id"] = transactional_id
        settings["transaction.timeout.ms"] = timeout_ms
        settings["message.timeout.ms"] = min(timeout_ms, DELIVERY_TIMEOUT_MS)
    producer = Producer(quiet(bootstrap, **settings))
    with interrupts(), _progress(as_json=as_json) as advance:
        target = Target(producer, admin, bootstrap, topic, partition_count, transactional_id, advance)
        count, transaction_count = _write(target, records, batch)
    said = f" in {counted(transaction_count, 'transaction')}" if batch is not None else ""
    done(
        f"wrote {counted(count, 'record')} to {topic}{said}",
        as_json=as_json,
        topic=topic,
        records=count,
        transactions=transaction_count,
    )


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--header {text!r} is not valid: write {PAIR}")
    return name, value.encode()


def _new_id(group: str) -> str:
    """Return a transactional id in a transaction group that no other producer has."""
    own = f"stablelog-produce-{secrets.token_hex(8)}"
    return f"{group}/{own}" if group else own


def _records(
    file: Path | None, form: Form, key_separator: str | None, *, empty_is_null: bool
) -> Iterator[Record]:
    """Read the records of the input."""
    if form is Form.PARQUET:
        assert file is not None
        yield from read_parquet(file)
        return
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as stream:
            if form is Form.JSON:
                yield from read_json(stream)
            elif form is Form.CSV:
                yield from read_csv(stream, empty_is_null=empty_is_null)
            else:
                separator = key_separator.encode() if key_separator else None
                yield from read_lines(stream, separator, empty_is_null=empty_is_null)
    except OSError as error:
        fail(f"{file or 'standard input'} cannot be read: {error.strerror}")


def _completed(records: Iterator[Record], given: Record) -> Iterator[Record]:
    """Add what the options give to records that do not have it."""
    for record in records:
        yield record._replace(
            key=given.key if record.key is None else record.key,
            partition=given.partition if record.partition is None else record.partition,
            timestamp_ms=given.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
            headers=given.headers if record.headers is None else record.headers,
        )


class Target(NamedTuple):
    """The topic to which a command writes, and its producer.

    `transactional_id` is None outside transactions. `advance` shows how many more records were read.
    """

    producer: Producer
    admin: Admin
    bootstrap: str
    topic: str
    partition_count: int
    transactional_id: str | None
    advance: Callable[[int], None]


def _write(target: Target, records: Iterator[Record], batch: int | None) -> tuple[int, int]:
    """Write the records: in one transaction, in transactions of `batch` records, or in none.

    Returns:
        How many records were written, and in how many transactions.

    Raises:
        UnavailableError: not all records were written; the message says which, and why.
    """
    producer, bootstrap, topic = target.producer, target.bootstrap, target.topic
    calling = threading.Event()
    with disk_watch(bootstrap, lambda: calling.is_set() or len(producer) > 0) as watch:

        def call(work: Callable[[], Any], what: str) -> None:
            calling.set()
            try:
                ask(bootstrap, work, what)
            except UnavailableError:
                fail_if_full(bootstrap, what)
                raise
            finally:
                calling.clear()
                watch.progress()

        writer = Writer(
            producer,
            target.admin,
            bootstrap,
            topic,
            target.partition_count,
            target.transactional_id,
            watch.progress,
            target.advance,
        )
        if target.transactional_id is None:
            try:
                return writer.send(records), 0
            except BadRecordError as bad:
                fail(f"{bad}. {_were_written(writer.finish(), 0)}")
        call(lambda: producer.init_transactions(TIMEOUT_S), f"transactional id {target.transactional_id}")
        count = transaction_count = 0
        try:
            for part in _parts(records, batch):
                producer.begin_transaction()
                with _aborting(producer):
                    added = writer.send(part)
                call(lambda: producer.commit_transaction(TIMEOUT_S), "committing")
                count, transaction_count = count + added, transaction_count + 1
        except BadRecordError as bad:
            fail(f"{bad}. {_were_written(count, transaction_count)}")
    return count, transaction_count


@contextlib.contextmanager
def _aborting(producer: Producer) -> Iterator[None]:
    """Abort the transaction on any error, also on Ctrl-C: until its timeout, an open transaction would keep
    read-committed readers from later records.
    """
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(TIMEOUT_S if isinstance(error, UnavailableError) else INTERRUPTED_S)
        raise


def _parts(records: Iterator[Record], batch: int | None) -> Iterator[Iterator[Record]]:
    """Divide records into parts of `batch` records. None makes one part of all of them, also if there are none."""
    if batch is None:
        yield records
        return
    while (first := next(records, None)) is not None:
        yield itertools.chain((first,), itertools.islice(records, batch - 1))


def _were_written(count: int, transaction_count: int) -> str:
    """Say which records before a bad one were written."""
    if not count:
        return "Nothing was written"
    of_them = f", in {counted(transaction_count, 'transaction')}" if transaction_count else ""
    return f"Before it, {counted(count, 'record')} {'was' if count == 1 else 'were'} written{of_them}"


def _progress(*, as_json: bool) -> Any:
    """Return a context with a function that shows how many more records were read, on stderr if it is a terminal."""
    if as_json or not sys.stderr.isatty():
        return contextlib.nullcontext(lambda _count: None)
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    @contextlib.contextmanager
    def bar() -> Iterator[Any]:
        columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} records")
        with Progress(*columns, console=Console(stderr=True)) as shown:
            task = shown.add_task("", total=None)
            yield lambda count: shown.advance(task, count)

    return bar()
