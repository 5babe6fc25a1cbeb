"""Apache Kafka's Java client, by the language of `tests.clients.drivers`: one Java process answers for all tests."""

import atexit
import base64
import contextlib
import functools
import json
import subprocess
from pathlib import Path

from peers import apache_kafka
from tests.java.dump import SHORT_LIVED

SOURCES = Path(__file__).parent


@functools.cache
def compiled(name: str, *more_jars: Path) -> str:
    """The class path of a compiled source and of what it needs; compiled again when the source has changed.

    Args:
        name: of the class, and of its source in this folder.
        more_jars: folders with jars that it needs beside Apache Kafka's.

    Raises:
        NotAvailableError: there is no Java, no compiler, or no jars.
    """
    folders = (apache_kafka.jars(), *more_jars)
    classes = apache_kafka.compiled(SOURCES / f"{name}.java", *folders)
    return ":".join([str(classes), *(f"{folder}/*" for folder in folders)])


class RefusedError(Exception):
    """The Java client raised: its exception's name, and what it says."""


class JavaProcess:
    """The process, asked and answering one line at a time."""

    def __init__(self) -> None:
        command = [apache_kafka.java(), *SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        command += ["-cp", compiled("Client"), "Client"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        atexit.register(self.close)

    def ask(self, bootstrap: str, what: str, settings: dict[str, object] | None = None, **more: object):
        """Have something done, and return what comes of it.

        Raises:
            RefusedError: with the exception that the client raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        given = {"bootstrap.servers": bootstrap, **(settings or {})}
        question = {"do": what, "settings": {name: text(value) for name, value in given.items()}, **more}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the Java process has ended"
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@functools.cache
def _process() -> JavaProcess | apache_kafka.NotAvailableError:
    try:
        return JavaProcess()
    except apache_kafka.NotAvailableError as missing:
        return missing  # so that a fetch that has failed is not tried again by every test


def process() -> JavaProcess:
    """The one that all tests of this run share.

    Raises:
        NotAvailableError: there is no Java, no compiler, or no jars.
    """
    started = _process()
    if isinstance(started, apache_kafka.NotAvailableError):
        raise started
    return started


def text(value: object) -> str:
    """A setting as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def encoded(value: bytes | None) -> str | None:
    """Bytes as they travel."""
    return None if value is None else base64.b64encode(value).decode()


def decoded(value: str | None) -> bytes | None:
    """Bytes that came."""
    return None if value is None else base64.b64decode(value)


class Java:
    """The Java client as a driver of `tests.clients`."""

    name = "java"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._process = process()
        self._names = 0

    def ask(self, what, settings=None, **more):
        """Have something done with the broker of this driver."""
        return self._process.ask(self.bootstrap, what, settings, **more)

    def open(self, settings):
        self._names += 1
        name = f"{id(self)}-{self._names}"
        self.ask(
            "producer", {"delivery.timeout.ms": 30_000, "request.timeout.ms": 15_000, **settings}, name=name
        )
        return name

    def tool(self, name, *arguments):
        """Run one of Kafka's commands against the broker, and return the lines that it prints."""
        given = ["--bootstrap-server", self.bootstrap, *arguments]
        printed = self.ask("tool", **{"class": name, "arguments": given})
        return [line for line in printed.splitlines() if line.strip()]

    def send(self, name, topic, values, **more):
        """Send by an open producer, and wait: [partition, offset] of each."""
        return self.ask("send", name=name, topic=topic, values=[encoded(value) for value in values], **more)

    def produce(self, topic, values, *, idempotent=True, compression="none"):
        """Write values to partition 0."""
        name = self.open({"enable.idempotence": idempotent, "compression.type": compression})
        self.send(name, topic, values, partition=0)
        self.ask("close", name=name)

    def producer(self, transactional_id, **settings):
        """A transactional producer; its name."""
        return self.open({"transactional.id": transactional_id, "linger.ms": 0, **settings})

    @contextlib.contextmanager
    def transactions(self, transactional_id):
        """A transactional producer, as the other drivers have it."""
        name = self.producer(transactional_id)

        def run(topic, values, *, commit, offsets=None):
            self.ask("begin", name=name)
            try:
                for one in (topic,) if isinstance(topic, str) else topic:
                    self.send(name, one, values, partition=0)
                if offsets is not None:
                    group, source, position = offsets
                    self.ask("offsets", name=name, group=group, offsets=[[source, 0, position]])
                self.ask("commit" if commit else "abort", name=name)
            except RefusedError:
                with contextlib.suppress(RefusedError):  # who was fenced has nothing to abort
                    self.ask("abort", name=name)
                raise

        yield run
        self.ask("close", name=name)

    def read_from(self, topic, starts, *, committed=True):
        """[(offset, value)] from each of several offsets."""
        settings = {
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "none",
            "fetch.max.wait.ms": 5,
            "enable.auto.commit": False,
        }
        answers = self.ask("read", settings, topic=topic, partition=0, starts=list(starts))
        return [[(row[0], decoded(row[3])) for row in rows] for rows in answers]

    def read(self, topic, *, start=0, committed=True):
        """[(offset, value)] from an offset up to the end."""
        return self.read_from(topic, [start], committed=committed)[0]

    def committed(self, group, topic):
        """The offset that a group has committed; None if it has not."""
        return self.ask("committed", group=group, at=[topic, 0])

    def consume(self, group, topic, count):
        """The next values for a member of a group, which commits them and leaves."""
        self._names += 1
        name = f"{id(self)}-{self._names}"
        settings = {
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.poll.records": 1,
            "fetch.max.wait.ms": 60_000,
            "request.timeout.ms": 120_000,
        }
        self.ask("consumer", settings, name=name, topics=[topic])
        found = []
        while len(found) < count:
            polled = self.ask("poll", name=name, ms=60_000, commit=True)
            found += [decoded(row[3]) for row in polled["records"]]
        self.ask("leave", name=name)
        return found

    def end(self, topic):
        """Behind the last position of a committed reader."""
        return self.ask("list_offsets", at=[topic, 0], spec="latest", committed=True)

    def at_time(self, topic, time_ms):
        """The first position of a committed reader at or after a time; None if there is none."""
        offset = self.ask("list_offsets", at=[topic, 0], spec=str(time_ms), committed=True)
        return offset if offset >= 0 else None
