"""The benchmark of tiered storage runs here at a small size. The speed is measured only by the benchmark."""

import contextlib
import sys

import pytest

from bench import limits, tier_load, tier_outage, tier_stores, tiers
from bench.contestants import KAFKA, OURS
from bench.loads import Topic
from bench.report import Section
from peers import apache_kafka, tiered_kafka
from tests.java.dump import SHORT_LIVED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the memory of a process")
BEST = limits.Limits(1e4, 1e3, 0.1, 1.0, 1e3, 0.1, 10.0)
SIZES = tiers.Sizes(Topic("backfill", 1_000, 4_000), tier_stores.MIB)


def figures(section):
    found = {row.what: row.median(OURS) for row in section.rows}
    assert all(figure is not None for figure in found.values()), found
    return found


@pytest.mark.extended
def test_reads_from_a_slow_store_are_measured_with_and_without_the_time_of_the_store():
    section = Section("reads", beside="")
    tiers.remote_reads(section, SIZES, 1, BEST)
    found = figures(section)
    for suffix in ("", ", not decoded"):
        assert found[f"one partition{suffix}, MB/s"] >= found[f"the same by the clock{suffix}, MB/s"] > 0
    assert all(0 < row.limit <= BEST.loopback_mb_s for row in section.rows)


@pytest.mark.extended
def test_a_cold_fetch_takes_longer_than_the_latency_of_the_store():
    section = Section("reads", beside="")
    tiers.first_records(section, 1, 3)
    found = figures(section)
    assert found["first records of a cold fetch, ms"] > tiers.DELAY_MS
    assert section.rows[0].limit > tiers.DELAY_MS


@pytest.mark.extended
def test_copies_and_reads_have_the_local_disk_beside_them():
    found = tiers.tables()
    with tier_stores.directory_store() as store, tier_stores.serve(store.url) as broker:
        copy = tier_stores.copied(broker, SIZES.topic, SIZES.segment_size)
        assert copy.size > 2 * tier_stores.MIB
        tiers.reads_beside_local(found, store, broker, SIZES, 1, BEST)
        tiers.copy_row(found.processor, store, broker, SIZES.topic, copy)
    assert [row.ratio is not None for row in found.local.rows] == [True, True]
    assert [row.ratio for row in found.kafka.rows] == [None, None], "Apache Kafka takes no part here"
    assert len(figures(found.processor)) == 3
    assert all(row.limit > 0 for row in [*found.local.rows, *found.kafka.rows])


def test_the_time_of_the_store_does_not_count():
    done = tiers.Read(megabytes=100, seconds=2.0, store_s=1.0, broker_s=0.5)
    assert done.by_clock_mb_s == 50
    assert 50 < done.mb_s <= 100
    assert tiers.Read(100, 2.0, 0.0, 0.5).mb_s == 50


@pytest.mark.extended
def test_producers_are_measured_while_segments_are_copied(monkeypatch):
    monkeypatch.setattr(tier_load, "COPY_RATE", 10_000_000)
    monkeypatch.setattr(tier_load, "COPY_SEGMENT_SIZE", tier_stores.MIB)
    section = Section("producers", beside=tier_load.ALONE)
    tier_load.producers_while_copying(section, 1, 0.3, BEST)
    latency, rate = section.rows
    assert latency.ratio > 0
    assert rate.median(OURS) > 1


@pytest.mark.extended
def test_local_clients_are_measured_while_the_store_is_away(monkeypatch):
    monkeypatch.setattr(tier_outage, "WARM_S", 0.1)
    section = Section("outage", beside=tier_outage.ANSWERS)
    tier_outage.local_clients_while_away(section, 0.4, BEST)
    assert len(section.rows) == 2 * 4
    assert all(row.median(OURS) > 0 for row in section.rows)
    assert [row.ratio is not None for row in section.rows[:4]] == [True, True, False, False]
    assert all(row.median(OURS) < 60_000 for row in section.rows)


@pytest.mark.extended
def test_memory_and_the_cache_on_the_disk_are_seen_while_partitions_are_read():
    section = Section("memory", beside="")
    tier_load.many_partitions(section, 1, 3)
    memory, disk, read_again, _ = figures(section).values()
    assert memory > 4, "three chunks were in memory"
    assert disk >= 0, "a chunk that was read to its end is not written to the disk"
    assert 0.9 < read_again < 1.1, "nothing was loaded twice, and the last bytes are on the local disk"
    assert section.rows[1].wanted.value == 256 + 3 * 4


@pytest.mark.extended
def test_a_backfill_requests_an_index_only_of_segments_with_aborts():
    section = Section("requests")
    tiers.count_requests(section, 5, None)
    found = figures(section)
    assert found == {
        "5 segments, no aborts: ranges of log files": 5,
        "5 segments, no aborts: indexes": 0,
        "5 segments, no aborts: manifests": 0,
        "5 segments, aborts in 3: ranges of log files": 5,
        "5 segments, aborts in 3: indexes": 3,
        "5 segments, aborts in 3: manifests": 0,
    }


@pytest.mark.java
@pytest.mark.night
def test_apache_kafka_takes_part():
    with contextlib.ExitStack() as stack:
        try:
            kafka = stack.enter_context(tiered_kafka.serve(SHORT_LIVED))
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        found = tiers.tables()
        store = stack.enter_context(tier_stores.directory_store())
        broker = stack.enter_context(tier_stores.serve(store.url))
        tier_stores.copied(broker, SIZES.topic, SIZES.segment_size)
        tiers.reads_beside_local(found, store, broker, SIZES, 1, BEST, kafka)
        tiers.count_requests(found.requests, 3, kafka)
    assert all(row.ratio > 0 for row in found.kafka.rows)
    by_name = {row.what: row for row in found.requests.rows}
    assert by_name["3 segments, no aborts: indexes"].median(KAFKA) == 3 * 3
    assert by_name["3 segments, no aborts: ranges of log files"].median(KAFKA) >= 3
