"""A broker that is killed with -9 while it copies. Afterwards a consumer reads every committed record, once.

STABLELOG_KILLS tells how often.
"""

import contextlib
import os
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.env.objects.opening import open_store
from stablelog.ops.stored_partitions import StoredPartition, describe
from stablelog.tier.prefix import Prefix
from tests.chaos.confluent import patiently
from tests.clients.reading import bounds, read_to_end
from tests.scale import randomness
from tests.waiting import until

KILLS = int(os.environ.get("STABLELOG_KILLS", "6"))
TRANSACTION_RECORDS = 10
COPIED_MIN = 8  # more segments than stay on the local disk
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


@pytest.mark.slow
@pytest.mark.timeout(200 + 10 * KILLS)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TIERED, id="whole"),
        pytest.param(DROPPING, id="without-aborted-data", marks=pytest.mark.night),
    ],
)
def test_no_committed_record_is_lost_when_the_broker_is_killed_while_it_copies(config, tmp_path):
    chance = randomness("tiered kills", KILLS)
    store = tmp_path / "store"
    with written(tmp_path, config, log_cleaner_backoff_ms=10) as (broker, writer):
        for _ in range(KILLS):
            copied = _copied(store)
            until(lambda copied=copied: _copied(store) > copied, "nothing is copied")
            kill(broker, chance)
        copied = max(_copied(store), COPIED_MIN)
        until(lambda: _copied(store) > copied, "nothing is copied")
        stop(writer)
        start, read = committed_in(broker)
    assert start == 0
    assert read == writer.committed
    logs = [name for name in os.listdir(tmp_path / "data" / "t-0") if name.endswith(".log")]
    assert len(logs) < _copied(store), "most segments are only in the store"


@pytest.mark.slow
@pytest.mark.timeout(200 + 10 * KILLS)
def test_a_store_keeps_only_what_is_needed_when_the_broker_is_killed_while_it_deletes(tmp_path):
    chance = randomness("kills and deletions", KILLS)
    store = tmp_path / "store"
    with written(tmp_path, DELETING, stablelog_remote_delete_delay_ms=50) as (broker, writer):
        starts = []
        for _ in range(KILLS):
            start = _log_start(store)
            until(lambda start=start: _log_start(store) > start, "nothing is deleted")
            starts.append(_log_start(store))
            kill(broker, chance)
        stop(writer)
        until(lambda: _unneeded(store) == (0, 0), lambda: f"marked and unnamed: {_unneeded(store)}")
        _, read = committed_in(broker)
    assert starts == sorted(starts)
    assert 0 < len(read) < len(writer.committed)
    assert read == writer.committed[-len(read) :]


def _described(store):
    """What the store has of the topic."""
    prefix = Prefix(open_store(store.as_uri()))
    found = [describe(prefix, one) for one in prefix.partitions("t")] if "t" in prefix.topics() else []
    return found[0] if found else StoredPartition("t", "", 0)


def _log_start(store):
    return _described(store).log_start


def _unneeded(store):
    """The number of segments that are marked for deletion, and of objects that no manifest names."""
    found = _described(store)
    return found.marked, found.unnamed


def _copied(store):
    return sum(1 for _ in store.rglob("*.log"))
