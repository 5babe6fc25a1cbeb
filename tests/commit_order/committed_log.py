"""A commit-ordered partition on a simulated disk with all that was written to it, and the files that are open."""

import random
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import Codec, headers_in
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.commit_order import extent_lookup, extents, index_format
from stablelog.commit_order.opening import CommitOrdered
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.model import Appended, Isolation, LogConfig, MarkerWrite
from stablelog.log.opening import open_partition
from stablelog.testing.sim_disk import SimDisk, SimFile

DIRECTORY = Path("/data/t-0")
NOW_MS = 1_700_000_000_000
VIEW_FILES = (".commitindex", ".commitextents", ".commitsummary", ".openextents")


def set_long_count(monkeypatch, count):
    """Let a transaction be long from this number of extents on."""
    for module in (extents, index_format, extent_lookup):
        monkeypatch.setattr(module, "LONG_COUNT", count)


class Files:
    """The files that simulated disks open while the patch lasts.

    Attributes:
        paths: the path of each file that was opened.
        open: the files that are open.
    """

    def __init__(self, patch):
        self.paths = {}
        self.open = set()
        opens, closes = SimDisk.open, SimFile.close

        def opened(disk, path, *, create=False):
            file = opens(disk, path, create=create)
            self.paths[file] = path
            self.open.add(file)
            return file

        def closed(file):
            self.open.discard(file)
            closes(file)

        patch.setattr(SimDisk, "open", opened)
        patch.setattr(SimFile, "close", closed)

    def open_with(self, *suffixes):
        """The open files with one of these suffixes."""
        return [file for file in self.open if self.paths[file].suffix in suffixes]


class Log:
    """A commit-ordered partition on a simulated disk, and everything that was written to it."""

    def __init__(self, **config):
        self.disk = SimDisk()
        self.directory = DIRECTORY
        self.config = LogConfig(order="commit", **config)
        self.sequences = {}
        self.now_ms = NOW_MS
        self.commit_sequence = 0
        self.serial = 0
        self.open_records = {}  # producer -> [(offset, payload)]
        self.torn_before = 0  # transactions that began before this offset have lost their beginning
        self.written = []  # of what the view can show: (position, payload, first offset of its transaction, time, g)
        self.partition = self.open(clean=True)

    def open(self, *, clean, progress=None, is_established=False):
        partition = open_partition(
            self.disk,
            DIRECTORY,
            self.config,
            topic="t",
            partition=0,
            clean=clean,
            now_ms=self.now_ms,
            recovery_point=0,
            is_established=is_established,
            progress=progress,
            order=CommitOrdered(self.disk),
        )
        partition.log.prove_segments()
        return partition

    def reopen(self, *, clean=True):
        self.partition.close(clean=clean)
        self.partition = self.open(clean=clean)

    def lose_indexes(self):
        """Start again without the files that can be made from the log."""
        self.partition.close()
        for name in self.disk.list_dir(DIRECTORY):
            if ".commit" in name:
                self.disk.remove(DIRECTORY / name)
        self.partition = self.open(clean=True)

    def payloads(self, count):
        self.serial += count
        return [b"%d" % (self.serial - count + at) for at in range(count)]

    def append(self, producer_id, count=1, size=0):
        payloads = self.payloads(count)
        records = [Record(0, self.now_ms, None, payload.ljust(size)) for payload in payloads]
        sequence = self.sequences.get(producer_id, 0)
        batch = encode_batch(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        self.sequences[producer_id] = sequence + count
        first = self.partition.append(batch, now_ms=self.now_ms).first_offset
        known = self.open_records.setdefault(producer_id, [])
        known += [(first + at, payload) for at, payload in enumerate(payloads)]

    def plain(self, count=1):
        payloads = self.payloads(count)
        batch = encode_batch([Record(0, self.now_ms, None, payload) for payload in payloads])
        first = self.partition.append(batch, now_ms=self.now_ms).first_offset
        self.written += [
            (first + at, payload, first + at, self.now_ms, -1) for at, payload in enumerate(payloads)
        ]

    def end(self, producer_id, *, commit=True):
        sequence = -1
        if commit:
            sequence = self.commit_sequence = self.commit_sequence + 1
        kind = MarkerType.COMMIT if commit else MarkerType.ABORT
        marker = Marker(kind, 0, "", sequence)
        done = self.partition.append_markers([MarkerWrite(producer_id, 0, marker)], now_ms=self.now_ms)[0]
        assert isinstance(done, Appended)
        records = self.open_records.pop(producer_id, [])
        if commit:
            assert done.last_offset == done.first_offset + len(records)
            self.written += [
                (done.first_offset + 1 + at, payload, records[0][0], self.now_ms, sequence)
                for at, (_, payload) in enumerate(records)
            ]

    def sync(self):
        work = self.partition.sync_work()
        if work is not None:
            work.run()
            self.partition.finish_sync(work)

    @property
    def log_start(self):
        return self.partition.start_offset

    def expected(self):
        """(position, payload) of everything that can be read, by brute force."""
        start = self.partition.visible_start(Isolation.READ_COMMITTED)
        visible = [
            row
            for row in self.written
            if row[0] < self.partition.high_watermark and (row[4] < 0 or row[2] >= self.torn_before)
        ]
        return [(row[0], row[1]) for row in sorted(visible) if row[0] >= start]

    def read(self, start, size_max):
        return self.partition.read(start, size_max, Isolation.READ_COMMITTED)

    def fetched(self, start, size_max=1 << 30):
        """(position, payload) of one fetch, as a client makes them of its bytes."""
        found = self.read(start, size_max)
        assert found.aborted == ()
        data = b"".join(found.buffers)
        records = [
            (record.offset, record.value.strip())
            for position, _ in headers_in(data)
            for record in decode_records(data, position)
        ]
        return records, [header for _, header in headers_in(data)]

    def tear_transactions(self, count):
        """Delete the first segments, also what a later transaction needs. A restore may leave such a log."""
        segments = self.partition.segments()
        self.torn_before = segments[count].base_offset
        self.partition.close()
        stems = {f"{segment.base_offset:020}" for segment in segments[:count]}
        for name in self.disk.list_dir(DIRECTORY):
            if name.partition(".")[0] in stems:
                self.disk.remove(DIRECTORY / name)
        self.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(self.torn_before))
        self.partition = self.open(clean=True)
        assert self.partition.start_offset == self.torn_before

    def read_all(self, start, size_max):
        """Fetch after fetch, as a consumer does."""
        rows, position = [], start
        while position < self.partition.last_stable_offset:
            records, headers = self.fetched(position, size_max)
            assert headers, f"a fetch at {position} before the end is empty"
            assert headers[0].next_offset > position, "a fetch begins with the batch that holds the position"
            rows += [row for row in records if row[0] >= position]
            position = headers[-1].next_offset
        return rows


def a_log_of_many_writers(seed, **config):
    """Batches of a hundred bytes to thirty thousand, of four writers who commit now and then, and some of nobody."""
    chance = random.Random(seed)
    log = Log(**config)
    for _ in range(300):
        writer = chance.randrange(5)
        if writer == 4:
            log.plain(chance.randrange(1, 4))
        else:
            log.append(writer, chance.randrange(1, 4), size=chance.choice([1, 100, 600, 4_000, 10_000]))
            if chance.random() < 0.1:
                log.end(writer, commit=chance.random() < 0.8)
    for writer in list(log.open_records):
        log.end(writer)
    log.sync()
    return log


def a_log_of_small_batches(count):
    log = Log()
    for _ in range(count):
        log.append(1, size=700)
    log.end(1)
    log.sync()
    return log


def commit_of(producer_id, commit_sequence):
    return MarkerWrite(producer_id, 0, Marker(MarkerType.COMMIT, 0, "", commit_sequence))


def lying(count, producer_id, sequence):
    """A compressed batch of one record that claims `count`. A log with `proves_records` refuses it."""
    batch = bytearray(
        encode_batch(
            [Record(0, NOW_MS, None, b"x")],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
            codec=Codec.GZIP,
        )
    )
    batch[23:27] = (count - 1).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)
