"""The files of a restored partition, and the offsets that no record gets."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.header import crc_holds, headers_in
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import LOG, RESTORED_FILE, VIEW_START_FILE
from stablelog.log.files.restored import Restored
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX
from stablelog.tier import restored_files
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.published import Published
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.restored_files import (
    GAP,
    GAP_SEGMENT_MAX,
    LEADER_EPOCH_STEP,
    Stored,
    coordinator_log_files,
    empty_batch,
    gap_end,
    gap_segments,
    leader_epoch_of,
    lost_ranges,
    topic_files,
)

PARTITION = RemotePartition("t", uuid.UUID(int=7), 0)
EPOCHS = LeaderEpochs([(1, 0), (3, 10)]).encode()


def segment(base, end, epoch=1, state=SegmentState.COPY_FINISHED):
    return RemoteSegment(uuid.uuid4(), base, end, 100, -1, ((epoch, base),), state=state)


def stored(*segments, log_start=0, published=None, indexes=None):
    manifest = Manifest("c", log_start, segments, published=published)
    return Stored(PARTITION, manifest, b"manifest", {}, indexes or {IndexKind.LEADER_EPOCHS: EPOCHS})


@pytest.mark.parametrize("count", [1, GAP, GAP_SEGMENT_MAX, GAP_SEGMENT_MAX + 1, 2**31, 5_000_000_000])
def test_segments_without_records_take_all_offsets(count):
    ranges = [(0, 3), (7, 7 + count), (7 + count, 7 + count + GAP)]
    for start in (7, 7 + count // 2):
        next_offset, ends = start, set()
        for base, content in gap_segments(ranges, start, 5).items():
            ((position, header),) = headers_in(content)
            assert base == header.base_offset == next_offset
            next_offset = header.next_offset
            ends.add(next_offset)
            assert next_offset + 100_000_000 - base <= RELATIVE_OFFSET_MAX, "abort markers may follow"
            assert (header.record_count, header.leader_epoch, header.has_producer) == (0, 5, False)
            assert crc_holds(content, position, header)
        assert next_offset == 7 + count + GAP
        assert count > GAP_SEGMENT_MAX or ends <= {end for _, end in ranges}


def test_a_topic_begins_locally_at_the_end_in_the_store():
    one = stored(
        segment(0, 10),
        segment(10, 20, 3),
        indexes={IndexKind.LEADER_EPOCHS: EPOCHS, IndexKind.PRODUCERS: b"p"},
    )
    lost = Restored(lost_ranges(one), 1, -1, 1, 1_003)
    files = topic_files(one, 1_003, lost, b"", is_commit_ordered=True)
    assert files[LOG_START_FILE] == encode_log_start(20)
    assert files[VIEW_START_FILE] == encode_log_start(0)
    assert files[f"{20:020}.producers"] == b"p"
    assert LeaderEpochs.decode(files[EPOCH_FILE]).entries == [(1, 0), (3, 10), (1_003, 20)]
    assert files[f"{20:020}{LOG}"] == empty_batch(20, 20 + GAP, 1_003)
    assert files[RESTORED_FILE] == lost.encode()
    assert VIEW_START_FILE not in topic_files(one, 1_003, lost, b"", is_commit_ordered=False)


def test_segments_that_are_being_deleted_have_no_snapshot():
    one = stored(
        segment(0, 10, state=SegmentState.DELETE_STARTED), log_start=10, indexes={IndexKind.PRODUCERS: b"p"}
    )
    assert one.end_offset == 10
    lost = Restored(lost_ranges(one), 1, -1, 1, 1_001)
    assert f"{10:020}.producers" not in topic_files(one, 1_001, lost, b"", is_commit_ordered=False)


def test_a_coordinators_log_goes_on_after_its_copied_segments():
    one = stored(segment(5, 10), log_start=7)
    files = coordinator_log_files(one, 1_001, b"appended")
    assert files[f"{10:020}{LOG}"] == b"appended"
    assert files[LOG_START_FILE] == encode_log_start(7)
    assert coordinator_log_files(one, 1_001, b"")[f"{10:020}{LOG}"] == empty_batch(10, 11, 1_001)


def test_the_leader_epoch_grows_above_all_that_are_known():
    assert leader_epoch_of([]) == LEADER_EPOCH_STEP
    again = Published(20, 0, 1, {}, PARTITION.topic_id, 0, Restored(((20, 30),), 0, -1, 1, 5_000))
    assert leader_epoch_of([stored(segment(0, 10, 7)), stored(segment(0, 5, 3))]) == 7 + LEADER_EPOCH_STEP
    assert leader_epoch_of([stored(segment(0, 10, 7), published=again)]) == 5_000 + LEADER_EPOCH_STEP


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 40)),
        st.tuples(st.just("lose"), st.just(0)),
    ),
    max_size=30,
)


@pytest.mark.extended
@given(OPERATIONS)
def test_no_offset_is_given_to_two_records_and_each_lost_one_is_an_error(operations):
    """A model of a partition: which record has each offset. A lost disk takes all that was not copied."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(restored_files, "GAP", 100)  # more than the records between two publications
        given_offsets, found, lost, end, record = set(), {}, set(), 0, 0
        one, ranges, copied_end = stored(), (), 0
        unpublished = 0
        for what, number in operations:
            if what == "append" and unpublished + number < 100:
                for _ in range(number):
                    assert end not in given_offsets, "a record gets an offset of another one"
                    given_offsets.add(end)
                    found[end] = record
                    end, record, unpublished = end + 1, record + 1, unpublished + 1
            elif what == "copy" and end > copied_end:
                rest = Restored(ranges, 0, -1, 1, 0) if ranges else None
                published = Published(end, 0, 1, {}, PARTITION.topic_id, 0, rest)
                rows = (*one.manifest.segments, segment(copied_end, end))
                one = one._replace(manifest=one.manifest._replace(segments=rows, published=published))
                copied_end, unpublished = end, 0
            elif what == "trim" and one.end_offset:
                start = max(one.manifest.log_start, min(number, one.end_offset))
                one = one._replace(manifest=one.manifest.with_log_start(start, 0, 1))
            elif what == "lose":
                lost |= {offset for offset in found if offset >= one.end_offset}
                found = {offset: value for offset, value in found.items() if offset < one.end_offset}
                ranges, after = lost_ranges(one), gap_end(one)
                published = Published(after, 0, 1, {}, PARTITION.topic_id, 0, Restored(ranges, 0, -1, 1, 0))
                one = one._replace(manifest=one.manifest._replace(published=published))
                end, unpublished, copied_end = after, 0, one.end_offset
            state = Restored(ranges, 0, -1, 1, 0)
            log_start = one.manifest.log_start
            for offset in lost:
                # A consumer that has read this record begins at the next offset.
                if offset + 1 > log_start:
                    assert state.lost_range(offset + 1) is not None, "a reader of a lost record gets an error"
            for offset in found:
                if offset >= log_start:
                    assert state.lost_range(offset) is None, "a record that is there is read"
