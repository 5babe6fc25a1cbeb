"""A broker with tiered storage in a process of its own, its S3 server, and a writer that knows what it has committed."""

import contextlib
import dataclasses
import os
import re
import sys
import time
from datetime import timedelta

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import stablelog
from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer as BatchProducer
from stablelog.embedded import LOG_FILE
from stablelog.env.local_disk import LocalDisk
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import LinkKind, decode_link
from stablelog.tier.local_state import LocalState
from stablelog.tier.names import INDEXES, LOG, partition_of
from stablelog.tier.prefix import Prefix
from stablelog.tier.records import SegmentRecord, SegmentState, SegmentUpdateRecord, decode_record
from stablelog.wire.messages import message_class
from tests.broker.desk import filled
from tests.broker.tiering.restoring import live_rows, manifests
from tests.clients.proxy import Peer
from tests.clients.reading import bounds, read_to_end
from tests.waiting import PATIENCE_S, until

URL, PREFIX = "s3://bucket/prefix", "prefix/"
TOPIC, METADATA_TOPIC, COMMIT_LOG = "t", "__remote_log_metadata", "__transaction_state"
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "file.delete.delay.ms": "0"}
SETTINGS = {
    "stablelog_remote_allow_http": True,
    "remote_log_manager_task_interval_ms": 10,
    "log_retention_check_interval_ms": 20,
    "log_segment_bytes": 20_000,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 1,
    "stablelog_remote_coordinator_copy_interval_ms": 1_000,
}
# Clients find the broker soon after a kill, and repeat a fetch soon that the store has delayed.
SOON = {"reconnect.backoff.ms": 10, "retry.backoff.ms": 10, "fetch.error.backoff.ms": 10}
RECORD_COUNT, RECORD_SIZE = 5, 1_000  # of a transaction
ABORTED_EACH = 4  # each fourth transaction is aborted
PROBLEM = re.compile(" (ERROR|WARNING) ")  # A line of the broker's log.
FETCH = (1, 11)  # The API and its version.
TRANSACTION_COUNT = 9  # Four or five transactions fill a segment.


def reach(s3, monkeypatch, endpoint=None):
    """Let brokers that are started from now on reach a server."""
    options = {**s3.options, **({} if endpoint is None else {"aws_endpoint": endpoint})}
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)


class Writer:
    """Writes transactions to the topic, one after the other, each as one batch of records.

    Attributes:
        committed: (offset, value) of each committed record.
    """

    def __init__(self, address):
        self._cluster = BlockingCluster(address, timeout_s=PATIENCE_S, deadline_s=PATIENCE_S)
        self._producer = BatchProducer(self._cluster, "writer", on_acknowledged=self._acknowledged)
        self._producer.begin()
        self._count = 0
        self._open = []
        self.committed = []

    def _acknowledged(self, _number, base_offset):
        self._open = [(base_offset + place, value) for place, value in enumerate(self._values)]

    def begin(self, size=RECORD_SIZE):
        """Begin a transaction, and write its records."""
        if self._producer.producer_id < 0:
            self._producer.begin()
        self._values = [(b"%d-%d " % (self._count, place)).ljust(size) for place in range(RECORD_COUNT)]
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([Record(0, now_ms, None, value) for value in self._values], transactional=True)
        self._producer.append(TOPIC, 0, bytearray(batch))
        self._producer.flush()
        self._count += 1

    def end(self):
        """End the transaction: each fourth is aborted."""
        is_committed = self._count % ABORTED_EACH != 0
        self._producer.end(commit=is_committed)
        if is_committed:
            self.committed += self._open

    def write(self, count, size=RECORD_SIZE):
        """Write whole transactions."""
        for _ in range(count):
            self.begin(size)
            self.end()

    def close(self):
        """Close the connections."""
        self._producer.close()
        self._cluster.close()


class Life:
    """A broker, and what is known about it.

    Args:
        earlier: the number of lines of its log before it was started.

    Attributes:
        broker: the broker.
        s3: the store.
        writer: the writer; None before `create`.
    """

    def __init__(self, broker, s3, earlier):
        self.broker = broker
        self.s3 = s3
        self.writer = None
        self._earlier = earlier

    def create(self, config=TIERED):
        """Create the topic, and begin to write."""
        admin = self.admin()  # a client that nobody holds gives up its requests
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        self.writer = Writer(self.broker.bootstrap)

    def go_on(self, writer):
        """Write after what another life has written."""
        self.writer = Writer(self.broker.bootstrap)
        self.writer.committed = list(writer.committed)

    def errors(self):
        """The lines of the broker's log that are errors or warnings, since this life has begun."""
        lines = self.broker.log_tail(sys.maxsize).splitlines()[self._earlier :]
        return [line for line in lines if PROBLEM.search(line)]

    def fetch(self, offset, *, max_wait_ms=500):
        """Fetch from an offset.

        Returns:
            The error code, the records, and the seconds that the broker needed.
        """
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        values = {
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "rack_id": "",
            "forgotten_topics_data": (),
            "isolation_level": 1,
            "topics": [{"topic": TOPIC, "partitions": [wanted]}],
        }
        request = filled(message_class(*FETCH, "request"), values)
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        with contextlib.closing(Peer(self.broker.port)) as peer:
            asked_s = time.monotonic()
            answer = peer.ask(*FETCH, **fields)
            seconds = time.monotonic() - asked_s
        found = answer.responses[0].partitions[0]
        return found.error_code, found.records, seconds

    def admin(self):
        """A client for changes of topics."""
        return AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def configure(self, **config):
        """Change settings of the topic."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=entries)
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(30)

    def write(self, size=RECORD_SIZE):
        """Write transactions that fill two segments, and a part of the next one."""
        self.writer.write(TRANSACTION_COUNT, size)

    def kill(self):
        """Kill the broker, and start it again."""
        self.broker.kill()
        self.broker.start()

    # -- the local disk ------------------------------------------------------------------------------------------

    @property
    def directory(self):
        """The directory of the partition."""
        return self.broker.data / f"{TOPIC}-0"

    def local_bases(self):
        """The base offsets of the segments on the local disk."""
        return sorted(int(name[:20]) for name in os.listdir(self.directory) if name.endswith(".log"))

    def wait_until_remote(self):
        """Wait until all sealed segments are only in the store."""
        newest = self.local_bases()[-1]
        assert newest > 0, "a segment is sealed"
        until(lambda: self.local_bases() == [newest], lambda: f"local: {self.local_bases()}")

    def recorded(self):
        """The manifest that is recorded in the partition's directory."""
        return LocalState(LocalDisk(), self.directory).read_manifest()

    def recorded_ids(self):
        """The ids of the segments in this manifest."""
        return {row.segment_id for row in live_rows(self.recorded())}

    def states(self):
        """By the id of a segment, the states that `__remote_log_metadata` tells, oldest first."""
        found = {}
        for log in sorted((self.broker.data / f"{METADATA_TOPIC}-0").glob("*.log")):
            content = log.read_bytes()
            for position, _header in headers_in(content):
                for record in decode_records(content, position):
                    event = decode_record(record.value)
                    if isinstance(event, SegmentRecord | SegmentUpdateRecord):
                        found.setdefault(event.segment.segment_id, []).append(event.state)
        return found

    # -- the store -----------------------------------------------------------------------------------------------

    def objects(self):
        """The objects of the store, by key without the prefix."""
        return {key.removeprefix(PREFIX): content for key, content in list(self.s3.objects.items())}

    def is_commit_log_copied(self, name=COMMIT_LOG):
        """Whether the store has all of the commit log, or of another log of a coordinator."""
        *_, newest = sorted((self.broker.data / f"{name}-0").glob("*.log"))
        ends = {one.topic: manifest.end_offset for one, manifest in manifests(self.objects()).items()}
        return newest.stat().st_size == 0 and ends.get(name) == int(newest.stem)

    # -- what holds ----------------------------------------------------------------------------------------------

    def consumer(self):
        """A read-committed consumer."""
        return Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **SOON,
            }
        )

    def bounds(self):
        """The log start offset, and the last stable offset."""
        with contextlib.closing(self.consumer()) as consumer:
            return bounds(consumer, TOPIC)

    def check(self, before=(0, 0)):
        """Check what must hold after a crash, when all sealed segments are in the store.

        Args:
            before: the log start offset and the last stable offset before the crash.
        """
        start, stable = self.bounds()
        assert start >= before[0]
        assert stable >= before[1]
        assert start == 0, "nothing is deleted"
        self.check_reads()
        self.check_objects()
        self.check_events()

    def check_reads(self, *starts):
        """A read-committed consumer gets the committed records from these offsets on; if there are none, from the earliest
        offset and from the middle of each tier.
        """
        newest = self.local_bases()[-1]
        with contextlib.closing(self.consumer()) as consumer:
            for start in starts or (0, newest // 2, newest + 1):
                read = [(one.offset(), one.value()) for one in read_to_end(consumer, TOPIC, start=start)]
                assert read == [one for one in self.writer.committed if one[0] >= start]

    def check_objects(self):
        """Every manifest that was ever published names only objects that exist and have the size that it says."""
        objects = self.objects()
        store = Prefix(ObjectStore(SimObjects(faults=StoreFaults(latency_s=0), objects=objects)))
        ends = {}
        for key in sorted(key for key in objects if "/manifest/" in key):
            kind, payload = decode_link(objects[key])
            if kind is not LinkKind.MANIFEST:
                continue
            partition = partition_of("/".join(key.split("/")[:3]))
            manifest, _ = store.read_manifest(partition, payload)
            for row in live_rows(manifest):
                log = objects[partition.segment_key(row.base_offset, row.segment_id, LOG)]
                assert len(log) == row.size
                assert partition.segment_key(row.base_offset, row.segment_id, INDEXES) in objects
            assert manifest.end_offset >= ends.get(partition, 0), "the end in the store never goes back"
            ends[partition] = manifest.end_offset
        named = {partition.topic: end for partition, end in ends.items()}
        assert named[TOPIC] == self.local_bases()[-1]

    def check_events(self):
        """`__remote_log_metadata` tells of each segment in the manifest that its copy has begun, and that it has ended."""
        begun, ended = SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED
        ids = self.recorded_ids()

        def is_told():
            states = self.states()
            return all(states.get(one, [])[:1] == [begun] and ended in states[one] for one in ids)

        until(is_told, lambda: f"events: {self.states()}")
        assert all(states == sorted(states) for states in self.states().values())


@contextlib.contextmanager
def lived(directory, monkeypatch, *, before=lambda _s3: None, **settings):
    """A broker with an S3 server.

    Args:
        before: called with the server before the broker starts.
    """
    with serve_s3() as s3:
        reach(s3, monkeypatch)
        before(s3)
        with alive(directory / "data", s3, **settings) as life:
            yield life


@contextlib.contextmanager
def alive(data, s3, *, url=URL, **settings):
    """A broker on a data directory, from a start to a stop, with an S3 server that runs."""
    log = data / LOG_FILE
    earlier = len(log.read_text().splitlines()) if log.exists() else 0
    with stablelog.serve(data, stablelog_remote_url=url, **{**SETTINGS, **settings}) as broker:
        life = Life(broker, s3, earlier)
        try:
            yield life
        finally:
            if life.writer is not None:
                life.writer.close()
