"""Threads that read while the broker is killed, and record what they saw."""

import contextlib
import time
from collections import Counter

from confluent_kafka import Consumer, TopicPartition
from crc32c import crc32c

import stablelog
from stablelog.batch.header import headers_in
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.errors import OffsetOutOfRangeError, UnavailableError
from stablelog.testing.history import Seen
from tests.chaos.writers import PATIENCE_S, QUIET, Worker

ASK_S = 5  # deadline of one request, so that a worker notices soon when it is to stop


class CommittedReader(Worker):
    """By librdkafka: what is committed, from the start of each place, each record once."""

    def __init__(self, name, scene, places):
        super().__init__(name, scene)
        self.places = places
        self.seen = {place: [] for place in places}

    def begin(self):
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",  # where records were deleted before they were read
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        self.consumer.assign([TopicPartition(*place, 0) for place in self.places])

    def step(self):
        for message in self.consumer.consume(500, 0.1):
            if message.error() is None:
                place = message.topic(), message.partition()
                self.seen[place].append(Seen(time.monotonic(), message.offset(), message.value()))

    def end(self):
        self.consumer.close()


class ByteReader(Worker):
    """By bare fetches: the bytes that are handed out at each offset, now and when they are asked for again.

    Args:
        views: (topic, partition, isolation) of what is read.

    Attributes:
        digests: by view and base offset, the CRC of the whole batch.
    """

    def __init__(self, name, scene, views):
        super().__init__(name, scene)
        self.views = views
        self.digests = {view: {} for view in views}
        self.next = dict.fromkeys(views, 0)

    def begin(self):
        self.cluster = BlockingCluster(self.address, deadline_s=ASK_S)

    def end(self):
        self.cluster.close()

    def step(self):
        view = self.chance.choice(self.views)
        offset = self.next[view]
        if offset and self.chance.random() < 0.2:
            offset = self.chance.randrange(offset)  # asked for again
        with contextlib.suppress(UnavailableError):
            self.next[view] = max(self.next[view], self.look(self.cluster, view, offset))

    def look(self, cluster, view, offset, *, size_max=64 << 10):
        """Fetch once, hold it against what was seen, and keep it. Returns where to go on."""
        topic, partition, isolation = view
        try:
            fetched = cluster.fetch(topic, partition, offset, size_max, isolation, wait_ms=0)
        except OffsetOutOfRangeError:
            return cluster.list_offsets({(topic, partition): EARLIEST})[topic, partition].offset
        known = self.digests[view]
        for at, header in headers_in(fetched.records):
            digest = crc32c(fetched.records[at : at + header.size])
            if known.setdefault(header.base_offset, digest) != digest:
                self.findings.append(f"{view}: other bytes at offset {header.base_offset} than before")
            offset = header.next_offset
        return offset

    def read_again(self):
        """Read every view from its start to its end, and compare it."""
        with BlockingCluster(self.address, deadline_s=PATIENCE_S) as cluster:
            for view in self.views:
                place, isolation = view[:2], view[2]
                offset = cluster.list_offsets({place: EARLIEST})[place].offset
                end = cluster.list_offsets({place: LATEST}, isolation)[place].offset
                while offset < end:
                    before, offset = offset, self.look(cluster, view, offset, size_max=1 << 20)
                    if offset <= before:
                        self.findings.append(f"{view}: nothing is handed out at offset {before} of {end}")
                        break


class CutReader(Worker):
    """By the native client: whole transactions from cut to cut. After a failure it continues behind the last one."""

    def __init__(self, name, scene, topics):
        super().__init__(name, scene)
        self.topics = topics
        self.seen = []
        self.interruptions = Counter()

    def step(self):
        after = self.seen[-1].commit_sequence if self.seen else 0
        try:
            with stablelog.connect(self.address, deadline=ASK_S) as client:
                for txn in client.read(self.topics, cut=True, after=after, wait=0.3):
                    self.seen.append(txn)
                    self.steps += 1
                    if self.stopping.is_set():
                        return
        except UnavailableError as failure:
            self.interruptions[type(failure).__name__] += 1


class Watcher(Worker):
    """Checks that no watermark of any place moves back.

    Args:
        places: (topic, partition) of all.

    Attributes:
        watermarks: by place, (high watermark, last stable offset), the stable offset asked for first.
    """

    def __init__(self, name, scene, places):
        super().__init__(name, scene)
        self.places = places
        self.watermarks = {place: [] for place in places}
        self.starts = dict.fromkeys(places, 0)

    def begin(self):
        self.cluster = BlockingCluster(self.address, deadline_s=ASK_S)

    def end(self):
        self.cluster.close()

    def step(self):
        with contextlib.suppress(UnavailableError):
            starts = self.cluster.list_offsets(dict.fromkeys(self.places, EARLIEST))
            latest = dict.fromkeys(self.places, LATEST)
            stable = self.cluster.list_offsets(latest, "read_committed")
            high = self.cluster.list_offsets(latest, "read_uncommitted")
            for place in self.places:
                self.watermarks[place].append((high[place].offset, stable[place].offset))
                before, start = self.starts[place], starts[place].offset
                if start < before:
                    self.findings.append(f"{place}: the log's start went back from {before} to {start}")
                self.starts[place] = start


class CutWatcher(Worker):
    """Checks that the resolved commits of a group never move back behind what was seen, also while the broker starts.

    Args:
        reader: the reader by cut of the group's topics.
    """

    def __init__(self, name, scene, reader):
        super().__init__(name, scene)
        self.reader = reader
        self.resolved = 0

    def begin(self):
        self.cluster = BlockingCluster(self.address, deadline_s=ASK_S)

    def end(self):
        self.cluster.close()

    def step(self):
        seen = self.reader.seen[-1].commit_sequence if self.reader.seen else 0
        at_least = max(seen, self.resolved)
        with contextlib.suppress(UnavailableError):
            found = describe_cut(self.cluster, self.reader.topics).commit_sequence
            if found < at_least:
                self.findings.append(
                    f"{self.reader.topics}: commits were resolved up to {at_least}, and then up to {found}"
                )
            self.resolved = max(found, at_least)
