"""`stablelog produce` and `stablelog consume`: write and print records."""

import base64
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from stablelog.cli.admin import TIMEOUT_S, ask, end_offsets, known_topic, quiet
from stablelog.cli.disk_watch import DiskWatch, full_disk
from stablelog.cli.output import counted, done, fail, print_json
from stablelog.cli.partition_watch import PartitionWatch, unavailable_partitions
from stablelog.errors import Unavailable

POLL_S = 0.5
PROGRESS_COUNT = 1000
DELIVERY_TIMEOUT_MS = 60_000  # how long a record is retried; librdkafka allows no more in a transaction
FLUSH_MARGIN_S = 5  # extra time in which librdkafka reports why it gave up records
INTERRUPTED_S = 2.0  # how long an interrupted command waits for a broker that may not respond
UNREADABLE_S = 30.0  # after this time, a reader without --follow gives up on partitions that cannot be read
OFFSET_MAX = (1 << 63) - 1
WORDS = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


def _lines(file: Path | None) -> Iterator[bytes]:
    if file is None:
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    try:
        with file.open("rb") as lines:
            yield from (line.rstrip(b"\r\n") for line in lines)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}")


def run_produce(
    bootstrap: str,
    topic: str,
    file: Path | None,
    key_separator: str | None,
    transactional_id: str | None,
    *,
    as_json: bool,
) -> None:
    """Append each line as a record; with a transactional id, all lines or none."""
    settings: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
    }
    separator = key_separator.encode() if key_separator else None
    if transactional_id is not None:
        if not transactional_id:
            fail("--transactional-id '': an id has one character or more")
        settings["transactional.id"] = transactional_id
    producer = Producer(quiet(bootstrap, **settings))
    calling = threading.Event()
    with _interrupts(), DiskWatch(bootstrap, lambda: calling.is_set() or len(producer) > 0) as watch:

        def call(work: Callable[[], Any], what: str) -> None:
            calling.set()
            try:
                ask(bootstrap, work, what)
            except Unavailable:
                if (full := full_disk(bootstrap)) is not None:
                    fail(f"{what}: the disk of {bootstrap} is full ({full})")
                raise
            finally:
                calling.clear()
                watch.progress()

        send = partial(
            _send_lines, producer, bootstrap, topic, file, separator, watch.progress, as_json=as_json
        )
        if transactional_id is None:
            call(lambda: producer.list_topics(timeout=TIMEOUT_S), f"writing to {topic}")
            count = send()
        else:
            call(lambda: producer.init_transactions(TIMEOUT_S), f"transactional id {transactional_id}")
            producer.begin_transaction()
            try:
                count = send()
            except (
                BaseException
            ) as error:  # Ctrl-C, too: the open transaction would block readers until its timeout
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(TIMEOUT_S if isinstance(error, Unavailable) else INTERRUPTED_S)
                raise
            call(lambda: producer.commit_transaction(TIMEOUT_S), "committing")
    done(f"wrote {counted(count, 'record')} to {topic}", as_json=as_json, topic=topic, records=count)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Restore KeyboardInterrupt: if it occurs in a librdkafka call, Python raises a SystemError instead."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _flushed(producer: Producer) -> int:
    """Wait until all records are written or given up. Return how many are left. Ctrl-C interrupts the wait."""
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000 + FLUSH_MARGIN_S
    while (left := int(producer.flush(POLL_S))) and time.monotonic() < deadline_s:
        pass
    return left


def _send_lines(
    producer: Producer,
    bootstrap: str,
    topic: str,
    file: Path | None,
    separator: bytes | None,
    written: Callable[[], None],
    *,
    as_json: bool,
) -> int:
    """Send each line, up to the first that is refused, and wait until all are written. Return how many were written.

    Args:
        producer: librdkafka's producer.
        bootstrap: the broker's address.
        topic: the topic to write to.
        file: has the lines; None for stdin.
        separator: separates key and value; None if the whole line is the value.
        written: called when a record is written.
        as_json: whether the output is JSON.
    """
    failures: list[KafkaError] = []
    count = 0
    with _progress(as_json=as_json) as advance:
        for line in _lines(file):
            key, found, value = line.partition(separator) if separator else (b"", b"", line)
            if not _send(
                producer,
                topic,
                key if found else None,
                value if found or not separator else line,
                failures,
                written,
            ):
                break
            count += 1
            if count % PROGRESS_COUNT == 0:
                advance(PROGRESS_COUNT)
        left = _flushed(producer)
    if failures or left:
        why = _reason(producer, failures[0]) if failures else f"no broker answers at {bootstrap}"
        if (full := full_disk(bootstrap)) is not None:
            why = f"the disk of {bootstrap} is full ({full})"
        fail(f"{len(failures) + left} of {count} records were not written to {topic}: {why}")
    return count


def _reason(producer: Producer, failure: KafkaError) -> str:
    """Return why a record was not written. If the transaction has failed, librdkafka tells why only at commit."""
    if failure.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - its public name
        try:
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            return str(error.args[0].str())
    return str(failure.str())


def _send(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes,
    failures: list[KafkaError],
    written: Callable[[], None],
) -> bool:
    """Pass a record to the producer; False if an earlier record failed, because this one would only time out, too."""

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)
        else:
            written()

    while not failures:
        try:
            producer.produce(topic, key=key, value=value, on_delivery=delivered)
        except BufferError:
            producer.poll(POLL_S)
        except KafkaException as error:
            fail(f"writing to {topic}: {error.args[0].str()}")
        else:
            producer.poll(0)
            return True
    return False


def _progress(*, as_json: bool) -> Any:
    if as_json or not sys.stderr.isatty():
        return contextlib.nullcontext(lambda _count: None)
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    @contextlib.contextmanager
    def bar() -> Iterator[Any]:
        with Progress(
            SpinnerColumn(), TextColumn("{task.completed:,.0f} records"), console=Console(stderr=True)
        ) as shown:
            task = shown.add_task("", total=None)
            yield lambda count: shown.advance(task, count)

    return bar()


def run_consume(
    bootstrap: str,
    topic: str,
    isolation: str,
    start: str,
    count_max: int | None,
    group: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print a topic's records, up to its end or without end."""
    if isolation not in ("read_committed", "read_uncommitted"):
        fail(f"--isolation {isolation}: read_committed or read_uncommitted")
    if start not in WORDS:
        if not (start.isascii() and start.isdecimal() and len(start) < 20 and int(start) <= OFFSET_MAX):
            fail(f"--from {start}: earliest, latest or an offset")
        if group is not None:
            fail(
                f"--from {start}: a group goes on where it was; earliest or latest say where it begins at first"
            )
    if group == "":
        fail("--group '': a group's name has one character or more")
    partitions = sorted(known_topic(bootstrap, topic).partitions)
    places = _places(bootstrap, topic, partitions, start, isolation)
    consumer = Consumer(
        quiet(
            bootstrap,
            **{
                "group.id": group or "stablelog-cli",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
                "auto.offset.reset": "latest" if start == "latest" else "earliest",
            },
        )
    )
    if group is None:
        consumer.assign(places)
        membership: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    else:
        membership = _joined(bootstrap, consumer, topic, group, follow=follow)
    begin = {at.partition: at.offset for at in places if at.offset >= 0 or at.offset == OFFSET_BEGINNING}
    watch = PartitionWatch(
        bootstrap, topic, partitions if group is None else (), begin if group is None else {}, isolation
    )
    try:
        with _interrupts(), membership, watch:
            _print_records(
                consumer,
                bootstrap,
                topic,
                len(partitions),
                count_max,
                watch=watch,
                group=group,
                follow=follow,
                as_json=as_json,
            )
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


@contextlib.contextmanager
def _joined(bootstrap: str, consumer: Consumer, topic: str, group: str, *, follow: bool) -> Iterator[None]:
    """Join a group. Report on stderr if the group takes no members because the disk is full."""
    joined = threading.Event()
    with DiskWatch(
        bootstrap,
        lambda: not joined.is_set(),
        f"group {group} may take no members until there is room",
        f"group {group} is joined",
    ) as watch:

        def assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            joined.set()
            watch.progress()
            _say_if_nothing_is_left(group, partitions, follow=follow)

        def revoked(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
            joined.clear()
            watch.progress()

        consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        yield


def _places(
    bootstrap: str, topic: str, partitions: list[int], start: str, isolation: str
) -> list[TopicPartition]:
    """Return each partition's start offset; its end if the wanted offset does not exist yet and the end is known."""
    if start in WORDS:
        return [TopicPartition(topic, index, WORDS[start]) for index in partitions]
    unavailable = unavailable_partitions(bootstrap, [topic])
    served = [(topic, index) for index in partitions if (topic, index) not in unavailable]
    ends = {target: end for target, (_, end) in end_offsets(bootstrap, served, isolation).items()}
    end_max = max(ends.values(), default=OFFSET_MAX)
    if int(start) > end_max and not unavailable:
        fail(f"--from {start}: {topic} ends at offset {end_max}")
    return [
        TopicPartition(topic, index, min(int(start), ends.get((topic, index), int(start))))
        for index in partitions
    ]


def _say_if_nothing_is_left(group: str, assigned: list[TopicPartition], *, follow: bool) -> None:
    if not assigned and not follow:
        fail(f"other members of group {group} read all partitions; with --follow this one waits for its turn")


def _print_records(
    consumer: Consumer,
    bootstrap: str,
    topic: str,
    partition_count: int,
    count_max: int | None,
    *,
    watch: PartitionWatch,
    group: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    commits = group is not None
    ended: set[int] = set()
    count = 0
    heard_s = time.monotonic()
    while (count_max is None or count < count_max) and (follow or len(ended) < partition_count):
        message = consumer.poll(POLL_S)
        if message is None:
            assigned = _assigned(consumer, watch) if commits else set()
            if assigned and not follow and ended >= assigned:
                return
            sys.stdout.flush()
            if not follow and (why := watch.given_up(UNREADABLE_S)) is not None:
                if group is not None and count:
                    _commit(consumer, bootstrap, group)
                fail(f"{topic} cannot be read to its end: {why}. With --follow, consume waits for it")
            if not follow and time.monotonic() > heard_s + TIMEOUT_S:
                ask(bootstrap, lambda: consumer.list_topics(timeout=TIMEOUT_S), f"reading {topic}")
                heard_s = time.monotonic()
            continue
        heard_s = time.monotonic()
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
                ended.add(message.partition())
                watch.ended(message.partition())
                continue
            where = f"{topic}-{message.partition()}" if message.partition() >= 0 else topic
            fail(f"reading {where} from {bootstrap}: {error.str()}")
        ended.discard(message.partition())
        watch.heard(message.partition(), message.offset() + 1)
        _print_record(message, as_json=as_json)
        count += 1
        if commits:
            consumer.commit(message=message, asynchronous=True)
    if group is not None and count:
        _commit(consumer, bootstrap, group)


def _assigned(consumer: Consumer, watch: PartitionWatch) -> set[int]:
    """Return the partitions of a group member. Tell the watch about new ones and their start offsets."""
    assignment = consumer.assignment()
    assigned = {at.partition for at in assignment}
    if assigned != watch.partitions:
        committed: list[TopicPartition] = []
        with contextlib.suppress(KafkaException):
            committed = consumer.committed(assignment, timeout=TIMEOUT_S) if assignment else []
        places = {at.partition: max(at.offset, -1) for at in committed}
        watch.assigned(assigned, places)
    return assigned


def _commit(consumer: Consumer, bootstrap: str, group: str) -> None:
    """Commit the offsets of the printed records. Retry for TIMEOUT_S if the broker may accept the commit later.

    Raises:
        Unavailable: the offsets were not committed; the message says why.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    what = f"committing the offsets of group {group}, which reads the last records again"
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError._NO_OFFSET:  # noqa: SLF001 - its name in the library
                return  # no offset is uncommitted
            is_later = reason.code() in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)
            if is_later and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
                continue
            if (full := full_disk(bootstrap)) is not None:
                fail(f"{what}: the disk of {bootstrap} is full ({full})")
            fail(f"{what}: {reason.str()}")


def _print_record(message: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp_ms": message.timestamp()[1],
                "key": _text(message.key()),
                "value": _text(message.value()),
                "headers": [[name, _text(value)] for name, value in message.headers() or []],
            }
        )
        return
    key = "" if message.key() is None else f"{_text(message.key())}\t"
    sys.stdout.write(f"{key}{_text(message.value())}\n")


def _text(content: bytes | None) -> str | None:
    """Decode bytes as text if they are text, otherwise as base64."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()
