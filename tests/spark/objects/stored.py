"""Topics in an object store, written by a broker: what the store has of them, and what consumers get from the broker."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import stablelog
from stablelog.env.objects.opening import open_store
from stablelog.testing.s3 import serve_s3
from stablelog.tier.prefix import Prefix
from tests.clients.drivers import Confluent
from tests.spark.histories import Writers
from tests.spark.reading import make, settled
from tests.waiting import until

TIERED = {"remote.storage.enable": "true", "segment.bytes": "1500", "local.retention.bytes": "1"}
OFTEN = {
    "remote_log_manager_task_interval_ms": 50,
    "log_retention_check_interval_ms": 50,
    "log_segment_delete_delay_ms": 0,
    "stablelog_remote_delete_delay_ms": 0,
}
TIMEOUT_S = 60


@dataclass
class Stored:
    """A store, and the broker that writes to it.

    Attributes:
        broker: the running broker.
        url: the URL of the store.
    """

    broker: object
    url: str

    @property
    def prefix(self):
        return Prefix(open_store(self.url))

    def manifest(self, topic, index=0):
        partitions = {one.partition: one for one in self.prefix.partitions(topic)}
        return self.prefix.last_manifest(partitions[index]) if index in partitions else None

    def write(self, topic, seed, *, partitions=1, steps=60, **configs):
        """Write a random history into a new tiered topic, and wait until its sealed segments are only in the store."""
        make(self.broker.bootstrap, topic, partitions, **{**TIERED, **configs})
        writers = Writers(self.broker.bootstrap, topic, partitions, seed)
        for _ in range(steps):
            writers.step()
        writers.end_all()
        if configs.get("stablelog.order") != "commit":
            settled(self.broker.bootstrap, topic)
        for index in range(partitions):
            self.wait_for_copies(topic, index)
        # Where the segments end depends on the digits of the time. The disk is to have a record that the store lacks.
        while partitions == 1 and self.consumed(topic)[-1][0] < self.manifest(topic).end_offset:
            writers.write(writers.plain)
            self.wait_for_copies(topic)
        return writers

    def wait_for_copies(self, topic, index=0):
        """Wait until the disk has one segment of a partition."""
        deadline = time.monotonic() + TIMEOUT_S
        directory = self.broker.data / f"{topic}-{index}"
        while len(list(directory.glob("*.log"))) > 1:
            assert time.monotonic() < deadline, "the segments are not deleted"
            time.sleep(0.02)

    def wait_until_copied(self, topic, index=0):
        """Wait until the store has all sealed segments of a partition, whose transactions have all ended."""

        def copied():
            manifest = self.manifest(topic, index)
            sealed = max(int(path.stem) for path in (self.broker.data / f"{topic}-{index}").glob("*.log"))
            return sealed == 0 or (manifest is not None and manifest.end_offset == sealed)

        until(copied, lambda: f"{topic}-{index} is not copied")

    def consumed(self, topic, *, committed=True):
        """(offset, value) of the records that a consumer gets."""
        return Confluent(self.broker.bootstrap).read(topic, committed=committed)


def serving(directory):
    """Start a broker with a store in a directory."""
    return stablelog.serve(directory / "data", stablelog_remote_url=f"file://{directory}/store", **OFTEN)


@contextlib.contextmanager
def in_s3(url):
    """Serve the objects of a store in a directory by S3. Yields the server, and the options of a read."""
    root = Path(urlsplit(url).path)
    with serve_s3("bucket") as s3:
        for path in root.rglob("*"):
            if path.is_file() and ".unfinished" not in path.parts and "pins" not in path.parts:
                s3.objects[f"prefix/{path.relative_to(root).as_posix()}"] = path.read_bytes()
        options = {f"store.{name}": value for name, value in s3.options.items()}
        yield s3, {"path": "s3://bucket/prefix", "store.allow_http": "true", **options}
