"""How soon is a cut answered, and how far is it behind the last commit?

A cut is asked for as clients ask for it: the answer names every partition. R, the last commit that is whole everywhere,
lags behind the last commit that was decided by those whose markers are on their way to the disk.
"""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic

from bench.contestants import OURS
from bench.limits import Limits
from bench.loads import QUIET, percentile
from bench.report import Section
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.embedded import EmbeddedBroker

PARTITION_COUNTS = (1, 100, 1_000)
PRODUCERS = 4
TOPICS = ("lag-flights", "lag-weather")
PARTITIONS = 8
LOOK_EVERY_S = 0.001
LOAD = """
import sys, threading, time
from confluent_kafka import Producer
bootstrap, seconds, producers, partitions, *topics = sys.argv[1:]

def commit(number):
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"lag-{number}", "linger.ms": 0, "log_level": 0})
    producer.init_transactions(60)
    serial, ended = 0, False
    while not ended:
        serial, ended = serial + 1, time.monotonic() > until  # once at least
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"x" * 100, partition=(number + serial) % int(partitions))
        producer.commit_transaction(60)

until = time.monotonic() + float(seconds)
threads = [threading.Thread(target=commit, args=(n,)) for n in range(int(producers))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def make_topic(broker: EmbeddedBroker, name: str, partition_count: int) -> None:
    """A commit-ordered topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    topic = NewTopic(name, partition_count, config={"stablelog.order": "commit"})
    admin.create_topics([topic], operation_timeout=60, request_timeout=60)[name].result()


def measure_answers(broker: EmbeddedBroker, count: int, best: Limits, section: Section) -> None:
    """Ask for cuts through one, a hundred and a thousand partitions."""
    for partition_count in PARTITION_COUNTS:
        name = f"cut-{partition_count}"
        make_topic(broker, name, partition_count)
        with BlockingCluster(broker.bootstrap) as cluster:
            took: list[float] = []
            for number in range(count + 5):
                asked = time.perf_counter()
                cut = describe_cut(cluster, [name])
                if number >= 5:
                    took.append((time.perf_counter() - asked) * 1000)
            assert len(cut.offsets) == partition_count
        for percent in (50, 99):
            what = f"a cut through {partition_count:,} partition{'s' if partition_count > 1 else ''}, p{percent} ms"
            section.row(what, limit=best.round_trip_ms).add(OURS, percentile(took, percent))


@dataclass(slots=True)
class Lag:
    """How far R was behind, each time that it was looked at, and how long each commit took to be resolved."""

    commits: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    commit_count: int = 0


def measure_lag(broker: EmbeddedBroker, seconds: float, best: Limits, section: Section) -> Lag:
    """Look at R again and again while transactions over two topics are committed as fast as their producers can."""
    for name in TOPICS:
        make_topic(broker, name, PARTITIONS)
    settings = [broker.bootstrap, str(seconds), str(PRODUCERS), str(PARTITIONS), *TOPICS]
    with subprocess.Popen([sys.executable, "-c", LOAD, *settings]) as load:
        lag = watch(broker.bootstrap, lambda: load.poll() is not None)
    assert load.returncode == 0, "the load failed"
    section.row("under load: transactions per s").add(OURS, lag.commit_count / seconds)
    for percent in (50, 99):
        section.row(f"under load: R behind the last commit, p{percent} commits").add(
            OURS, percentile(lag.commits, percent)
        )
    for percent in (50, 99):
        row = section.row(f"under load: from a commit to R, p{percent} ms", limit=best.sync_ms)
        row.add(OURS, percentile(lag.ms, percent))
    return lag


def watch(bootstrap: str, ended: Callable[[], bool]) -> Lag:
    """Look at R until the load has ended, and R has come to its last commit."""
    lag, unresolved = Lag(), deque[tuple[int, float]]()
    with BlockingCluster(bootstrap) as cluster:
        first = last_seen = describe_cut(cluster, TOPICS).last_commit_sequence
        while True:
            over = ended()
            cut = describe_cut(cluster, TOPICS)
            now = time.perf_counter()
            unresolved.extend((g, now) for g in range(last_seen + 1, cut.last_commit_sequence + 1))
            last_seen = max(last_seen, cut.last_commit_sequence)
            while unresolved and unresolved[0][0] <= cut.commit_sequence:
                lag.ms.append((now - unresolved.popleft()[1]) * 1000)
            lag.commits.append(cut.last_commit_sequence - cut.commit_sequence)
            if over and not unresolved:
                lag.commit_count = last_seen - first
                return lag
            time.sleep(LOOK_EVERY_S)
