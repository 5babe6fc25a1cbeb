"""The remote segments of a commit-ordered topic: their commit indexes, and ranges of bytes copied from loaded chunks."""

from dataclasses import replace

import pytest

from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.remote_tier import RemoteCommits
from stablelog.log.search.times import Batch
from stablelog.tier import remote_commits
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import INDEXES
from tests.commit_order.test_tiered_commit_order import TieredLog
from tests.tier.tiered_log import PARTITION


def committed(count=3):
    """A log with a sealed segment for each of three commits, all of them only in the store."""
    log = TieredLog(file_delete_delay_ms=0, chunk_size=150)
    for _ in range(count):
        for _ in range(4):
            log.append(1, size=20)
        log.end(1)
        log.partition.roll(log.now_ms)
        log.now_ms += 10
    log.sync()
    log.copy()
    log.now_ms += 1
    log.drop_local()
    return log


@pytest.fixture
def log():
    return committed()


@pytest.fixture
def view(log):
    return log.remote.view


def rows(log):
    return log.remote.manifest.segments


def test_the_commit_indexes_are_described_by_the_manifest_from_an_offset_on(log, view):
    first, second, third = rows(log)
    found = list(view.commits(0))
    assert [one.base_offset for one in found] == [0, 9, 18]
    assert found[1] == RemoteCommits(9, 18, 9, 2, second.commit.latest_ms)
    assert list(view.commits(17)) == found[1:]
    assert list(view.commits(third.end_offset)) == []
    assert first.commit.latest_sequence == 1


def test_segments_before_the_log_start_are_left_out(log, view):
    log.remote.move_start(10)
    assert [one.base_offset for one in view.commits(0)] == [9, 18]
    assert view.commits_after(0).base_offset == 9


@pytest.mark.parametrize(("sequence", "base"), [(-1, 0), (0, 0), (1, 9), (2, 18)])
def test_the_segment_with_the_next_commit_sequence_is_found(view, sequence, base):
    assert view.commits_after(sequence).base_offset == base


def test_no_segment_has_a_greater_commit_sequence_than_the_last(view):
    assert view.latest_sequence == 3
    assert view.commits_after(3) is None


def test_an_empty_store_has_no_commit_sequence():
    log = TieredLog()
    assert log.remote.view.latest_sequence == -1
    assert log.remote.view.commits_after(-1) is None


def test_a_segment_whose_manifest_describes_no_commit_index_is_refused_by_its_base_offset(log, view):
    first, *others = rows(log)
    log.publish(log.remote.manifest._replace(segments=(replace(first, commit=None), *others)))
    with pytest.raises(
        DamageError, match=r"describes no commit index .* of the segment 0, but a commit-ordered topic"
    ):
        list(view.commits(0))


def test_both_files_of_a_commit_index_are_asked_for_at_once_and_then_read(log, view):
    with pytest.raises(NotLoadedError) as missing:
        view.commit_rows(9)
    row = rows(log)[1]
    kinds = IndexKind.COMMIT_ENTRIES, IndexKind.COMMIT_EXTENTS
    assert missing.value.ranges == tuple(row.index_place(PARTITION, kind) for kind in kinds)
    entries, extents = log.loading(lambda: view.commit_rows(9))
    assert (len(entries), len(extents)) == (row.commit.entries_size, row.commit.extents_size)
    content = log.objects[PARTITION.segment_key(9, row.segment_id, INDEXES)]
    assert bytes(entries) + bytes(extents) in content


def test_a_base_offset_that_no_manifest_names_is_refused(view):
    with pytest.raises(DamageError, match="names a segment with the base offset 6"):
        view.commit_rows(6)


def content_of(log, base_offset):
    row = next(one for one in rows(log) if one.base_offset == base_offset)
    return log.objects[row.log_key(PARTITION)]


def test_ranges_are_copied_one_after_another(log, view):
    whole = content_of(log, 9)
    begins, ends = [0, 120, 200], [50, 180, 260]
    count, content = log.loading(lambda: view.copy_ranges(9, begins, ends, 1 << 20))
    assert count == 3
    assert content == whole[:50] + whole[120:180] + whole[200:260]


def test_the_first_range_is_copied_whatever_its_size_and_others_as_far_as_there_is_room(log, view):
    begins, ends = [0, 120, 200], [50, 180, 260]
    log.loading(lambda: log.remote.bytes.loaded_views(rows(log)[1], 0, 260))
    assert [
        log.loading(lambda room=room: view.copy_ranges(9, begins, ends, room))[0]
        for room in (0, 109, 110, 170)
    ] == [
        1,
        1,
        2,
        3,
    ]


def test_ranges_after_one_that_is_not_loaded_wait_and_are_loaded_together_with_it(log, view):
    size = len(content_of(log, 9))
    log.loading(lambda: view.copy_ranges(9, [0], [50], 1 << 20))
    assert view.copy_ranges(9, [0, size - 20], [50, size], 1 << 20)[0] == 1, "the last chunk is not loaded"
    with pytest.raises(NotLoadedError) as missing:
        view.copy_ranges(9, [200, size - 20], [210, size], 1 << 20)
    assert len(missing.value.ranges) == 2
    log.loaded.known.clear()
    log.loading(lambda: view.copy_ranges(9, [size - 20], [size], 1 << 20))
    with pytest.raises(NotLoadedError):
        view.copy_ranges(9, [0, size - 20], [50, size], 1 << 20)


def test_one_call_needs_a_bounded_number_of_chunks_in_memory(log, view, monkeypatch):
    monkeypatch.setattr(remote_commits, "CHUNK_COUNT_MAX", 1)
    size = len(content_of(log, 9))
    assert log.loading(lambda: view.copy_ranges(9, [0, 60, size - 20], [50, 70, size], 1 << 20))[0] == 2


def test_a_range_after_the_end_of_the_log_file_is_refused_by_its_url(log, view):
    size = len(content_of(log, 9))
    with pytest.raises(
        DamageError, match=rf"\.log has {size} bytes, and a commit index names bytes up to {size + 1}"
    ):
        view.copy_ranges(9, [0], [size + 1], 1 << 20)


def test_damaged_ranges_are_dropped_and_loaded_again(log, view):
    log.loading(lambda: view.copy_ranges(9, [0], [50], 1 << 20))
    view.drop_ranges(9, [0], [50])
    with pytest.raises(NotLoadedError):
        view.copy_ranges(9, [0], [50], 1 << 20)


def test_a_batch_is_found_by_time_within_its_segment_and_offsets(log, view):
    times = sorted({row[3] for row in log.written})
    found = log.loading(lambda: view.batch_at_time(9, times[1], 9, 18))
    assert isinstance(found, Batch)
    assert found.header.base_offset == 9
    assert log.loading(lambda: view.batch_at_time(9, times[1], 11, 18)).header.base_offset == 11
    assert log.loading(lambda: view.batch_at_time(9, times[1] + 1, 9, 18)) is None


def test_ahead_of_a_reader_the_next_chunks_are_loaded_and_more_after_each_read(log, view):
    assert view.ranges_ahead(0) == [], "no read has ended there"
    log.loading(lambda: view.copy_ranges(0, [0], [50], 1 << 20))
    view.finish_read(0, 1)
    (first, *_) = view.ranges_ahead(1)
    assert first.start > 0, "the chunk that was read is loaded"
    log.loading(lambda: view.copy_ranges(0, [50], [100], 1 << 20))
    view.finish_read(1, 2)
    assert len(view.ranges_ahead(2)) > len(view.ranges_ahead(1))


def test_chunks_that_a_read_has_passed_are_not_needed_again(log, view):
    consumed = []
    log.loaded.mark_consumed = consumed.append
    size = len(content_of(log, 0))
    log.loading(lambda: view.copy_ranges(0, [0], [50], 1 << 20))
    view.finish_read(0, 1)
    assert consumed == []
    log.loading(lambda: view.copy_ranges(0, [50], [size], 1 << 20))
    view.finish_read(1, 2)
    assert sum(one.size for one in consumed) == size
    view.finish_read(2, 3)
    assert sum(one.size for one in consumed) == size, "nothing was read since"
