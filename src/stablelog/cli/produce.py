"""`stablelog produce`: append the records of a file or of standard input."""

import contextlib
import itertools
import secrets
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from kio.schema.errors import ErrorCode

from stablelog.cli import login
from stablelog.cli.admin import group_of_topic, topic_of_records
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.broker_calls import BrokerCalls
from stablelog.cli.offsets import parse_time_ms
from stablelog.cli.options import PAIR, AsJson, command_app, examples
from stablelog.cli.output import counted, fail, print_done
from stablelog.cli.parquet_input import read_parquet
from stablelog.cli.record_input import (
    PARTITION_MAX,
    BadRecordError,
    Header,
    InputRecord,
    read_csv,
    read_json,
    read_lines,
)
from stablelog.cli.record_writer import RecordWriter, WriteTarget
from stablelog.cli.waiting_input import BeforeInput, open_input
from stablelog.cli.write_settings import (
    TRANSACTION_TIMEOUT_S,
    Compression,
    WriteSettings,
)
from stablelog.client.blocking.admin import Admin
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.topics import TopicDescription
from stablelog.errors import RefusedError, StablelogError, UnavailableError

TIMEOUT_S = 10.0  # how long a broker that was reached may take to begin and to commit a transaction
INTERRUPTED_S = 2.0  # after Ctrl-C, how long the command waits for a broker that may not respond
SIZE_SETTING: Final = "max.message.bytes"

app = command_app()


class Form(StrEnum):
    """The forms of input that the command can read."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


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
Compress = Annotated[Compression | None, typer.Option(help="How to compress batches (default none).")]
InTransaction = Annotated[bool, typer.Option("--transaction", help="Append all records in one transaction.")]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Append each N records in a transaction of their own.", metavar="N")
]
TransactionalId = Annotated[
    str | None, typer.Option(help="The transactional id. Without --batch, it implies --transaction.")
]
TransactionTimeout = Annotated[
    float | None,
    typer.Option(
        "--transaction-timeout",
        min=1,
        metavar="SECONDS",
        help=f"The time after which a transaction is aborted (default {TRANSACTION_TIMEOUT_S:g}).",
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
    compression: Compress = None,
    transaction: InTransaction = False,
    batch: Batch = None,
    transactional_id: TransactionalId = None,
    transaction_timeout_s: TransactionTimeout = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Append records from lines, JSON lines, CSV or Parquet. In a transaction, append all records or none."""
    if transactional_id == "":
        fail("--transactional-id '' is not valid: an id has one character or more")
    if transaction and batch is not None:
        fail("--transaction is not valid with --batch: choose one of them")
    if form is Form.PARQUET and file is None:
        fail("--input parquet needs --file: Parquet cannot be read from standard input")
    given = InputRecord(
        "",
        None if key is None else key.encode(),
        None,
        partition,
        None if timestamp is None else parse_time_ms(timestamp, "--timestamp "),
        [_header(one) for one in headers] if headers else None,
    )

    def records(before_input: BeforeInput) -> Iterator[InputRecord]:
        found = _records(file, form, key_separator, empty_is_null=empty_is_null, before_input=before_input)
        return _completed(found, given)

    admin, bootstrap = broker.admin(), broker.reach()
    found = topic_of_records(admin, topic)
    settings = WriteSettings.from_options(broker.settings, compression, transaction_timeout_s)
    if transactional_id is None and (transaction or batch is not None):
        transactional_id = _new_id(group_of_topic(admin, topic) or "")
    with broker.cluster() as cluster:
        producer = BlockingProducer(
            cluster,
            transactional_id,
            transaction_timeout_ms=round(settings.transaction_timeout_s * 1000),
            deadline_s=min(settings.transaction_timeout_s, settings.delivery_timeout_s)
            if transactional_id
            else settings.delivery_timeout_s,
            on_acknowledged=lambda _number, _offset: calls.watch.mark_progress(),
        )
        target = _target(producer, admin, bootstrap, found, settings, transactional_id)
        calls = BrokerCalls(bootstrap)
        with contextlib.closing(producer), calls.watch, _progress(as_json=as_json) as advance:
            count, transaction_count = _write(
                target, calls, RecordWriter(target, calls, advance), records, batch
            )
    said = f" in {counted(transaction_count, 'transaction')}" if batch is not None else ""
    print_done(
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
    """Return a new transactional id that belongs to a transaction group (topics whose commits have one order). It is
    random, so that no other producer uses it.
    """
    own = f"stablelog-produce-{secrets.token_hex(8)}"
    return f"{group}/{own}" if group else own


def _target(
    producer: BlockingProducer,
    admin: Admin,
    bootstrap: str,
    topic: TopicDescription,
    settings: WriteSettings,
    transactional_id: str | None,
) -> WriteTarget:
    """Return what the writer of records needs: the topic to write to, the settings of the topic that concern the
    writer, and the settings of the command. `transactional_id` is None if the command writes without a transaction.
    """
    keyless = [index for index, partition in topic.partitions.items() if partition.leader_id >= 0]
    return WriteTarget(
        producer,
        admin,
        bootstrap,
        topic.name,
        len(topic.partitions),
        keyless or list(topic.partitions),
        _batch_size_max(admin, topic.name),
        settings.codec,
        transactional_id,
        settings.batch_size,
        settings.linger_s,
        settings.delivery_timeout_s,
    )


def _batch_size_max(admin: Admin, topic: str) -> int | None:
    """Return the maximum batch size of a topic in bytes; None if the user may not describe its settings."""
    try:
        found = admin.configs.describe("topic", topic, names=(SIZE_SETTING,))
    except RefusedError:
        return None
    return next((int(config.value) for config in found.values() if config.value is not None), None)


def _records(
    file: Path | None,
    form: Form,
    key_separator: str | None,
    *,
    empty_is_null: bool,
    before_input: BeforeInput,
) -> Iterator[InputRecord]:
    """Yield the records of the input.

    Args:
        file: the file with the records; None for standard input.
        form: the form of the input, such as lines or CSV.
        key_separator: the text between key and value in lines; None if the lines have no keys.
        empty_is_null: whether an empty value is null.
        before_input: called before the command waits for more input.

    Raises:
        UnavailableError: the input cannot be read.
        BadRecordError: a record is not valid.
    """
    if form is Form.PARQUET:
        assert file is not None
        yield from read_parquet(file)
        return
    try:
        with open_input(file, before_input) as stream:
            if form is Form.JSON:
                yield from read_json(stream)
            elif form is Form.CSV:
                yield from read_csv(stream, empty_is_null=empty_is_null)
            else:
                separator = key_separator.encode() if key_separator else None
                yield from read_lines(stream, separator, empty_is_null=empty_is_null)
    except OSError as error:
        fail(f"{file or 'standard input'} cannot be read: {error.strerror}")


def _completed(records: Iterator[InputRecord], given: InputRecord) -> Iterator[InputRecord]:
    """Yield the records of the input, each completed by the options of the command: a field that the record lacks is
    taken from `given`, which has the values of these options.
    """
    if given == InputRecord("", None, None):
        return records
    return (
        record._replace(
            key=given.key if record.key is None else record.key,
            partition=given.partition if record.partition is None else record.partition,
            timestamp_ms=given.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
            headers=given.headers if record.headers is None else record.headers,
        )
        for record in records
    )


def _write(
    target: WriteTarget,
    calls: BrokerCalls,
    writer: RecordWriter,
    records: Callable[[BeforeInput], Iterator[InputRecord]],
    batch: int | None,
) -> tuple[int, int]:
    """Write all records: in one transaction, in transactions of `batch` records, or without a transaction.

    Args:
        target: the topic, the producer and the transactional id; without such an id there is no transaction.
        calls: the context for calls of the producer, which reports errors.
        writer: sends the records.
        records: returns the records of the input. Its argument is called before the command waits for more input.
        batch: the number of records of a transaction; None for one transaction with all records.

    Returns:
        The number of records that were written, and the number of transactions in which they were written, which is 0
        without transactions.

    Raises:
        UnavailableError: not all records were written; the message says which, and why.
    """
    producer = target.producer
    read = records(writer.send_before_input)
    _begin(target, calls)
    if target.transactional_id is None:
        try:
            return writer.write_records(read), 0
        except BadRecordError as bad:
            fail(f"{bad}. {_were_written(writer.wait_until_written(), 0)}")
    count = transaction_count = 0
    try:
        for part in _parts(read, batch):
            with _aborting(target):
                added = writer.write_records(part)
            calls.make_call(lambda: producer.end(commit=True, deadline_s=TIMEOUT_S), "committing")
            count, transaction_count = count + added, transaction_count + 1
    except BadRecordError as bad:
        fail(f"{bad}. {_were_written(count, transaction_count)}")
    return count, transaction_count


def _begin(target: WriteTarget, calls: BrokerCalls) -> None:
    """Begin to write: request a producer id from the broker.

    Raises:
        UnavailableError: the broker refuses to give one, or does not respond.
    """
    transactional_id = target.transactional_id
    denied: dict[int, str] = {
        ErrorCode.cluster_authorization_failed: f"WRITE to the topic {target.topic!r}",
        ErrorCode.transactional_id_authorization_failed: f"WRITE the transactional id {transactional_id!r}",
    }
    what = (
        f"writing to {target.topic}" if transactional_id is None else f"transactional id {transactional_id}"
    )
    deadline_s = target.delivery_timeout_s if transactional_id is None else TIMEOUT_S

    def begin() -> None:
        try:
            target.producer.begin(deadline_s=deadline_s)
        except RefusedError as refused:
            if refused.code not in denied:
                raise
            raise RefusedError(
                refused.code, f"this user is not authorized to {denied[refused.code]}: ask for an ACL"
            ) from None

    calls.make_call(begin, what)


@contextlib.contextmanager
def _aborting(target: WriteTarget) -> Iterator[None]:
    """Context that aborts the transaction on any error in it, also on Ctrl-C, because an open transaction would keep
    read-committed readers from later records until its timeout. The context has no value.
    """
    try:
        yield
    except BaseException as error:
        producer = target.producer
        producer.close()
        if producer.has_begun:
            # With connections of its own: those of the producer may wait for a broker that does not respond.
            wait_s = TIMEOUT_S if isinstance(error, UnavailableError) else INTERRUPTED_S
            with (
                contextlib.suppress(StablelogError),
                BlockingCluster(
                    target.bootstrap, timeout_s=wait_s, deadline_s=wait_s, **login.cluster_arguments()
                ) as cluster,
            ):
                ending = BlockingProducer(cluster, target.transactional_id)
                ending.resume(producer.producer_id, producer.producer_epoch)
                ending.end(commit=False)
        raise


def _parts(records: Iterator[InputRecord], batch: int | None) -> Iterator[Iterator[InputRecord]]:
    """Divide records into parts, and yield an iterator of the records of each part. A part has `batch` records, and the
    last one may have fewer. If `batch` is None, there is one part, even if there are no records.
    """
    if batch is None:
        yield records
        return
    while (first := next(records, None)) is not None:
        yield itertools.chain((first,), itertools.islice(records, batch - 1))


def _were_written(count: int, transaction_count: int) -> str:
    """Return a text for the message about a bad record: how many records before it were written, and in how many
    transactions.
    """
    if not count:
        return "Nothing was written"
    of_them = f", in {counted(transaction_count, 'transaction')}" if transaction_count else ""
    return f"Before it, {counted(count, 'record')} {'was' if count == 1 else 'were'} written{of_them}"


def _progress(*, as_json: bool) -> Any:
    """Return a context that shows on stderr how many records were read. It shows nothing if stderr is no terminal, or
    if the output is JSON (`as_json`). The value of the context is a function; the caller passes it the number of
    records that were read since the last call.
    """
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
