"""`stablelog consume`: print the records of a topic."""

import base64
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from stablelog.cli.admin import TIMEOUT_S, ask, end_offsets, interrupts, known_topic, quiet
from stablelog.cli.broker import Broker, with_broker
from stablelog.cli.disk_watch import disk_watch, fail_if_full
from stablelog.cli.options import AsJson, command_app
from stablelog.cli.output import fail, print_json
from stablelog.cli.partition_watch import PartitionWatch, unavailable_partitions

POLL_S = 0.5
# A reader without --follow fails when its remaining partitions could not be read for this time.
UNREADABLE_S = 30.0
OFFSET_MAX = (1 << 63) - 1
COMMIT_LATER = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)
WORDS = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}

app = command_app()


@app.command()
@with_broker
def consume(
    topic: str,
    isolation: Annotated[str, typer.Option(help="read_committed or read_uncommitted.")] = "read_committed",
    start: Annotated[str, typer.Option("--from", help="earliest, latest, or an offset.")] = "earliest",
    count_max: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this number of records.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit the offsets.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="At the end, wait for new records.")] = False,
    as_json: AsJson = False,
    *,
    broker: Broker,
) -> None:
    """Print the records of a topic up to its end. With --follow, wait for new records at the end."""
    _check(isolation, start, group)
    bootstrap = broker.reach()
    partitions = sorted(known_topic(bootstrap, topic).partitions)
    places = _places(bootstrap, topic, partitions, start, isolation)
    settings = {
        "group.id": group or "stablelog-cli",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "check.crcs": True,
        "auto.offset.reset": "latest" if start == "latest" else "earliest",
    }
    consumer = Consumer(quiet(bootstrap, **settings))
    membership: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if group is None:
        consumer.assign(places)
        begin = {at.partition: at.offset for at in places if at.offset >= 0 or at.offset == OFFSET_BEGINNING}
        watch = PartitionWatch(bootstrap, topic, partitions, begin, isolation)
    else:
        membership = _joined(bootstrap, consumer, topic, group, follow=follow)
        watch = PartitionWatch(bootstrap, topic, (), {}, isolation)
    reader = Reader(consumer, group, watch, follow=follow, as_json=as_json)
    try:
        with interrupts(), membership, watch:
            reader.print_records(len(partitions), count_max)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


def _check(isolation: str, start: str, group: str | None) -> None:
    """Check that the options of the command are valid and do not contradict each other.

    Raises:
        Unavailable: an option is not valid.
    """
    if isolation not in ("read_committed", "read_uncommitted"):
        fail(f"--isolation {isolation} is not valid: read_committed or read_uncommitted")
    if start not in WORDS:
        if not (start.isascii() and start.isdecimal() and len(start) < 20 and int(start) <= OFFSET_MAX):
            fail(f"--from {start} is not valid: earliest, latest or an offset")
        if group is not None:
            fail(
                f"--from {start} is not valid with --group: a group continues at its committed offsets; earliest or "
                "latest say where a new group begins"
            )
    if group == "":
        fail("--group '' is not valid: the name of a group has one character or more")


@contextlib.contextmanager
def _joined(bootstrap: str, consumer: Consumer, topic: str, group: str, *, follow: bool) -> Iterator[None]:
    """Join a consumer group. Report on stderr if the broker accepts no members because its disk is full."""
    joined = threading.Event()
    with disk_watch(
        bootstrap,
        lambda: not joined.is_set(),
        f"group {group} may accept no members until the disk has space",
        f"group {group} is joined",
    ) as watch:

        def assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            joined.set()
            watch.progress()
            if not partitions and not follow:
                fail(
                    f"other members of group {group} read all partitions; with --follow this member waits for a partition"
                )

        def revoked(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
            joined.clear()
            watch.progress()

        consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        yield


def _places(
    bootstrap: str, topic: str, partitions: list[int], start: str, isolation: str
) -> list[TopicPartition]:
    """Return the start offset of each partition: the offset that `start` names, but at most the partition's end
    offset.
    """
    if start in WORDS:
        return [TopicPartition(topic, index, WORDS[start]) for index in partitions]
    offset = int(start)
    unavailable = unavailable_partitions(bootstrap, [topic])
    served = [(topic, index) for index in partitions if (topic, index) not in unavailable]
    ends = {index: end for (_, index), (_, end) in end_offsets(bootstrap, served, isolation).items()}
    end_max = max(ends.values(), default=OFFSET_MAX)
    if offset > end_max and not unavailable:
        fail(f"--from {start} is not valid: {topic} ends at offset {end_max}")
    return [TopicPartition(topic, index, min(offset, ends.get(index, offset))) for index in partitions]


class Reader:
    """Prints the records that a consumer gets.

    Args:
        consumer: the consumer of librdkafka, with assigned partitions or as a member of the group.
        group: the consumer group; None if there is none.
        watch: reports on stderr which partitions cannot be read. The reader reports its progress to the watch.
        follow: whether to wait for new records at the end.
        as_json: whether to print JSON.
    """

    def __init__(
        self,
        consumer: Consumer,
        group: str | None,
        watch: PartitionWatch,
        *,
        follow: bool,
        as_json: bool,
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._watch = watch
        self._follow = follow
        self._as_json = as_json
        self._ended: set[int] = set()  # the partitions that the reader has read to their end
        self._count = 0

    def print_records(self, partition_count: int, count_max: int | None) -> None:
        """Print records until the end of the topic or until `count_max` are printed, and commit the group's offsets.

        Raises:
            Unavailable: a partition cannot be read to its end, or the broker does not respond.
        """
        heard_s = time.monotonic()
        while self._count != count_max and (self._follow or len(self._ended) < partition_count):
            message = self._consumer.poll(POLL_S)
            if message is not None:
                heard_s = time.monotonic()
                self._take(message)
                continue
            sys.stdout.flush()
            assigned = self._assigned() if self._group is not None else set()
            if self._follow:
                continue
            if assigned and self._ended >= assigned:
                break  # the assigned partitions are read; other members of the group read the other partitions
            if (why := self._watch.given_up(UNREADABLE_S)) is not None:
                self._commit()
                fail(
                    f"{self._watch.topic} cannot be read to its end: {why}. With --follow, consume waits until it can"
                )
            if time.monotonic() > heard_s + TIMEOUT_S:
                what = f"reading {self._watch.topic}"
                ask(self._watch.bootstrap, lambda: self._consumer.list_topics(timeout=TIMEOUT_S), what)
                heard_s = time.monotonic()
        self._commit()

    def _take(self, message: Any) -> None:
        """Print the record in a message. If the message reports the end of a partition instead, note that the partition
        is read to its end.

        Raises:
            Unavailable: the consumer reports an error.
        """
        partition, error = message.partition(), message.error()
        if error is None:
            self._ended.discard(partition)
            self._watch.heard(partition, message.offset() + 1)
            print_record(message, as_json=self._as_json)
            self._count += 1
            if self._group is not None:
                self._consumer.commit(message=message, asynchronous=True)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
            self._ended.add(partition)
            self._watch.ended(partition)
        else:
            where = f"{self._watch.topic}-{partition}" if partition >= 0 else self._watch.topic
            fail(f"reading {where} from {self._watch.bootstrap}: {error.str()}")

    def _assigned(self) -> set[int]:
        """Return the partitions that are assigned to this group member. Report a changed assignment to the watch."""
        assignment = self._consumer.assignment()
        assigned = {at.partition for at in assignment}
        if assigned != self._watch.partitions:
            committed: list[TopicPartition] = []
            with contextlib.suppress(KafkaException):
                committed = self._consumer.committed(assignment, timeout=TIMEOUT_S) if assignment else []
            self._watch.assigned(assigned, {at.partition: max(at.offset, -1) for at in committed})
        return assigned

    def _commit(self) -> None:
        """Commit the group's offsets of the printed records. Retry for TIMEOUT_S on an error that a retry can resolve.

        Raises:
            Unavailable: the offsets were not committed; the message says why.
        """
        if self._group is None or not self._count:
            return
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._consumer.commit(asynchronous=False)
                return
            except KafkaException as error:
                reason = error.args[0]
            if reason.code() == KafkaError._NO_OFFSET:  # noqa: SLF001 - its name in the library
                return  # the error means that all offsets are committed already
            if reason.code() not in COMMIT_LATER or time.monotonic() >= deadline_s:
                what = f"committing the offsets of group {self._group}, which reads the last records again"
                fail_if_full(self._watch.bootstrap, what)
                fail(f"{what}: {reason.str()}")
            time.sleep(POLL_S)


def print_record(message: Any, *, as_json: bool) -> None:
    """Print a record: key and value, or all its parts as JSON."""
    key, value = _text(message.key()), _text(message.value())
    if as_json:
        print_json(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp_ms": message.timestamp()[1],
                "key": key,
                "value": value,
                "headers": [[name, _text(content)] for name, content in message.headers() or []],
            }
        )
    else:
        sys.stdout.write(f"{value}\n" if key is None else f"{key}\t{value}\n")


def _text(content: bytes | None) -> str | None:
    """Return bytes as text if they are valid UTF-8, otherwise as base64."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()
