"""The remote tier of a partition: readers find the same records and aborted transactions as without it, and no index is
requested without need.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import HEADER, headers_in, read_header
from stablelog.errors import (
    DamageError,
    NotLoadedError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from stablelog.log.partition import Isolation
from stablelog.log.time_lookup import look_up_time
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.remote_log import RemoteLog
from tests.log.timeline import NOW_MS, Log, aborted_in
from tests.tier.tiered_log import PARTITION, TieredLog

WORDS = st.lists(
    st.sampled_from(
        ["-", "P1", "P2", "P3", "P1c", "P2c", "P3c", "P1a", "P2a", "P3a", "roll", "copy", "drop"]
    ),
    max_size=60,
)
LOCAL_NOTHING = {"local_retention_ms": 0, "local_retention_bytes": 0}


def write_both(words, chunk_size=100, **config):
    """The same records in a tiered log and in a plain one."""
    tiered, plain = TieredLog(chunk_size=chunk_size, **LOCAL_NOTHING, **config), Log(**config)
    for word in words:
        if word == "copy":
            tiered.copy()
        elif word == "drop":
            tiered.drop_local()
        else:
            for log in (tiered, plain):
                if word == "roll":
                    log.partition.roll(NOW_MS)
                else:
                    log.one(word)
                log.sync()
                log.now_ms += 1
    return tiered, plain


def batches(found):
    return [header for _, header in headers_in(b"".join(found.buffers))]


def aborted_of(found):
    return (
        None
        if found.aborted is None
        else sorted((one.producer_id, one.first_offset) for one in found.aborted)
    )


@settings(max_examples=60, deadline=None)
@given(
    WORDS,
    st.sampled_from([61, 100, 1000]),
    st.sampled_from([1, 150, 1 << 20]),
    st.sampled_from(list(Isolation)),
)
def test_a_reader_sees_the_same_log_in_both_tiers(words, chunk_size, size_max, isolation):
    tiered, plain = write_both(words, chunk_size)
    offset, seen = 0, []
    while offset < plain.partition.visible_end(isolation):
        found = tiered.read(offset, size_max, isolation)
        assert found.end_offset > offset
        assert found.start_offset == offset
        seen += batches(found)
        # The aborted transactions are those of exactly these batches.
        if found.aborted is not None and found.buffers:
            same = aborted_in(plain.partition, batches(found)[0].base_offset, found.end_offset)
            assert aborted_of(found) == sorted((one.producer_id, one.first_offset) for one in same)
        offset = found.end_offset
    whole = plain.partition.read(0, 1 << 20, isolation)
    rest = [whole]
    while rest[-1].end_offset < plain.partition.visible_end(isolation):
        rest.append(plain.partition.read(rest[-1].end_offset, 1 << 20, isolation))
    assert seen == [header for one in rest for header in batches(one)]
    assert tiered.partition.visible_start(isolation) == 0
    assert tiered.partition.start_offset <= tiered.remote.end_offset


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(0, 70), st.sampled_from([Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED]))
def test_a_reader_may_begin_anywhere_and_time_is_found_in_both_tiers(words, number, isolation):
    tiered, plain = write_both(words)
    if number <= plain.partition.visible_end(isolation):
        found, same = tiered.read(number, 1, isolation), plain.partition.read(number, 1, isolation)
        assert b"".join(found.buffers) == b"".join(same.buffers)
        assert (aborted_of(found), found.end_offset) == (aborted_of(same), same.end_offset)
    assert tiered.look_up_time(NOW_MS + number, isolation) == _looked_up(plain, NOW_MS + number, isolation)


def _looked_up(plain, timestamp_ms, isolation):
    from stablelog.log.search.times import run_lookup

    return run_lookup(look_up_time(plain.partition, timestamp_ms, isolation))


def filled(aborting=(), count=100, *, chunk_size=4 << 20, per_segment=3):
    """A log of sealed segments, all of them only in the store; in some segments a transaction was aborted."""
    tiered = TieredLog(chunk_size=chunk_size, **LOCAL_NOTHING)
    for number in range(count):
        for _ in range(per_segment):
            tiered.one("P1")
        tiered.one("P1a" if number in aborting else "P1c")
        tiered.partition.roll(NOW_MS)
        tiered.sync()
    tiered.copy()
    assert tiered.drop_local() == count
    assert tiered.partition.start_offset == count * (per_segment + 1)
    return tiered


def backfill(tiered, isolation=Isolation.READ_COMMITTED, size_max=1 << 20):
    offset = 0
    while offset < tiered.partition.visible_end(isolation):
        offset = tiered.read(offset, size_max, isolation).end_offset


@pytest.mark.parametrize(("aborting", "wanted"), [((), 0), ((3, 50, 99), 3)])
def test_a_backfill_requests_an_index_only_where_a_transaction_was_aborted(aborting, wanted):
    tiered = filled(aborting)
    backfill(tiered)
    assert tiered.loaded.count(LOG) == 100
    assert tiered.loaded.count(INDEXES) == wanted


def test_a_read_uncommitted_backfill_in_small_pieces_requests_no_index():
    tiered = filled((3,), count=10, chunk_size=100)
    backfill(tiered, Isolation.READ_UNCOMMITTED, size_max=1)
    assert tiered.loaded.count(INDEXES) == 0


def test_a_reader_that_begins_in_the_middle_of_a_segment_requests_its_offset_index_once():
    tiered = TieredLog(index_interval_bytes=0, **LOCAL_NOTHING)
    tiered.write("- - - - -")
    tiered.partition.roll(NOW_MS)
    tiered.write("-")
    tiered.copy()
    tiered.drop_local()
    for offset in (3, 4):
        assert batches(tiered.read(offset, 1))[0].base_offset == offset
    assert tiered.loaded.count(INDEXES) == 1


def test_a_segment_without_a_summary_may_have_aborts_and_a_missing_object_means_none():
    tiered = TieredLog(**LOCAL_NOTHING)
    tiered.write("P1 P1a")
    tiered.partition.roll(NOW_MS)
    tiered.write("- -")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    rows = tiered.copy(with_summary=False)
    for key in list(tiered.objects):
        if key == PARTITION.segment_key(rows[1].base_offset, rows[1].segment_id, INDEXES):
            del tiered.objects[key]
    tiered.drop_local()
    assert aborted_of(tiered.read(0)) == [(1, 0)]
    assert aborted_of(tiered.read(2)) == []


def test_a_missing_index_of_a_segment_whose_summary_has_aborts_is_damage():
    tiered = TieredLog(**LOCAL_NOTHING)
    tiered.write("P1 P1a")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    [row] = tiered.copy()
    tiered.drop_local()
    tiered.objects[PARTITION.segment_key(0, row.segment_id, INDEXES)] = b""
    with pytest.raises(DamageError, match="do not match the CRC in the manifest"):
        tiered.read(0)
    tiered.read(0, isolation=Isolation.READ_UNCOMMITTED)


@pytest.mark.parametrize("at", [0, 3, 8, 11, 16, 24])
def test_a_damaged_log_object_is_refused_by_its_key(at):
    tiered = filled(count=2)
    key = next(key for key in tiered.objects if key.endswith(".log"))
    content = bytearray(tiered.objects[key])
    content[at] ^= 0x7F
    tiered.objects[key] = bytes(content)
    with pytest.raises(
        DamageError,
        match=r"t\.t/.*\.log is damaged: the \d+ bytes at byte 0 do not match the CRC in the manifest: ",
    ):
        tiered.read(0)


def test_a_damaged_body_ends_a_read_before_its_batch_and_is_refused_by_its_position():
    tiered = filled(count=1)
    key = next(key for key in tiered.objects if key.endswith(".log"))
    content = bytearray(tiered.objects[key])
    second = read_header(content).size
    content[second + HEADER.size] ^= 0x7F
    tiered.objects[key] = bytes(content)
    assert tiered.read(0).end_offset == 1
    with pytest.raises(DamageError, match=rf"\.log: the CRC of the batch at byte {second} does not match"):
        tiered.read(1)


def test_an_offset_between_the_tiers_is_refused_as_damage_and_one_before_the_start_as_out_of_range():
    tiered = filled(count=3)
    tiered.partition.deletion.delete_records(5)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 5
    with pytest.raises(OffsetOutOfRangeError, match="the offsets 5 to 12"):
        tiered.read(4)
    assert batches(tiered.read(5))[0].base_offset == 5
    manifest = tiered.remote.manifest
    tiered.publish(manifest._replace(segments=manifest.segments[2:]))
    with pytest.raises(DamageError, match="names a segment with offset 5"):
        tiered.read(5)


def test_a_local_segment_is_deleted_only_when_a_published_manifest_names_it():
    tiered = TieredLog(**LOCAL_NOTHING)
    tiered.write("- -")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    tiered.now_ms += 1
    assert tiered.drop_local() == 0
    rows = tiered.copy(publish=False)
    assert tiered.drop_local() == 0

    tiered.publish(tiered.remote.manifest.with_copied(rows))
    assert tiered.drop_local() == 1
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 0


def test_segments_above_the_last_stable_offset_are_not_copied():
    tiered = TieredLog(**LOCAL_NOTHING)
    tiered.write("-")
    tiered.partition.roll(NOW_MS)
    tiered.write("P1 -")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    assert [row.base_offset for row in tiered.copy()] == [0]
    tiered.write("P1c")
    assert [row.base_offset for row in tiered.copy()] == [1]
    assert tiered.copy() == []


def test_the_marker_of_a_transaction_may_be_in_the_other_tier():
    tiered = TieredLog(**LOCAL_NOTHING)
    tiered.write("P1 -")
    tiered.partition.roll(NOW_MS)
    tiered.write("P1a")
    tiered.partition.roll(NOW_MS)
    tiered.write("-")
    tiered.copy()
    # Only the first segment is in the list of the store.
    tiered.publish(tiered.remote.manifest._replace(segments=tiered.remote.manifest.segments[:1]))
    tiered.now_ms += 1
    tiered.drop_local()
    assert tiered.partition.start_offset == 2
    assert aborted_of(tiered.read(0)) == [(1, 0)]


def test_retention_of_the_whole_log_moves_its_start_in_the_store():
    tiered = filled(count=4)
    size = tiered.remote.manifest.segments[0].size
    tiered.partition.config = replace(tiered.config, retention_bytes=2 * size)
    tiered.partition.deletion.apply_retention(tiered.now_ms)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 8
    assert tiered.saved[-1] == 8
    tiered.partition.config = replace(tiered.config, retention_ms=10)
    tiered.partition.deletion.apply_retention(tiered.now_ms + 10_000)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == tiered.partition.start_offset == 16


def test_the_size_of_the_log_counts_each_segment_once():
    """A segment in both tiers counts once, and an unpublished copy does not count (KAFKA-17062)."""
    tiered = TieredLog()
    for _ in range(4):
        tiered.write("- -")
        tiered.partition.roll(NOW_MS)
        tiered.sync()
    size = tiered.partition.size
    tiered.copy()
    tiered.partition.config = replace(tiered.config, retention_bytes=size)
    tiered.partition.deletion.apply_retention(tiered.now_ms)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 0
    tiered.partition.config = replace(tiered.config, retention_bytes=size - 1)
    tiered.partition.deletion.apply_retention(tiered.now_ms)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 0
    tiered.partition.config = replace(tiered.config, retention_bytes=size * 3 // 4)
    tiered.partition.deletion.apply_retention(tiered.now_ms)
    assert tiered.partition.visible_start(Isolation.READ_COMMITTED) == 2
    assert tiered.partition.start_offset == 2


def test_a_list_that_is_not_known_refuses_remote_offsets_and_keeps_local_ones():
    tiered = filled(count=2)
    tiered.write("-")
    tiered.partition.remote = RemoteLog(PARTITION, None, tiered.loaded, tiered.saved.append)
    assert not tiered.partition.remote.is_known
    with pytest.raises(UnavailableError, match="not known until the object store answers"):
        tiered.read(0)
    with pytest.raises(UnavailableError):
        tiered.partition.visible_start(Isolation.READ_COMMITTED)
    assert len(batches(tiered.read(8))) == 1


def test_more_chunks_are_loaded_ahead_of_a_reader_that_goes_on():
    tiered = filled(count=3, chunk_size=100)
    offset, ahead = 0, []
    while offset < tiered.remote.end_offset:
        if ahead:
            tiered.loaded.requests.clear()
        found = tiered.read(offset, 1)
        # The reader has needed no chunk but those that were ahead of it.
        assert not ahead or set(tiered.loaded.requests) <= set(ahead[-1])
        ahead.append(tiered.remote.ranges_ahead(found.end_offset))
        offset = found.end_offset
    assert [len(one) for one in ahead][:4] == [1, 3, 4, 4]
    assert tiered.remote.ranges_ahead(tiered.partition.end_offset) == []


def test_a_read_of_a_segment_that_is_not_loaded_asks_for_it():
    with pytest.raises(NotLoadedError):
        filled(count=1).partition.read(0, 1, Isolation.READ_UNCOMMITTED)
