"""Every place of stored segments gives the answer of a linear scan: the local log, the remote tier, the files that Spark
reads, the objects that Spark reads, and the segments that Apache Kafka has copied.
"""

import random
import uuid

import pytest

from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from stablelog.log.model import Isolation
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_time
from stablelog.spark.objects.kafka_tiers.partition import KafkaPartition
from stablelog.spark.objects.kafka_tiers.segment import KafkaSegment
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.spark.segments.times import first_in_files
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_log import RemoteLog
from stablelog.types import ObjectRange
from tests.scale import seeds
from tests.spark.test_counting import files_of
from tests.tier.tiered_log import PARTITION, Loaded, TieredLog

WORDS = ["-", "P1", "P1", "P2", "P2", "P3", "P1c", "P1a", "P2c", "P2a", "P3a"]
SUFFIXES = {IndexKind.OFFSETS: ".index", IndexKind.TIMES: ".timeindex", IndexKind.TRANSACTIONS: ".txnindex"}


class Objects:
    """An object store in a dict."""

    url = "memory://"

    def __init__(self, objects):
        self.objects = objects
        self.keys = []

    def get(self, key):
        self.keys.append(key)
        return self.objects[key]

    def get_range(self, key, start, size):
        self.keys.append(key)
        return self.objects[key][start : start + size]


class Places:
    """A random log whose segments are all sealed and copied, and the places of its segments."""

    def __init__(self, seed, where):
        self.chance = chance = random.Random(seed)
        self.log = log = TieredLog(segment_bytes=chance.choice([250, 600, 2_000]), index_interval_bytes=100)
        for _ in range(chance.randint(20, 120)):
            log.now_ms += chance.randint(-400, 500)
            log.one(chance.choice(WORDS))
        log.write("P1a P2a P3c")
        log.partition.roll(log.now_ms)
        log.sync()
        self.segments = list(log.partition.log.segments)[:-1]
        log.copy()
        self.start, self.end = log.partition.start_offset, log.remote.end_offset
        assert self.end == log.partition.end_offset
        self.local = log.partition.log.segments
        self.files = files_of(log, where)
        self.stored = TieredPartition(Objects(log.objects), PARTITION, log.remote.manifest, committed=True)
        self.kafka = self.copied_by_kafka()
        self.early = self.without_summaries()

    def copied_by_kafka(self):
        objects, rows = {}, []
        for segment in self.segments:
            key = f"{segment.base_offset:020d}"
            objects[key + ".log"] = self.log.disk.read_bytes(segment.path(".log"))
            places = []
            for kind, suffix in SUFFIXES.items():
                if self.log.disk.exists(segment.path(suffix)):
                    objects[key + suffix] = self.log.disk.read_bytes(segment.path(suffix))
                    places.append((kind, ObjectRange(key + suffix, 0, len(objects[key + suffix]))))
            rows.append(
                KafkaSegment(
                    uuid.uuid4(),
                    segment.base_offset,
                    segment.end_offset,
                    segment.size,
                    segment.max_timestamp,
                    (),
                    is_txn_index_empty=IndexKind.TRANSACTIONS not in dict(places),
                    log_object=key + ".log",
                    indexes=tuple(places),
                )
            )
        partition = RemotePartition("t", uuid.UUID(int=8), 0)
        return KafkaPartition(Objects(objects), partition, rows, committed=True, divided={})

    def without_summaries(self):
        """The remote tier of a log that Apache Kafka has copied to stablelog's own layout."""
        rows = tuple(self.log.copied(segment, with_summary=False) for segment in self.segments)
        self.early_loaded = Loaded(self.log.objects)
        return RemoteLog(PARTITION, Manifest("c", self.start, rows), self.early_loaded, None, chunk_size=100)

    def loading(self, loaded, call):
        before, self.log.loaded = self.log.loaded, loaded
        try:
            return self.log.loading(call)
        finally:
            self.log.loaded = before

    def batches(self):
        """Every batch of the log: its segment, position, header and bytes."""
        for segment in self.segments:
            for position, header in segment.walk(0):
                yield segment, position, header, segment.log.read(position, header.size)

    def aborted(self):
        """Every aborted transaction, in the order of the markers: (producer, first offset, offset of the marker)."""
        first, found = {}, []
        for _, _, header, batch in self.batches():
            if header.is_control:
                begin = first.pop(header.producer_id, None)
                if begin is not None and read_marker(batch).type is MarkerType.ABORT:
                    found.append((header.producer_id, begin, header.base_offset))
            elif header.is_transactional:
                first.setdefault(header.producer_id, header.base_offset)
        return found

    def ranges(self, count):
        for _ in range(count):
            start = self.chance.randrange(self.start, self.end)
            yield start, self.chance.randint(start + 1, min(self.end, start + 60))


@pytest.fixture(params=seeds(12))
def places(request, tmp_path):
    return Places(request.param, tmp_path)


def test_the_aborted_transactions_of_any_range_are_those_of_a_linear_scan(places):
    every = places.aborted()
    for start, end in [*places.ranges(25), (places.start, places.end), (places.end - 1, places.end)]:
        wanted = [txn for txn in every if txn[1] < end and txn[2] >= start]
        by_first = sorted(wanted, key=lambda txn: txn[1])
        assert [txn[:3] for txn in find_aborted(places.local, start, end)[0]] == wanted
        for remote, loaded in ((places.log.remote, places.log.loaded), (places.early, places.early_loaded)):
            found, is_complete = places.loading(loaded, lambda at=remote, a=start, z=end: at.aborted_in(a, z))
            assert [txn[:3] for txn in found] == wanted
            assert is_complete or remote is places.early
        for files in (places.files, places.stored, places.kafka):
            assert [txn[:3] for txn in files.aborted(start, end)] == by_first


def test_the_batch_of_any_offset_is_that_of_a_linear_scan(places):
    every = [(header.last_offset, segment, position) for segment, position, header, _ in places.batches()]
    remotes = (places.log.remote, places.log.loaded), (places.early, places.early_loaded)
    files = {segment.base_offset: segment for segment in places.files.segments}
    for offset, _ in places.ranges(25):
        segment, position = next((one, at) for last, one, at in every if last >= offset)
        here = places.local[places.local.place_of(offset)]
        wanted = position if segment is here else None
        found = [here.find(offset), files[here.base_offset].find(offset)]
        for remote, loaded in remotes:
            call = remote.loaded_segment(remote.segment_at(offset)).find
            found.append(places.loading(loaded, lambda call=call, offset=offset: call(offset)))
        assert [one and one.position for one in found] == [wanted] * 4


def test_the_first_record_of_any_time_is_that_of_a_linear_scan(places):
    records = [
        (record.offset, record.timestamp_ms)
        for _, _, header, batch in places.batches()
        if not header.is_control
        for record in decode_records(batch)
    ]
    for _ in range(25):
        time = places.chance.choice(records)[1] + places.chance.randint(-1, 1)
        wanted = next((offset for offset, found in records if found >= time), None)
        local = run_lookup(look_up_time(places.log.partition, time, Isolation.LOG_END))
        assert (local and local[0]) == wanted
        for remote, loaded in ((places.log.remote, places.log.loaded), (places.early, places.early_loaded)):
            found = places.loading(loaded, lambda at=remote, time=time: run_lookup(at.look_up_time(time)))
            assert (found and found[0]) == wanted
        assert first_in_files(places.files, time, places.start, places.end) == wanted
        assert places.stored.at_time(time) == wanted
        assert places.kafka.at_time(time) == wanted


def test_a_range_of_files_is_divided_between_batches_into_all_its_bytes(places):
    every = {(segment.base_offset, position): header for segment, position, header, _ in places.batches()}
    for start, end in places.ranges(10):
        whole = places.files.span(start, end)
        spans = [whole]
        for _ in range(6):
            span = spans.pop(places.chance.randrange(len(spans)))
            at = places.chance.randrange(span.start, span.end)
            cut = span.cut_by_size(places.chance.randrange(max(span.size, 1))) if at % 2 else None
            if cut is None and at > span.start:
                cut = span.cut_at(at)
            spans += [span] if cut is None else cut
        spans.sort(key=lambda span: span.start)
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
        assert (spans[0].start, spans[-1].end) == (start, end)
        covered = set()
        for span in spans:
            assert span.size == sum(part.size for part in span.parts)
            for part in span.parts:
                base, position = part.segment.base_offset, part.position
                while position < part.end_position:
                    header = every[base, position]
                    assert header.last_offset >= span.start
                    assert header.base_offset < span.end
                    covered.add((base, position))
                    position += header.size
                assert position == part.end_position
        wanted = {at for at, one in every.items() if one.last_offset >= start and one.base_offset < end}
        assert covered == wanted


def test_the_indexes_of_segments_without_summaries_are_loaded_until_one_ends_the_search(tmp_path):
    log = TieredLog(segment_bytes=200)
    for _ in range(40):
        log.write("P1 P1a")
    log.partition.roll(log.now_ms)
    log.sync()
    segments = list(log.partition.log.segments)[:-1]
    rows = tuple(log.copied(segment, with_summary=False) for segment in segments)
    remote = RemoteLog(PARTITION, Manifest("c", 0, rows), log.loaded, None, chunk_size=100)
    assert len(rows) > 30
    found, is_complete = log.loading(lambda: remote.aborted_in(0, 2))
    assert ([txn[:3] for txn in found], is_complete) == ([(1, 0, 1)], True)
    assert log.loaded.count("indexes") == 1
    found, is_complete = log.loading(lambda: remote.aborted_in(0, 10))
    assert ([txn[:3] for txn in found], is_complete) == ([(1, at, at + 1) for at in range(0, 10, 2)], True)
    assert log.loaded.count("indexes") < 10
