"""Start and stop of a broker with many partitions, and what an idle partition takes.

The broker holds one topic of 10,000 partitions. A start counts until every partition can be read and written. Processor time is
that of the broker's process. *Written* means one record in each partition since the last start or stop.

    python -m bench --only many-partitions
"""

import os
import re
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from bench.contestants import OURS, memory_mb
from bench.loads import PATIENCE_S, QUIET
from bench.report import Section, Wanted
from stablelog.embedded import EmbeddedBroker

TOPIC = "wide"
PARTITION_COUNT = 10_000
START_S_MAX = STOP_S_MAX = 10.0
DESCRIPTORS_MAX = 2.0
CREATION_S = 300  # the client's patience
OPENED = re.compile(r"opened (\d+)(?: of \d+)? partitions in \d+ ms")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(run_count: int, divisor: int, tell: Callable[[str], object]) -> list[Section]:
    """All figures.

    Args:
        run_count: runs that are counted.
        divisor: of the count of partitions.
        tell: told what is being done.
    """
    count = PARTITION_COUNT // divisor
    section = Section(f"{count:,} partitions", beside="")
    with (
        tempfile.TemporaryDirectory(prefix="many-") as directory,
        stablelog.serve(Path(directory) / "data", stablelog_max_partitions=count + 200) as broker,
    ):
        begun = descriptor_count(broker)
        tell(f"making {count:,} partitions")
        section.row("CreateTopics, s").add(OURS, seconds(lambda: create(broker, count)))
        for number in range(run_count):
            tell(f"starts and stops, run {number + 1} of {run_count}")
            starts_and_stops(Turn(broker, section, count))
        write_all(broker, count)
        taken = (descriptor_count(broker) - begun) / count
        wanted = Wanted(DESCRIPTORS_MAX, at_most=True, of_figure=True)
        section.row("descriptors of an idle partition", wanted=wanted).add(OURS, taken)
        section.row("memory, MB").add(OURS, memory_mb(broker.pid))
    return [section]


class Turn:
    """One broker whose starts and stops are measured.

    Args:
        broker: is running.
        section: gets the figures.
        count: of the partitions.
    """

    def __init__(self, broker: EmbeddedBroker, section: Section, count: int) -> None:
        self.broker = broker
        self.count = count
        self._section = section
        self._log = broker.log_path

    def start(self, what: str) -> None:
        """Start the broker, and note how long it took until every partition was open."""
        seen = len(self._log.read_text())

        def opened() -> None:
            self.broker.start(PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not OPENED.search(self._log.read_text(), seen):
                assert time.monotonic() < deadline, "the partitions are not opened"
                time.sleep(0.01)

        self._note(what, seconds(opened), START_S_MAX, processor_s(self.broker.pid))

    def stop(self, what: str) -> None:
        """Stop the broker in order, and note how long it took."""
        before = processor_s(self.broker.pid) + processor_s_of_ended()
        taken_s = seconds(self.broker.stop)
        self._note(what, taken_s, STOP_S_MAX, processor_s_of_ended() - before)

    def _note(self, what: str, taken_s: float, wanted_s: float, processor: float) -> None:
        wanted = Wanted(wanted_s, at_most=True, of_figure=True)
        self._section.row(f"{what}, s", wanted=wanted).add(OURS, taken_s)
        self._section.row(f"{what}, processor s").add(OURS, processor)


def starts_and_stops(turn: Turn) -> None:
    """Starts after kills and clean stops, with records in all partitions and in none."""
    write_all(turn.broker, turn.count)
    turn.broker.kill()
    turn.start("start after a kill, all written")
    turn.broker.kill()
    turn.start("start after a kill, none written")
    write_all(turn.broker, turn.count)
    turn.stop("clean stop, all written")
    turn.start("start after a clean stop")
    turn.stop("clean stop, none written")
    turn.broker.start(PATIENCE_S)


def create(broker: EmbeddedBroker, count: int) -> None:
    """Create the topic."""
    settings = {"bootstrap.servers": broker.bootstrap, "socket.timeout.ms": CREATION_S * 1000, **QUIET}
    admin = AdminClient(settings)  # one that nobody holds gives up its requests
    made = admin.create_topics(
        [NewTopic(TOPIC, count, 1)], request_timeout=CREATION_S, operation_timeout=CREATION_S
    )
    made[TOPIC].result()


def write_all(broker: EmbeddedBroker, count: int) -> None:
    """Have a record acknowledged in every partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
    for number in range(count):
        producer.produce(TOPIC, b"value", partition=number)
    assert producer.flush(PATIENCE_S) == 0


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, by the clock."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def processor_s(pid: int) -> float:
    """Processor time of a process up to now, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def processor_s_of_ended() -> float:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def descriptor_count(broker: EmbeddedBroker) -> int:
    """How many descriptors the broker has open."""
    return len(os.listdir(f"/proc/{broker.pid}/fd"))
