"""A broker with a remote tier on a small file system that is filled to the last byte while its object store is away.

Run in a mount namespace of its own: `unshare --user --map-root-user --mount python -m tests.chaos.tiered_full_disk_run DIR`.
It mounts a tmpfs at DIR/disk, prints what it has seen, and ends with 1 and a traceback if something is not as it should be.
"""

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode

import stablelog
from tests.chaos.full_disk_run import Client, fill, say, size_of
from tests.clients.drivers import unique
from tests.clients.reading import read_to_end
from tests.waiting import until

NONE = ErrorCode.none
SIZE = "48m"
RESERVE_SIZE = 2 << 20
CYCLE_COUNT = 2
RECORD_SIZE = 50_000
TOPICS = {"o": "offset", "c": "commit"}
SETTINGS = {
    "log_segment_bytes": 1_000_000,
    "log_retention_check_interval_ms": 500,
    "log_local_retention_ms": 1000,
    "log_segment_delete_delay_ms": 0,
    "remote_log_manager_task_interval_ms": 300,
    "stablelog_disk_reserve_bytes": RESERVE_SIZE,
    "stablelog_remote_cache_bytes": 1_000_000,
    "stablelog_remote_coordinator_copy_interval_ms": 1000,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 1,
}


class Store:
    """A store in a directory that can go away: a file then has its name."""

    def __init__(self, path):
        self.path = path
        self._away = path.with_name("away")
        path.mkdir()

    def go(self):
        self.path.rename(self._away)
        self.path.write_text("")

    def come_back(self):
        self.path.unlink()
        self._away.rename(self.path)


class Written:
    """What producers were told of their records."""

    def __init__(self, client):
        self.client = client
        self.by_topic = defaultdict(list)
        self.count = 0

    def write(self, topic):
        """Whether the broker has taken a record."""
        self.count += 1
        value = b"%d " % self.count + bytes(RECORD_SIZE)
        if self.client.produce(topic, value) is not NONE:
            return False
        self.by_topic[topic].append(self.count)
        return True


def read(broker, topic):
    """The numbers of the records that a committed reader gets."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": unique("reader"),
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        return [int(message.value().split()[0]) for message in read_to_end(consumer, topic, 0)]
    finally:
        consumer.close()


def run(root):
    """The scenario."""
    began = time.monotonic()
    mount, store = root / "disk", Store(root / "store")
    data, ballast = mount / "data", mount / "ballast"
    with stablelog.serve(data, stablelog_remote_url=store.path.as_uri(), **SETTINGS) as broker:
        client = Client(broker.port)
        written = Written(client)
        for topic, order in TOPICS.items():
            client.create(topic, 1, stablelog_order=order, remote_storage_enable="true", retention_ms=-1)
            assert written.write(topic)
        pid = broker.pid
        for _ in range(CYCLE_COUNT):
            store.go()
            while all(written.write(topic) for topic in TOPICS):
                pass
            fill(ballast)
            say(f"the disk is full, with {written.count} records", began)
            before = size_of(data / "o-0")
            store.come_back()
            until(lambda: written.write("o") and written.write("c"), "producers go on by themselves")
            assert size_of(data / "o-0") < before
            say("the store is back, copied segments have left the disk, and producers go on", began)
            ballast.unlink()
        for topic in TOPICS:
            assert read(broker, topic) == written.by_topic[topic], topic
        assert broker.pid == pid
        assert "Traceback" not in broker.log_tail(10_000)
    say("done", began)


def main():
    root = Path(sys.argv[1])
    mount = root / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(mount)], check=True)
    run(root)


if __name__ == "__main__":
    main()
