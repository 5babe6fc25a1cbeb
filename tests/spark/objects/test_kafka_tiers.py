"""What Apache Kafka tiered is read as a consumer reads it, or the read names what is wrong."""

import contextlib
import itertools
import json
import logging
import os
import random
import re
import shutil
import uuid

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import stablelog
from peers import apache_kafka, tiered_kafka
from stablelog.batch.header import headers_in
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.topics import EARLIEST_LOCAL
from stablelog.errors import DamageError, DataLossError, StablelogError, UnavailableError, UsageError
from stablelog.spark import count, verify
from stablelog.spark.data_source import StablelogDataSource
from stablelog.spark.objects.kafka_tiers.names import LocalPartition as KafkasPartition
from stablelog.spark.objects.kafka_tiers.names import aiven_topic_of, local_partition_of
from stablelog.spark.objects.kafka_tiers.segment import SegmentDeletedError
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits
from stablelog.spark.source.listing_retry import TRIES, retry_with_new_listing
from stablelog.spark.source.reader import open_log
from stablelog.tier.names import text_of_id
from tests.clients.drivers import Confluent
from tests.java.dump import SHORT_LIVED
from tests.spark.histories import Writers, truth
from tests.spark.objects.kafka_stores import (
    LAYOUTS,
    Aiven,
    Local,
    boundaries,
    damaged,
    log_of,
    made,
    sealed_segments,
    stable_end,
)
from tests.spark.objects.stored import in_s3
from tests.spark.reading import make, rows, settled, tasks
from tests.waiting import until

CONFIGS = {"segment.bytes": "1500", "index.interval.bytes": "200"}
TOPICS = ("plain", "a.b-c-0_d")


class History:
    """A topic that producers wrote, and its partition in the data directory of the stopped broker."""

    def __init__(self, topic):
        self.topic = topic

    def write(self, broker, seed, *, leaves_open):
        make(broker.bootstrap, self.topic, 1, **CONFIGS)
        writers = Writers(broker.bootstrap, self.topic, 1, seed)
        for number in range(60):
            writers.step()
            if number % 20 == 19 and not leaves_open:  # A segment ends while no transaction is open.
                writers.end_all()
                for _ in range(8):
                    writers.write(writers.plain)
        if not leaves_open:
            writers.end_all()
            settled(broker.bootstrap, self.topic)
        self.writers = writers
        self.seen = {
            committed: Confluent(broker.bootstrap).read(self.topic, committed=committed)
            for committed in (True, False)
        }

    def load(self, data):
        directory = data / f"{self.topic}-0"
        self.log = log_of(directory)
        self.segments = sealed_segments(directory)

    def wanted(self, end, start=0, *, committed=True):
        return [row for row in self.seen[committed] if start <= row[0] < end]


@pytest.fixture(scope="module")
def histories(module_path):
    data = module_path / "data"
    found = {topic: History(topic) for topic in TOPICS}
    with stablelog.serve(data) as broker:
        for seed, history in enumerate(found.values(), 31):
            history.write(broker, seed, leaves_open=history.topic != "plain")
    for history in found.values():
        history.load(data)
        assert len(history.segments) > 4
        assert any(segment.txnindex for segment in history.segments)
        assert not all(segment.txnindex for segment in history.segments)
    return found


@pytest.fixture
def history(histories):
    return histories["plain"]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name)
def layout(request):
    opened_store.cache_clear()
    return request.param


@pytest.fixture
def store(layout, history, tmp_path):
    """A store with the topic `plain`, and the paths of the files of each segment."""
    found = layout(tmp_path / "store", history.topic)
    found.paths = [found.put(segment) for segment in history.segments]
    return found


def given_of(store, **more):
    return {"path": store.url, "subscribe": store.topic, **more}


def read(store, **more):
    return rows(given_of(store, **more), "offset", "value")


def files_of(root):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size, path.is_file())
        for path in [root, *root.rglob("*")]
    }


# -- whole stores ------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("topic", TOPICS)
def test_each_number_of_segments_reads_as_a_consumer_reads_them(layout, histories, topic, tmp_path):
    history = histories[topic]
    are_closed = set()
    for number in range(1, len(history.segments) + 1):
        store = layout(tmp_path / str(number), topic, partition=3)
        for segment in history.segments[:number]:
            store.put(segment)
        before = files_of(store.root)
        end = history.segments[number - 1].end
        stable = stable_end(history.log, end)
        are_closed.add(stable == end)
        assert read(store) == history.wanted(stable)
        assert read(store, isolation="read_uncommitted") == history.wanted(end, committed=False)
        assert files_of(store.root) == before, "nothing is written"
    assert False in are_closed, "a transaction was open at the end of some of the stores"
    assert True in are_closed or topic != "plain", "and none at the end of others"


@pytest.mark.extended
def test_any_start_and_any_division_give_the_same_records(store, history):
    end = stable_end(history.log, history.segments[-1].end)
    for start in range(0, end, 5):
        starting = json.dumps({"plain": {"0": start}})
        for limits in (
            TaskLimits(),
            TaskLimits(target_size=700),
            TaskLimits(offsets_max=5),
            TaskLimits(count_min=9),
        ):
            found = rows(given_of(store, startingOffsets=starting), "offset", "value", limits=limits)
            assert found == history.wanted(end, start)


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_count_is_that_of_a_read(store, history, isolation):
    for start in range(0, stable_end(history.log, history.segments[-1].end), 7):
        given = given_of(store, isolation=isolation, startingOffsets=json.dumps({"plain": {"0": start}}))
        assert count(given) == len(rows(given, "offset")) > 0


@pytest.mark.extended
def test_a_time_as_a_bound_begins_at_the_first_record_of_this_time_or_later(store):
    timed = rows(given_of(store), "offset", "timestamp")
    for _, time in timed[:: len(timed) // 6]:
        time_ms = int(time.timestamp() * 1000)
        first = next(offset for offset, at in timed if int(at.timestamp() * 1000) >= time_ms)
        found = rows(given_of(store, startingTimestamp=str(time_ms)), "offset")
        assert found == [(offset,) for offset, _ in timed if offset >= first]
        ended = rows(given_of(store, endingTimestamp=str(time_ms)), "offset")
        assert ended == [(offset,) for offset, _ in timed if offset < first]
    late = {"startingTimestamp": str(int(timed[-1][1].timestamp() * 1000) + 1)}
    with pytest.raises(UnavailableError, match="no record of time"):
        rows(given_of(store, **late), "offset")


@pytest.mark.extended
def test_offsets_that_the_store_does_not_have_are_named(layout, history, tmp_path, caplog):
    store = layout(tmp_path, "plain")
    for segment in history.segments[2:4]:
        store.put(segment)
    first, end = history.segments[2].base, history.segments[3].end
    assert read(store) == history.wanted(stable_end(history.log, end), first)
    wanted = history.wanted(end, first, committed=False)
    deleted = {
        "startingOffsets": json.dumps({"plain": {"0": first - 1}}),
        "isolation": "read_uncommitted",
    }
    with pytest.raises(DataLossError, match=f"begins at offset {first}, but startingOffsets"):
        read(store, **deleted)
    assert read(store, **deleted, failOnDataLoss="false") == wanted
    later = {"endingOffsets": json.dumps({"plain": {"0": end + 1}}), "isolation": "read_uncommitted"}
    assert read(store, **later) == wanted
    assert f"plain-0: the store has records up to offset {end} only" in caplog.text


@pytest.mark.extended
def test_topics_and_partitions_come_from_the_names_of_directories(layout, histories, tmp_path):
    ids = {topic: uuid.uuid4() for topic in TOPICS}
    for topic, number in (("plain", 0), ("plain", 12), ("a.b-c-0_d", 7)):
        store = layout(tmp_path, topic, number, ids[topic])
        store.put(histories[topic].segments[0])
    (tmp_path / "something-else").mkdir()
    (tmp_path / "something-else" / "0.log").write_bytes(b"")
    found = rows({"path": store.url, "isolation": "read_uncommitted"}, "topic", "partition", "offset")
    assert {row[:2] for row in found} == {("plain", 0), ("plain", 12), ("a.b-c-0_d", 7)}
    only = rows({"path": store.url, "assign": json.dumps({"plain": [12]})}, "partition")
    assert set(only) == {(12,)}
    with pytest.raises(StablelogError, match="there is no topic 'other'"):
        rows({"path": store.url, "subscribe": "other"}, "offset")


def test_names_are_divided_from_their_ends():
    identity = "-1-22_44-66_88-AA_CCAA"
    topic = f"a-1.b-{identity}"
    assert aiven_topic_of(f"{topic}-{identity}")[0] == topic
    partition = local_partition_of(f"{topic}-77-{identity}", KafkasPartition)
    assert (partition.topic, partition.partition) == (topic, 77)
    assert partition.directory == f"{topic}-77-{identity}"
    assert local_partition_of(f"{topic}-{identity[1:]}", KafkasPartition) is None
    assert aiven_topic_of(identity) is None


def test_the_directory_that_the_setting_of_local_tiered_storage_names_is_read_too(history, tmp_path):
    store = Local(tmp_path / "kafka-tiered-storage", "plain")
    for segment in history.segments:
        store.put(segment)
    assert rows({"path": tmp_path.as_uri(), "subscribe": "plain"}, "offset", "value") == read(store)
    assert len(read(store)) > 20


def test_offsets_in_names_may_lack_their_zeros(histories, tmp_path):
    history = histories["plain"]
    store = Local(tmp_path, "plain")
    store.is_early = True
    for segment in history.segments:
        store.put(segment)
    assert read(store) == history.wanted(stable_end(history.log, history.segments[-1].end))
    assert min(path.name for path in store.directory.iterdir()).startswith("0-")


@pytest.mark.extended
def test_of_topics_with_one_name_the_one_that_was_copied_last_counts(layout, histories, tmp_path):
    old = layout(tmp_path, "plain")
    for path in old.put(histories["a.b-c-0_d"].segments[0]).values():
        os.utime(path, (1, 1))
    new = layout(tmp_path, "plain")
    new.event_ms = getattr(old, "event_ms", 0) + 1000
    segment = histories["plain"].segments[0]
    new.put(segment)
    assert read(new, isolation="read_uncommitted") == histories["plain"].wanted(segment.end, committed=False)


def test_a_store_in_no_known_layout_is_refused(history, tmp_path):
    identity = "-1-22_44-66_88-AA_CCAA"
    for name in (f"plain-0-{identity}", f"plain-{identity}", "kafka-tiered-storage", "plain-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(history.segments[0].log)
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match=r"in a known layout \(LocalTieredStorage, and Aiven's plugin"):
        rows({"path": tmp_path.as_uri()}, "offset")
    assert files_of(tmp_path) == before


# -- overlaps and gaps -------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(8))
def test_overlapping_segments_give_each_record_once(layout, histories, tmp_path, seed):
    choose = random.Random(seed)
    history = histories[choose.choice(TOPICS)]
    edges = boundaries(history.log)
    end = choose.choice(edges[len(edges) // 2 :])
    store = layout(tmp_path, history.topic)
    start = 0
    epochs = [(0, 0), (3, choose.choice(edges[1:]))]
    while start < end:
        until = choose.choice([edge for edge in edges if start < edge <= end][:12])
        begin = choose.choice([edge for edge in edges if edge <= start][-6:])
        segment = made(history.log, begin, until, epochs)
        for _ in range(choose.choice((1, 1, 2))):
            store.put(segment)
        start = until
    stable = stable_end(history.log, end)
    given = given_of(store)
    assert rows(given, "offset", "value") == history.wanted(stable)
    assert rows(given, "offset", "value", limits=TaskLimits(target_size=500)) == history.wanted(stable)
    assert count(given) == len(history.wanted(stable))
    found = read(store, isolation="read_uncommitted")
    assert found == history.wanted(end, committed=False)


def batches(first, last, text, epoch, size=2, **producer):
    """Batches of `size` records with the offsets from `first` to before `last`."""
    found = b""
    for base in range(first, last, size):
        records = [
            Record(offset, offset, None, b"%s-%d" % (text, offset)) for offset in range(base, base + size)
        ]
        found += encode_batch(records, base_offset=base, leader_epoch=epoch, **producer)
    return found


def test_after_an_unclean_election_only_batches_of_the_latest_leader_are_read(layout, tmp_path):
    old = batches(0, 40, b"old", 1)
    new = batches(0, 14, b"old", 1) + batches(14, 26, b"new", 2)
    before, after = [(1, 0)], [(1, 0), (2, 14)]
    store = layout(tmp_path, "t")
    for start, end in ((0, 10), (10, 20), (20, 30), (30, 40)):
        store.put(made(old, start, end, before))
    store.put(made(new, 12, 26, after))
    values = [value for _, value in read(store)]
    assert values == [b"old-%d" % number for number in range(14)] + [
        b"new-%d" % number for number in range(14, 26)
    ]


def test_an_abort_that_an_unclean_election_has_undone_aborts_nothing(layout, tmp_path):
    producer = {"producer_id": 7, "producer_epoch": 0}
    common = batches(0, 10, b"t", 1) + batches(
        10, 14, b"t", 1, base_sequence=0, transactional=True, **producer
    )

    def ended(kind, epoch):
        marker = encode_marker(
            Marker(kind, 0), base_offset=14, leader_epoch=epoch, timestamp_ms=0, **producer
        )
        return common + marker + batches(15, 21, b"t", epoch)

    store = layout(tmp_path, "t")
    store.put(made(ended(MarkerType.ABORT, 1), 0, 15, [(1, 0)]))
    assert [offset for offset, _ in read(store)] == list(range(10))
    store.put(made(ended(MarkerType.COMMIT, 2), 14, 21, [(1, 0), (2, 14)]))
    assert [offset for offset, _ in read(store)] == [*range(14), *range(15, 21)]


def test_before_a_gap_a_snapshot_of_batches_that_are_not_read_tells_nothing(layout, tmp_path):
    old = batches(0, 40, b"old", 1)
    new = batches(0, 14, b"old", 1) + batches(14, 40, b"new", 2)
    store = layout(tmp_path, "t")
    for start, end in ((0, 10), (10, 20), (20, 34)):
        store.put(made(old, start, end, [(1, 0)]))
    store.put(made(new, 30, 40, [(1, 0), (2, 14)]))
    for isolation, first in (("read_committed", 10), ("read_uncommitted", 14)):
        with pytest.raises(DataLossError, match=f"offsets {first} to 29 of t-0 cannot be read"):
            read(store, isolation=isolation)
        found = read(store, isolation=isolation, failOnDataLoss="false")
        assert [offset for offset, _ in found] == [*range(first), *range(30, 40)]
        assert all(value.startswith(b"new") == (offset >= 30) for offset, value in found)


def test_a_segment_that_ends_in_a_batch_of_another_one_is_damage(layout, tmp_path):
    content = batches(0, 40, b"t", 1, size=4)
    store = layout(tmp_path, "t")
    store.put(made(content, 0, 20))
    other = batches(0, 40, b"t", 1)
    store.put(made(other, 14, 30))
    with pytest.raises(
        DamageError, match="has the offsets 12 to 15, and another segment or leader epoch begins at offset 14"
    ):
        read(store)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_missing_segment_is_named_exactly_or_left_out(store, history, place):
    gone = history.segments[place]
    for path in store.paths[place].values():
        path.unlink()
    end = history.segments[-1].end
    for committed, last, first in (
        (True, stable_end(history.log, end), stable_end(history.log, gone.base)),
        (False, end, gone.base),
    ):
        isolation = "read_committed" if committed else "read_uncommitted"
        message = f"offsets {first} to {gone.end - 1} of plain-0 cannot be read .* a segment is missing"
        for work in (rows, lambda given, _: count(given)):
            with pytest.raises(DataLossError, match=message):
                work(given_of(store, isolation=isolation), "offset")
        wanted = history.wanted(last, committed=committed)
        kept = [row for row in wanted if not first <= row[0] < gone.end]
        lenient = given_of(store, isolation=isolation, failOnDataLoss="false")
        assert rows(lenient, "offset", "value") == kept
        assert count(lenient) == len(kept)
    end = stable_end(history.log, end)
    after = json.dumps({"plain": {"0": gone.end}})
    assert read(store, startingOffsets=after) == history.wanted(end, gone.end)


# -- partial uploads, damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["log", "last", "indexes"])
def test_a_partial_upload_is_not_read_and_is_named(layout, history, tmp_path, caplog, lacking):
    store = layout(tmp_path, "plain")
    for segment in history.segments[:4]:
        store.put(segment)
    wanted = read(store)
    # A repeated upload of the last segment, and an upload of the next one.
    for segment in (damaged(history.segments[3], log=b"short"), history.segments[4]):
        paths = store.put(segment)
        suffixes = {
            "log": ["log"],
            "last": ["snapshot"] if layout is Local else ["rsm-manifest"],
            "indexes": ["index", "timeindex"] if layout is Local else ["indexes"],
        }
        for suffix in suffixes[lacking]:
            paths[suffix].unlink()
    with caplog.at_level(logging.WARNING):
        assert read(store) == wanted
    assert len([line for line in caplog.messages if "is not read, because it has no ." in line]) == 2


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_changed_record_is_named(store):
    flip(store.paths[2]["log"], 70)
    with pytest.raises(DamageError, match="CRC") as error:
        read(store)
    assert store.paths[2]["log"].name in str(error.value)


@pytest.mark.parametrize("bit", [1, 128])
def test_a_changed_base_offset_is_found_by_its_neighbours(store, bit):
    path = store.paths[2]["log"]
    starts = [position for position, _ in headers_in(path.read_bytes())]
    content = bytearray(path.read_bytes())
    content[starts[2] + 7] ^= bit
    path.write_bytes(content)
    with pytest.raises(DamageError, match="can be at its place") as error:
        read(store)
    assert path.name in str(error.value)


@pytest.mark.parametrize("size", [0, 40, 600, -1])
@pytest.mark.parametrize("place", [1, -1])
def test_a_truncated_log_file_is_named(store, size, place):
    path = store.paths[place]["log"]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamageError, match=path.name):
        tasks(given_of(store))


def test_a_log_file_that_was_truncated_at_its_last_batch_is_found_by_the_snapshot(history, tmp_path):
    store = Local(tmp_path, "plain")
    header = [
        header for _, header in headers_in(history.log) if header.has_producer and not header.is_control
    ][9]
    segment = made(history.log, 0, header.next_offset, every=10**6)
    store.put(damaged(segment, log=segment.log[: -header.size]))
    with pytest.raises(DamageError, match=r"its producer snapshot .* has a batch with offset"):
        read(store)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_damaged_snapshot_of_the_last_segment_stops_only_a_committed_read(
    layout, history, tmp_path, isolation
):
    store = layout(tmp_path, "plain")
    for segment in history.segments[:3]:
        store.put(segment)
    flipped = bytearray(history.segments[3].snapshot)
    flipped[-1] ^= 1
    store.put(damaged(history.segments[3], snapshot=bytes(flipped)))
    if isolation == "read_committed":
        with pytest.raises(
            DamageError, match=r"transactions are open at offset .*isolation=read_uncommitted"
        ):
            read(store)
    else:
        end = history.segments[3].end
        assert read(store, isolation=isolation) == history.wanted(end, committed=False)


def test_a_damaged_transaction_index_is_named(layout, history, tmp_path):
    place = next(place for place, one in enumerate(history.segments) if one.txnindex)
    for number, content in enumerate(
        (history.segments[place].txnindex[:-1], bytes(34), history.segments[place].txnindex * 2)
    ):
        store = layout(tmp_path / str(number), "plain")
        for segment in history.segments:
            store.put(damaged(segment, txnindex=content) if segment is history.segments[place] else segment)
        with pytest.raises(DamageError, match=r"(txnindex|\.indexes)") as error:
            read(store)
        assert str(history.segments[place].base) in str(error.value)


def closed(store, segment, setting, segment_id=None):
    """Put a segment as Aiven's plugin writes it with compression or encryption. Returns the paths of its objects."""
    value = True if setting == "compression" else {"dataKey": "key:AAAA", "aad": "AAAA"}
    paths = store.put(segment, segment_id, **{setting: value})
    for suffix in ("log",) if setting == "compression" else ("log", "indexes"):
        paths[suffix].write_bytes(random.Random(7).randbytes(len(paths[suffix].read_bytes()) // 2))
    return paths


@pytest.fixture(params=["compression", "encryption"])
def setting(request):
    opened_store.cache_clear()
    return request.param


@pytest.fixture
def mixed(history, tmp_path, setting):
    """A store of Aiven's plugin whose segments 1 and 2 only a broker can read."""
    store = Aiven(tmp_path / "store", "plain")
    for number, segment in enumerate(history.segments):
        paths = closed(store, segment, setting) if number in (1, 2) else store.put(segment)
        if number == 1:
            store.refused = paths["rsm-manifest"].name
    return store


def bounds(start, end):
    return {
        "startingOffsets": json.dumps({"plain": {"0": start}}),
        "endingOffsets": json.dumps({"plain": {"0": end}}),
    }


def test_what_aivens_plugin_has_compressed_or_encrypted_is_refused_by_name(history, mixed, setting):
    first, end = stable_end(history.log, history.segments[1].base), history.segments[3].base
    message = (
        f"{mixed.refused}: .*with {setting}, so its log file is not Kafka's. Only brokers can read the offsets {first} to "
        f"{end - 1} of plain-0: set kafka.bootstrap.servers beside the URL"
    )
    for more in ({}, {"failOnDataLoss": "false"}, bounds(end - 1, end), bounds(first, first + 1)):
        with pytest.raises(UsageError, match=message):
            read(mixed, **more)
    with pytest.raises(UsageError, match="Only brokers can read"):
        count(given_of(mixed))


def test_ranges_without_compressed_or_encrypted_segments_are_read(history, mixed):
    first, end = stable_end(history.log, history.segments[1].base), history.segments[3].base
    last = history.segments[-1].end
    assert read(mixed, **bounds(0, first)) == history.wanted(first)
    assert read(mixed, **bounds(end, last)) == history.wanted(last, end)
    assert count(given_of(mixed, **bounds(end, last))) == len(history.wanted(last, end))
    assert read(mixed, **bounds(first, first)) == []


def test_a_store_with_compressed_or_encrypted_segments_alone_has_their_bounds(history, tmp_path, setting):
    store = Aiven(tmp_path, "plain")
    for segment in history.segments[1:3]:
        closed(store, segment, setting)
    log = open_log(read_options(given_of(store), BATCH))
    places = log.partitions()
    assert list(log.earliest(places).values()) == [history.segments[1].base]
    assert list(log.latest(places).values()) == list(log.log_ends(places).values())
    assert list(log.latest(places).values()) == [history.segments[2].end]
    with pytest.raises(UsageError, match="Only brokers"):
        read(store)
    store.put(history.segments[0])
    log = open_log(read_options(given_of(store), BATCH))
    assert list(log.latest(log.partitions()).values()) == [history.segments[2].end]
    with pytest.raises(UsageError, match="Only brokers"):
        read(store)


def test_a_time_that_may_be_in_a_compressed_or_encrypted_segment_is_refused(history, mixed):
    log = open_log(read_options(given_of(mixed), BATCH))
    (place,) = log.partitions()
    ends = [max(one.max_timestamp for _, one in headers_in(segment.log)) for segment in history.segments]
    assert log.at_times({place: ends[0]})[place] is not None
    with pytest.raises(UsageError, match="or later, and only brokers can tell"):
        log.at_times({place: ends[0] + 1})
    assert log.at_times({place: ends[-1] + 10**6}) == {place: None}


def test_overlaps_of_a_compressed_segment_are_resolved_and_those_of_an_encrypted_one_are_refused(
    history, tmp_path, setting
):
    store = Aiven(tmp_path, "plain")
    for segment in history.segments:
        store.put(segment)
    closed(store, history.segments[1], setting)
    if setting == "encryption":
        with pytest.raises(UsageError, match="overlaps others"):
            read(store)
        return
    end = history.segments[0].end
    assert read(store, **bounds(0, stable_end(history.log, end))) == history.wanted(
        stable_end(history.log, end)
    )


@pytest.mark.extended
def test_brokers_serve_what_aivens_plugin_has_compressed_or_encrypted(
    histories, history, module_path, mixed, tmp_path, monkeypatch
):
    data = tmp_path / "data"
    shutil.copytree(module_path / "data", data)
    identity = re.search("topic_id: (.*)", (data / "plain-0" / "partition.metadata").read_text())[1]
    shutil.move(mixed.directory.parent, mixed.root / f"plain-{identity}")
    for path in mixed.root.rglob("*.rsm-manifest"):
        path.write_text(path.read_text().replace(text_of_id(mixed.topic_id), identity))
    ask = BlockingCluster.list_offsets
    last = history.segments[-1].end

    def list_offsets(cluster, times, *more):
        """The broker has all records. It is taken for one that has only the last segment on its disk."""
        found = ask(cluster, times, *more)
        is_local = EARLIEST_LOCAL in times.values()
        return {place: one._replace(offset=last) if is_local else one for place, one in found.items()}

    monkeypatch.setattr(BlockingCluster, "list_offsets", list_offsets)
    with stablelog.serve(data) as broker:
        given = given_of(mixed, **{"kafka.bootstrap.servers": broker.bootstrap})
        pieces = [piece for pieces in tasks(given) for piece in pieces]
        closed_range = stable_end(history.log, history.segments[1].base), history.segments[3].base
        fetched = [(piece.start, piece.end) for piece in pieces if piece.stored is None]
        assert fetched[0] == closed_range
        assert [piece.start for piece in pieces if piece.stored][:2] == [0, closed_range[1]]
        assert sorted(rows(given, "offset", "value")) == history.wanted(10**9)
        inside = json.dumps({"plain": {"0": closed_range[0] + 1}})
        found = rows({**given, "startingOffsets": inside}, "offset", "value")
        assert sorted(found) == history.wanted(10**9, closed_range[0] + 1)


def manifest_of(store, place, change):
    path = store.paths[place]["rsm-manifest"]
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return path.name


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(version="2"),
        lambda one: one.pop("segmentIndexes"),
        lambda one: one["segmentIndexes"].pop("transaction"),
        lambda one: one["segmentIndexes"].update(offset=7),
        lambda one: one["segmentIndexes"]["producerSnapshot"].update(size=10**6),
        lambda one: one["chunkIndex"].update(originalFileSize=7),
        lambda one: one["remoteLogSegmentMetadata"].update(startOffset=7),
        lambda one: one["remoteLogSegmentMetadata"].update(endOffset=-1),
        lambda one: one.clear(),
    ],
)
def test_a_damaged_manifest_is_named(history, tmp_path, change):
    opened_store.cache_clear()
    store = Aiven(tmp_path, "plain")
    store.paths = [store.put(segment) for segment in history.segments]
    name = manifest_of(store, 2, change)
    with pytest.raises(DamageError, match=f"{name} is no manifest of this segment"):
        read(store)


def test_a_manifest_that_is_no_json_is_named(history, tmp_path):
    store = Aiven(tmp_path, "plain")
    path = store.put(history.segments[0])["rsm-manifest"]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamageError, match=f"{path.name} is no manifest"):
        read(store)


def test_an_offset_index_of_another_segment_is_named(history, tmp_path):
    store = Local(tmp_path, "t")
    segment = made(batches(0, 60, b"t", 1), 0, 60)
    store.put(
        damaged(segment, index=segment.index[:-5] + bytes([segment.index[-5] - 1]) + segment.index[-4:])
    )
    with pytest.raises(DamageError, match="is not that of the offset index"):
        read(store)


# -- deletion while a query runs ---------------------------------------------------------------------------------


def test_what_kafka_deletes_while_a_query_runs_is_named_exactly(store, history):
    planned = tasks(given_of(store), TaskLimits(target_size=1 << 30))
    whole = read(store)
    for paths in store.paths[:2]:
        for path in paths.values():
            path.unlink()
    start = history.segments[2].base
    message = f"offsets 0 to {start - 1} of plain-0 were deleted .*begins at offset {start} now"
    with pytest.raises(DataLossError, match=message):
        rows(given_of(store), "offset", "value", planned=planned)
    lenient = given_of(store, failOnDataLoss="false")
    assert rows(lenient, "offset", "value", planned=planned) == [row for row in whole if row[0] >= start]
    for path in store.directory.iterdir():
        path.unlink()
    assert rows(lenient, "offset", "value", planned=planned) == []


def delete(store, places):
    for place in places:
        for path in store.paths[place].values():
            path.unlink()


def test_what_kafka_deletes_while_a_read_is_planned_is_listed_again(store, history):
    start, last = history.segments[2].base, history.segments[-1].end
    log = open_log(read_options(given_of(store), BATCH))
    places = log.partitions()
    delete(store, range(len(store.paths)))
    with pytest.raises(
        SegmentDeletedError, match=r"Kafka has deleted a segment since the read began: .* any more"
    ):
        log.latest(places)
    for segment in history.segments[2:]:
        store.put(segment)
    log.forget_listing()
    assert list(log.earliest(places).values()) == [start]
    assert list(log.latest(places).values()) == [stable_end(history.log, last)]


@pytest.mark.parametrize("more", [{}, {"failOnDataLoss": "false"}])
def test_a_stream_goes_on_while_kafka_deletes_segments(store, history, more, caplog):
    """The last segment goes, and segments of the same offsets come, after the stream has listed the store."""
    source = StablelogDataSource({**given_of(store), "startingOffsets": "earliest", **more})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    reader = source.streamReader(source.schema())  # as a query that is started again
    reader.source.partitions()
    delete(store, [0, 1, len(store.paths) - 1])
    store.put(history.segments[-1])
    if not more:
        with pytest.raises(DataLossError, match=f"offsets 0 to {history.segments[2].base - 1} were removed"):
            reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        return
    end = reader.latestOffset(start, ReadAllAvailable())
    found = [
        row
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for row in zip(
            *(pa.array(batch.column(name)).to_pylist() for name in ("offset", "value")), strict=True
        )
    ]
    assert found == history.wanted(
        stable_end(history.log, history.segments[-1].end), history.segments[2].base
    )
    assert f"offsets 0 to {history.segments[2].base - 1} were removed" in caplog.text


def test_segments_that_are_deleted_at_each_listing_end_the_attempts():
    tried = []

    def attempt():
        tried.append(1)
        raise SegmentDeletedError("gone")

    with pytest.raises(SegmentDeletedError):
        retry_with_new_listing(None, attempt)
    assert len(tried) == TRIES


def test_another_copy_of_a_deleted_segment_is_read(store, history):
    planned = tasks(given_of(store))
    wanted = read(store)
    for path in store.paths[1].values():
        path.unlink()
    store.put(history.segments[1], uuid.uuid4())
    assert rows(given_of(store), "offset", "value", planned=planned) == wanted


# -- large segments, S3 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """A log of 40 MiB with batches of 100 KB, in two segments."""
    content = b"".join(
        encode_batch(
            [
                Record(base + place, 0, None, random.Random(base + place).randbytes(10_000))
                for place in range(10)
            ],
            base_offset=base,
            leader_epoch=0,
        )
        for base in range(0, 4200, 10)
    )
    return [made(content, 0, 2100), made(content, 2100, 4200)]


def test_large_segments_are_divided_at_batches(layout, large, tmp_path):
    store = layout(tmp_path, "large")
    for segment in large:
        store.put(segment)
    given = given_of(store, failOnDataLoss="true")
    planned = tasks(given, TaskLimits(target_size=9 << 20))
    edges = [extent.edges for pieces in planned for piece in pieces for extent in piece.stored.extents]
    sizes = [one[-1].position - one[0].position for one in edges]
    assert len(planned) >= 4
    assert sum(sizes) == sum(len(segment.log) for segment in large)
    assert max(sizes) < 12 << 20
    assert [row for pieces in planned for row in rows(given, "offset", planned=[pieces])] == [
        (offset,) for offset in range(4200)
    ]
    inside = json.dumps({"large": {"0": 1234}})
    assert rows({**given, "startingOffsets": inside}, "offset")[0] == (1234,)
    (pieces,) = tasks({**given, "startingOffsets": json.dumps({"large": {"0": 4100}})})
    edges = [extent.edges for piece in pieces for extent in piece.stored.extents]
    assert sum(one[-1].position - one[0].position for one in edges) < 12 << 20


@pytest.mark.extended
def test_a_plan_from_s3_reads_the_manifests_and_little_more(large, history, tmp_path):
    for segments, topic in ((large, "large"), (history.segments, "plain")):
        store = Aiven(tmp_path, topic)
        for segment in segments:
            store.put(segment)
    with in_s3(store.url) as (server, options):
        before = dict(server.objects)
        wanted = history.wanted(stable_end(history.log, history.segments[-1].end))
        assert rows({**options, "subscribe": "plain"}, "offset", "value") == wanted
        server.keys.clear()
        planned = tasks({**options, "subscribe": "large"}, TaskLimits(target_size=9 << 20))
        gets = [
            key.rpartition(".")[2]
            for (kind, key), number in server.keys.items()
            for _ in range(number)
            if kind == "get"
        ]
        # For each segment: the manifest, the offset index, and the header at its one cut point. The snapshot of the last.
        assert sorted(gets) == sorted(
            ["prefix/cluster"] + ["rsm-manifest", "indexes", "log"] * 2 + ["indexes"]
        )
        assert len(rows({**options, "subscribe": "large"}, "offset", planned=planned)) == 4200
        assert server.objects == before
        assert {kind for kind, _ in server.keys} <= {"get", "list"}


# -- Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_verification_of_kafkas_segments_is_refused(spark, store):
    with pytest.raises(UsageError, match="Apache Kafka has written"):
        verify({"path": store.url})


@pytest.mark.extended
def test_a_batch_and_a_stream_of_spark(spark, layout, history, tmp_path):
    store = layout(tmp_path / "store", "plain")
    for segment in history.segments[:-1]:
        store.put(segment)
    wanted = history.wanted(stable_end(history.log, history.segments[-2].end))
    found = spark.read.format("stablelog").option("subscribe", "plain").load(store.url)
    assert [(row.offset, bytes(row.value)) for row in found.collect()] == wanted
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")
    for number, segment in enumerate((None, history.segments[-1])):
        if segment is not None:
            store.put(segment)
            wanted = history.wanted(stable_end(history.log, segment.end))
        stream = spark.readStream.format("stablelog").options(subscribe="plain", startingOffsets="earliest")
        query = stream.option("maxOffsetsPerTrigger", "40").load(store.url).select("offset", "value")
        writer = (
            query.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
        )
        writer.trigger(availableNow=True).start().awaitTermination(120)
        written = sorted((row.offset, bytes(row.value)) for row in spark.read.parquet(sink).collect())
        assert written == wanted, number


# -- Apache Kafka itself -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiered():
    """A running Apache Kafka with LocalTieredStorage. The test is skipped where Java or Maven are missing."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(tiered_kafka.serve(SHORT_LIVED))
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(f"Apache Kafka is not to be had: {missing}")
        yield running


def written_by_kafka(kafka, topic, seed):
    """Write a random history, and wait until the disk of the broker has only the last segment of each partition."""
    configs = {**tiered_kafka.TOPIC_SETTINGS, "internal.segment.bytes": "2000", "index.interval.bytes": "200"}
    make(kafka.bootstrap, topic, 2, **configs)
    writers = Writers(kafka.bootstrap, topic, 2, seed)
    for _ in range(120):
        writers.step()
    writers.end_all()
    settled(kafka.bootstrap, topic)

    def is_tiered():
        logs = [list((kafka.broker.data / f"{topic}-{number}").glob("*.log")) for number in range(2)]
        remote = list(kafka.remote.glob(f"*/{topic}-*/*.snapshot"))
        return [len(one) for one in logs] == [1, 1] and len(remote) > 4

    until(is_tiered, "the segments are not tiered")


@pytest.mark.extended
@pytest.mark.java
@pytest.mark.xdist_group("tiered Kafka")
@pytest.mark.parametrize("topic", ["history", "a.b-1-c_d"])
def test_what_kafka_tiered_reads_as_its_consumers_read_it(tiered, topic):
    written_by_kafka(tiered, topic, len(topic))
    given = {"path": tiered.remote.as_uri(), "subscribe": topic}
    before = files_of(tiered.remote)
    for isolation in ("read_committed", "read_uncommitted"):
        whole = truth(tiered.bootstrap, topic, 2, isolation)
        planned = tasks({**given, "isolation": isolation}, TaskLimits(target_size=900))
        ends = {piece.partition: 0 for pieces in planned for piece in pieces}
        for piece in itertools.chain.from_iterable(planned):
            ends[piece.partition] = max(ends[piece.partition], piece.end)
        wanted = [row for row in whole if row[1] < ends.get(row[0], 0)]
        assert len(wanted) > 40
        reading = {**given, "isolation": isolation}
        assert sorted(rows(reading, "partition", "offset", "value", planned=planned)) == wanted
        assert sorted(rows(reading, "partition", "offset", "value")) == wanted
        assert count(reading) == len(wanted)
        # The broker has the rest, and says where it begins.
        both = {**reading, "kafka.bootstrap.servers": tiered.bootstrap}
        assert {piece.stored is None for pieces in tasks(both) for piece in pieces} == {True, False}
        assert sorted(rows(both, "partition", "offset", "value")) == whole
    assert files_of(tiered.remote) == before, "nothing is written"
    uncommitted = tasks({**given, "isolation": "read_uncommitted"})
    ends = {piece.partition: piece.end for pieces in uncommitted for piece in pieces}
    directories = [tiered.broker.data / f"{topic}-{number}" for number in range(2)]
    assert ends == {number: int(min(one.glob("*.log")).stem) for number, one in enumerate(directories)}
