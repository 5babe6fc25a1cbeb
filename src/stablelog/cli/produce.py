"""`stablelog produce`: append lines as records."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException, Producer

from stablelog.cli.admin import TIMEOUT_S, ask, interrupts, quiet
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.disk_watch import disk_watch, fail_if_full
from stablelog.cli.options import AsJson, command_app
from stablelog.cli.output import counted, done, fail
from stablelog.errors import Unavailable

POLL_S = 0.5
PROGRESS_COUNT = 1000
DELIVERY_TIMEOUT_MS = 60_000  # how long a record is retried; librdkafka allows no more in a transaction
# Additional wait in which librdkafka reports the reasons for records that it could not deliver.
FLUSH_MARGIN_S = 5
INTERRUPTED_S = 2.0  # after Ctrl-C, how long the command waits for a broker that may not respond

app = command_app()


@app.command()
@with_broker
def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Option(help="The file with the lines; by default standard input.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help="The text between key and value in a line; by default a line has no key."),
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option(help="Append all lines in one transaction of this transactional id.")
    ] = None,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Append each line as a record. With a transactional id, append all lines or none."""
    settings: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
    }
    if transactional_id is not None:
        if not transactional_id:
            fail("--transactional-id '' is not valid: an id has one character or more")
        settings["transactional.id"] = transactional_id
    bootstrap = broker.reach()
    producer = Producer(quiet(bootstrap, **settings))
    calling = threading.Event()
    with interrupts(), disk_watch(bootstrap, lambda: calling.is_set() or len(producer) > 0) as watch:

        def call(work: Callable[[], Any], what: str) -> None:
            calling.set()
            try:
                ask(bootstrap, work, what)
            except Unavailable:
                fail_if_full(bootstrap, what)
                raise
            finally:
                calling.clear()
                watch.progress()

        lines = Lines(producer, bootstrap, topic, key_separator, watch.progress)
        if transactional_id is None:
            call(lambda: producer.list_topics(timeout=TIMEOUT_S), f"writing to {topic}")
            count = lines.send(file, as_json=as_json)
        else:
            call(lambda: producer.init_transactions(TIMEOUT_S), f"transactional id {transactional_id}")
            producer.begin_transaction()
            try:
                count = lines.send(file, as_json=as_json)
            except BaseException as error:
                # Abort also after Ctrl-C: until its timeout, an open transaction would keep read-committed readers from
                # later records.
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(TIMEOUT_S if isinstance(error, Unavailable) else INTERRUPTED_S)
                raise
            call(lambda: producer.commit_transaction(TIMEOUT_S), "committing")
    done(f"wrote {counted(count, 'record')} to {topic}", as_json=as_json, topic=topic, records=count)


class Lines:
    """Sender of lines as records.

    Args:
        producer: the producer of librdkafka.
        bootstrap: the address of the broker.
        topic: the topic to write to.
        separator: the text between key and value; None or "" if the whole line is the value.
        written: called when the broker has acknowledged a record.
    """

    def __init__(
        self,
        producer: Producer,
        bootstrap: str,
        topic: str,
        separator: str | None,
        written: Callable[[], None],
    ) -> None:
        self._producer = producer
        self._bootstrap = bootstrap
        self._topic = topic
        self._separator = separator.encode() if separator else None
        self._written = written
        self._failures: list[KafkaError] = []

    def send(self, file: Path | None, *, as_json: bool) -> int:
        """Send each line, up to the first one that the broker refuses, and wait until all sent lines are written.

        Args:
            file: the file with the lines; None for standard input.
            as_json: whether the output is for programs, so that no progress is shown.

        Returns:
            How many lines were written.

        Raises:
            Unavailable: not all lines were written; the message says why.
        """
        count = 0
        with _progress(as_json=as_json) as advance:
            for line in _lines(file):
                if not self._send(line):
                    break
                count += 1
                if count % PROGRESS_COUNT == 0:
                    advance(PROGRESS_COUNT)
            left = self._flush()
        if self._failures or left:
            what = f"{len(self._failures) + left} of {count} records were not written to {self._topic}"
            why = self._reason() if self._failures else f"no broker responds at {self._bootstrap}"
            fail_if_full(self._bootstrap, what)
            fail(f"{what}: {why}")
        return count

    def _send(self, line: bytes) -> bool:
        """Pass a line to the producer. If an earlier record has failed, return False without passing the line, because
        its record would time out, too.
        """
        key, found, value = line.partition(self._separator) if self._separator else (b"", b"", line)
        record: dict[str, bytes] = {"key": key, "value": value} if found else {"value": line}
        while not self._failures:
            try:
                self._producer.produce(self._topic, on_delivery=self._note, **record)
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                fail(f"writing to {self._topic}: {error.args[0].str()}")
            else:
                self._producer.poll(0)
                return True
        return False

    def _note(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failures.append(error)
        else:
            self._written()

    def _flush(self) -> int:
        """Wait until each record is written or has failed. Return how many records still wait, for example after
        Ctrl-C.
        """
        deadline_s = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000 + FLUSH_MARGIN_S
        while (left := int(self._producer.flush(POLL_S))) and time.monotonic() < deadline_s:
            pass
        return left

    def _reason(self) -> str:
        """Return the reason why a record was not written. If the transaction has failed, librdkafka gives the reason
        only at the commit.
        """
        failure = self._failures[0]
        if failure.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - its public name
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as error:
                return str(error.args[0].str())
        return str(failure.str())


def _lines(file: Path | None) -> Iterator[bytes]:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as lines:
            yield from (line.rstrip(b"\r\n") for line in lines)
    except OSError as error:
        fail(f"{file or 'standard input'} cannot be read: {error.strerror}")


def _progress(*, as_json: bool) -> Any:
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
