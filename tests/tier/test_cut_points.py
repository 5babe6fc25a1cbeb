"""Cut points: the positions at which a log file is divided, and what the manifest says to prove the bytes between them."""

from dataclasses import replace

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import DamageError
from stablelog.tier.cut_points import (
    COUNT_MAX,
    CUT_POINT,
    HEADER_CRC,
    CutPoint,
    chunk_at,
    cut_points,
    encode_cut_points,
)
from tests.log.timeline import NOW_MS
from tests.tier.stored_segments import FAULTS, truncated, written
from tests.tier.test_manifest import segment
from tests.tier.tiered_log import PARTITION, TieredLog


@pytest.mark.parametrize("chunk_size", [61, 80, 150, 400, 4 << 20])
def test_the_chunks_of_a_log_file_are_whole_batches_and_follow_each_other(chunk_size):
    tiered = written(chunk_size)
    row = tiered.remote.manifest.segments[1]
    content = tiered.objects[row.log_key(PARTITION)]
    starts = {at for at, _ in headers_in(content)} | {row.size}
    position, chunks = 0, []
    while position < row.size:
        begin, end, proof = chunk_at(row, position, 10)
        assert (begin, proof is None) == (position, False)
        assert {chunk_at(row, at, 10) for at in (begin, (begin + end) // 2, end - 1)} == {(begin, end, proof)}
        assert {begin, end} <= starts
        chunks.append(end - begin)
        position = end
    assert [one.position for one in cut_points(row)] == [sum(chunks[:n]) for n in range(1, len(chunks))]
    assert all(size >= min(chunk_size, row.size) for size in chunks[:-1])
    largest = max(header.size for _, header in headers_in(content))
    assert all(size < chunk_size + largest for size in chunks)


def test_a_segment_has_a_bounded_number_of_cut_points():
    tiered = TieredLog(chunk_size=61)
    for _ in range(3 * COUNT_MAX):
        tiered.one("-")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    [row] = tiered.copy()
    assert COUNT_MAX // 2 < len(cut_points(row)) <= COUNT_MAX


def test_impossible_cut_points_are_refused():
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    count = len(cut_points(row))
    for point, position in ((-1, 0), (row.size + 1, 0), (row.size + 1, row.size - 1)):
        with pytest.raises(DamageError, match="cut points"):
            chunk_at(replace(row, cut_points=CUT_POINT.pack(1, point) * count), position, 100)


def test_a_segment_whose_headers_are_unknown_is_read_in_chunks_of_one_size():
    """Apache Kafka writes no summary."""
    row = replace(written(150).remote.manifest.segments[1], summary=None)
    assert chunk_at(row, 130, 100) == (100, 200, None)
    assert chunk_at(row, row.size - 1, row.size - 1) == (row.size - 1, row.size, None)


@pytest.mark.parametrize("fault", [one for one in FAULTS if one is not truncated])
def test_a_log_file_that_is_not_the_one_of_its_summary_is_not_copied(fault):
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    content = fault(tiered, tiered.objects[row.log_key(PARTITION)])
    with pytest.raises(DamageError, match="not those that its summary describes"):
        encode_cut_points(row.summary, lambda at, size: content[at : at + size], 150)


def pointed(*points, crcs=None, **changes):
    """A segment of 100 offsets and 1000 bytes from offset 100 on, with cut points at (offset, position)."""
    encoded = b"".join(CUT_POINT.pack(*one) for one in points)
    known = range(len(points)) if crcs is None else crcs
    header_crcs = b"".join(map(HEADER_CRC.pack, known))
    return replace(segment(1), cut_points=encoded, header_crcs=header_crcs, **changes)


def test_cut_points_have_offsets_of_the_log_and_the_crc_of_the_headers_before_them():
    assert cut_points(pointed((10, 300), (40, 700))) == [CutPoint(110, 300, 0), CutPoint(140, 700, 1)]


def test_cut_points_of_a_segment_without_crcs_are_known_without_a_proof():
    assert cut_points(pointed((10, 300), crcs=())) == [CutPoint(110, 300, None)]


def test_a_segment_without_cut_points_is_one_chunk():
    row = pointed()
    assert cut_points(row) == []
    assert chunk_at(row, 0, 10)[:2] == chunk_at(row, 999, 10)[:2] == (0, 1000)


@pytest.mark.parametrize(
    "points",
    [
        [(0, 300)],
        [(10, 0)],
        [(40, 300), (10, 700)],
        [(10, 300), (10, 700)],
        [(10, 700), (40, 300)],
        [(100, 300)],
        [(10, 1000)],
    ],
    ids=[
        "first offset",
        "first byte",
        "offsets fall",
        "offsets stay",
        "positions fall",
        "end offset",
        "last byte",
    ],
)
def test_cut_points_that_do_not_grow_within_the_segment_are_refused_with_its_id(points):
    row = pointed(*points)
    with pytest.raises(
        DamageError, match=f"the remote segment {row.segment_id}, the cut points .* are not in the order"
    ):
        cut_points(row)


def test_cut_points_with_another_number_of_crcs_are_refused_with_the_id_of_the_segment():
    row = pointed((10, 300), (40, 700), crcs=[5])
    with pytest.raises(
        DamageError,
        match=f"the remote segment {row.segment_id} does not have a CRC",
    ):
        cut_points(row)


def test_a_log_file_whose_first_batch_does_not_end_is_not_copied():
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    with pytest.raises(
        DamageError, match=r"of segment 6 are not those that its summary describes. Restore the file"
    ):
        encode_cut_points(row.summary, lambda at, size: bytes(10), 150)
    log = tiered.objects[row.log_key(PARTITION)]
    with pytest.raises(DamageError, match="not those that its summary describes"):
        encode_cut_points(row.summary, lambda at, size: log[:20], 150)


def test_a_cut_point_outside_the_offsets_of_the_summary_is_not_copied():
    """The CRC of a header cannot find it: it does not cover the base offset of the segment."""
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    log = tiered.objects[row.log_key(PARTITION)]
    other = replace(row.summary, base_offset=0, end_offset=6)
    with pytest.raises(DamageError, match="of segment 0 are not those that its summary describes"):
        encode_cut_points(other, lambda at, size: log[at : at + size], 150)
