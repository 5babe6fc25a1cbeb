"""A broker with a store that is killed at any step, a writer that goes on, and a consumer that reads what was committed.

STABLELOG_KILLS tells how often a test kills.
"""

import contextlib
import os
import threading
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.env.objects.opening import open_store
from stablelog.ops.stored_partitions import PartitionUsage, measure_partition
from stablelog.tier.prefix import Prefix
from tests.chaos.confluent import patiently
from tests.clients.reading import bounds, read_to_end

KILLS = int(os.environ.get("STABLELOG_KILLS", "6"))
TRANSACTION_RECORDS = 10
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "file.delete.delay.ms": "0"}
DELETING = {**TIERED, "retention.bytes": "250000"}
DROPPING = {
    **TIERED,
    "local.retention.bytes": "40000",
    "stablelog.remote.drop.aborted": "true",
    "stablelog.local.drop.aborted": "true",
}


class Writer(threading.Thread):
    """Commits transactions until it is told to stop; each fourth one is aborted. Attribute `committed`: the values."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.stopping = address, threading.Event()
        self.committed = []

    def run(self):
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "transactional.id": "writer",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )
        producer.init_transactions(60)
        number = 0
        while not self.stopping.is_set():
            values = [b"%d-%d " % (number, place) for place in range(TRANSACTION_RECORDS)]
            producer.begin_transaction()
            for value in values:
                producer.produce("t", value.ljust(1000), partition=0)
            producer.flush(60)
            if number % 4 == 3:
                patiently(producer.abort_transaction)
            else:
                patiently(producer.commit_transaction)
                self.committed += values
            number += 1


@contextlib.contextmanager
def written(directory, config, **settings):
    """A broker with a store in a directory, and a writer that fills the topic `t`."""
    with stablelog.serve(
        directory / "data",
        stablelog_remote_url=(directory / "store").as_uri(),
        remote_log_manager_task_interval_ms=10,
        log_retention_check_interval_ms=20,
        log_segment_bytes=40_000,
        **settings,
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(30)
        writer = Writer(broker.bootstrap)
        writer.start()
        yield broker, writer


def kill(broker, chance):
    """Kill the broker at any step, and start it again."""
    time.sleep(chance.uniform(0, 0.1))
    broker.kill()
    broker.start()


def stop(writer):
    """End the writer's last transaction."""
    writer.stopping.set()
    writer.join(60)
    assert not writer.is_alive()


def committed_in(broker):
    """The log start offset, and the values that a read-committed consumer gets from there to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    with contextlib.closing(consumer):
        start, _ = bounds(consumer, "t")
        found = [message.value().rstrip() + b" " for message in read_to_end(consumer, "t", start=start)]
    return start, found


def described(store):
    """What the store has of the topic."""
    prefix = Prefix(open_store(store.as_uri()))
    found = (
        [measure_partition(prefix, one) for one in prefix.partitions("t")] if "t" in prefix.topics() else []
    )
    return found[0] if found else PartitionUsage("t", "", 0)


def log_start(store):
    return described(store).log_start


def unneeded(store):
    """The number of segments that are marked for deletion, and of objects that no manifest names."""
    found = described(store)
    return found.marked, found.unnamed


def copied_count(store):
    return sum(1 for _ in store.rglob("*.log"))
