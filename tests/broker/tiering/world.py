"""A partition that a `PartitionCopier` copies to an object store, and the starts of its broker. No broker runs.

Disk and object store are simulated, so a test can stop the machine at any of their operations.
"""

import asyncio
import contextlib
import itertools
import logging
import random
from types import SimpleNamespace

from stablelog.batch.header import headers_in
from stablelog.broker.tiering.copy_plans import TopicCopyPlan
from stablelog.broker.tiering.copy_throttle import CopyThrottle
from stablelog.broker.tiering.partition_copier import PartitionCopier
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.testing.sim_objects import SimObjects
from stablelog.tier.chain import last_manifest
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, encode_manifest
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.remote_log import RemoteLog
from tests.broker.desk import NO_RESERVE
from tests.log.timeline import Log
from tests.tier.tiered_log import PARTITION, Loaded, TieredLog

CLUSTER = "cluster"
UNLIMITED = 1 << 40
DELAY_S = 3600.0  # of deletions from the store
WORDS = ("P1 - P1c", "P1 P2 P1a", "- P2c", "P3 P3", "P3a -")  # the content of five segments


class World(TieredLog):
    """A partition of one segment for each text in `words`, and a growing segment without records.

    Args:
        objects: the object store, which may be that of another world; an empty one if none is given.
        words: the content of each segment.
    """

    def __init__(self, objects=None, words=WORDS, **config):
        self.store_objects = objects or SimObjects()
        self.now_s = 0.0  # the clock that measures the delay of deletions
        self.configs = {"remote.storage.enable": "true"}
        super().__init__(**{"local_retention_ms": 0, "local_retention_bytes": 0, **config})
        LocalState(self.disk, self.directory).write_manifest(encode_manifest(Manifest(CLUSTER), 0))
        self.plain = Log()
        self.write_segments(words)
        self.start()

    def write_segments(self, words):
        """Write further segments, and the same records to a log without a remote tier."""
        for one in words:
            for log in (self, self.plain):
                log.write(one)
                log.partition.roll(log.now_ms)
                log.sync()

    def start(self, store=None, *, cluster_id=CLUSTER, throttle=None):
        """Start a broker: with new objects, from what is on the disk and in the store."""
        objects = self.store_objects
        if store is None:
            store = ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep)
        state, manifest, log_start = LocalState(self.disk, self.directory), None, 0
        with contextlib.suppress(DamageError):
            log_start = state.read_start()
            manifest = state.read_manifest()
        self.loaded = Loaded(objects.objects)
        self.remote = self.partition.remote = RemoteLog(
            PARTITION,
            manifest,
            self.loaded,
            state.write_start,
            chunk_size=100,
            log_start=log_start,
        )
        self.storage = RemoteStorage(store, cluster_id, now_s=lambda: self.now_s)
        self.plan = TopicCopyPlan()
        self.copier = PartitionCopier(
            self.storage,
            SimpleNamespace(
                disk=self.disk, reserve=NO_RESERVE, clock=SimpleNamespace(wall_ms=lambda: self.now_ms)
            ),
            node_id=1,
            is_open=lambda partition: not partition.availability.is_closed,
            topic_of=lambda _name: SimpleNamespace(
                topic_id=PARTITION.topic_id, partition_count=1, configs=self.configs
            ),
            throttle=throttle or CopyThrottle(lambda: UNLIMITED),
            count_at_once=1,
            delay_s=lambda: DELAY_S,
            plan=self.plan,
            now_s=lambda: self.now_s,
        )

    def restart(self):
        """End the broker, and start it again."""
        self.copier.close()
        self.reopen()
        self.start()

    def power_failure(self, chance, disk=None):
        """The machine stops, and starts again: what was not synced may be lost.

        Args:
            chance: decides what is lost.
            disk: the disk at the stop, if the machine starts from it once more.
        """
        self.copier.close()
        self.store_objects.between = lambda _call, _key: None
        self.disk = (disk or self.disk).crash(chance)
        self.partition = self.open()
        self.start()

    def copy_all(self):
        """One pass of the copier."""

        async def both():
            await self.copier.copy_all([self.partition])
            await self.copier.delete_all([self.partition])

        asyncio.run(both())

    def published(self):
        """The last manifest in the store; None if there is none."""
        payload = self.storage.prefix.run_steps(last_manifest(PARTITION))
        return None if payload is None else self.storage.prefix.read_manifest(PARTITION, payload)[0]

    def names(self):
        """The names of the log files on the local disk."""
        return [name for name in self.disk.list_dir(self.directory) if name.endswith(".log")]

    def check(self):
        """Check that no record is lost: each row of the manifest has its objects, and readers see the whole log."""
        manifest, local = self.published(), self.plain.disk
        for row in () if manifest is None else manifest.segments:
            content = self.store_objects.objects[PARTITION.segment_key(row.base_offset, row.segment_id, LOG)]
            assert content == local.read_bytes(self.directory / f"{row.base_offset:020}.log")
            assert (
                PARTITION.segment_key(row.base_offset, row.segment_id, INDEXES) in self.store_objects.objects
            )
        if self.partition.start_offset > 0:
            recorded = LocalState(self.disk, self.directory).read_manifest()
            assert recorded.end_offset >= self.partition.start_offset, "a deleted segment was published"
            assert manifest.end_offset >= recorded.end_offset
        self.check_own()

    def check_own(self):
        """Check that readers of this broker see the whole log."""
        assert self.whole(self) == self.whole(self.plain)

    def whole(self, log, start=0):
        """What a read-committed reader gets of a log: the batches, and the aborted transactions."""
        read = log.read if log is self else log.partition.read
        limit = log.partition.last_stable_offset
        headers, aborted, offset = [], set(), start
        while offset < limit:
            arguments = (1 << 20, Isolation.READ_COMMITTED)
            found = read(offset, *arguments)
            assert found.end_offset > offset
            headers += [header for _, header in headers_in(b"".join(found.buffers))]
            aborted |= {(one.producer_id, one.first_offset) for one in found.aborted or ()}
            offset = found.end_offset
        return headers, aborted


def stop_before(objects, number):
    """Let the machine stop before the request of this number to a store. Return the numbers of requests that were made."""
    made = itertools.count()
    seen = []

    def between(_call, _key):
        seen.append(next(made))
        if seen[-1] == number:
            raise SimulatedCrash("a request to the store")

    objects.between = between
    return seen


def chance_of(*words):
    """A source of randomness."""
    return random.Random(str(words))


def lines(caplog):
    """The lines that were logged at level ERROR."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def warnings(caplog):
    """The lines that were logged at level WARNING."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
