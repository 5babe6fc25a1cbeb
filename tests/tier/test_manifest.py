"""Manifests: what is written is read or refused, and searches find what a linear search finds."""

import json
import uuid
from array import array
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.tier.index_object import CommitFiles
from stablelog.tier.manifest import (
    HEAD_KEY,
    Manifest,
    ManifestSegments,
    RemoteSegment,
    decode_manifest,
    encode_manifest,
)
from stablelog.tier.records import SegmentState, encode_record

NOW_MS = 1_700_000_000_000


def segment(number, *, stable=None, least=None, by_kafka=False, **changes):
    """Segment `number` has the offsets from 100 times its number on."""
    base, end = number * 100, number * 100 + 100
    summary = Summary(
        base,
        end,
        log_size=1000,
        txnindex_size=0 if least is None else 34,
        stable_offset=end if stable is None else stable,
        least_aborted_offset=-1 if least is None else least,
    )
    return RemoteSegment(
        uuid.UUID(int=number + 1),
        base,
        end,
        1000,
        NOW_MS,
        ((3, base), (4, base + 50)),
        event_ms=NOW_MS,
        broker_id=1,
        summary=None if by_kafka else summary,
        is_txn_index_empty=least is None,
        cut_points=bytes(16),
        header_crcs=b"" if by_kafka else bytes(8),
        indexes_crc=None if by_kafka else 5,
        **changes,
    )


MANIFEST = Manifest("cluster", 0, (segment(0), segment(1, least=20), segment(2, by_kafka=True)))


def test_the_latest_commit_sequence_of_a_copied_segment_is_that_of_the_segments_before_it_or_later():
    """A commit index that was rebuilt without the earlier segments does not know their commits."""

    def copied(number, latest_sequence):
        return segment(number, commit=CommitFiles(-1, latest_sequence, -1, 0, 0, 0, 0))

    manifest = Manifest("c", 0, ()).with_copied([copied(0, 7)]).with_copied([copied(1, -1), copied(2, 9)])
    assert [one.commit.latest_sequence for one in manifest.segments] == [7, 7, 9]


def test_a_manifest_is_read_as_it_was_written():
    assert decode_manifest(encode_manifest(MANIFEST, NOW_MS)) == MANIFEST
    empty = Manifest("cluster", 7)
    assert decode_manifest(encode_manifest(empty, NOW_MS)) == empty
    assert (empty.end_offset, MANIFEST.end_offset) == (7, 300)
    many = Manifest("cluster", 0, tuple(map(segment, range(2_500))))
    content = encode_manifest(many, NOW_MS)
    assert decode_manifest(content) == many
    assert len(list(headers_in(content))) == 3
    assert len(content) / 2_500 < 320, "bytes of a segment"


def test_damage_at_any_byte_is_refused():
    content = encode_manifest(MANIFEST, NOW_MS)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        try:
            read = decode_manifest(bytes(damaged))
        except (DamageError, UnknownFormatError):
            continue
        # The CRC of a batch does not cover its base offset and its leader epoch, which a manifest does not use.
        assert read == MANIFEST
        assert any(at - position < 16 for position, _ in headers_in(content) if at >= position)
    for size in range(len(content)):
        with pytest.raises(DamageError):
            decode_manifest(content[:size])


def test_segments_that_do_not_follow_each_other_are_refused():
    with pytest.raises(DamageError, match="ends at offset 100, and the next begins at 200"):
        MANIFEST._replace(segments=()).with_copied([segment(0), segment(2)])
    content = encode_manifest(Manifest("cluster", 0, (segment(0), segment(2))), NOW_MS)
    with pytest.raises(DamageError, match="the next begins at 200"):
        decode_manifest(content)


def test_a_summary_of_another_segment_is_refused():
    wrong = replace(segment(0), summary=segment(1).summary)
    with pytest.raises(DamageError, match="is of another segment"):
        decode_manifest(encode_manifest(Manifest("cluster", 0, (wrong,)), NOW_MS))


def test_a_manifest_of_a_later_release_is_refused(monkeypatch):
    monkeypatch.setattr("stablelog.tier.manifest.VERSION", 3)
    content = encode_manifest(MANIFEST, NOW_MS)
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError, match="a manifest of version 3"):
        decode_manifest(content)


def test_segments_before_the_log_start_are_marked_and_then_go():
    moved = MANIFEST.with_log_start(250, NOW_MS + 5, 2)
    states = [segment.state for segment in moved.segments]
    assert states == [SegmentState.DELETE_STARTED] * 2 + [SegmentState.COPY_FINISHED]
    assert (moved.segments[0].event_ms, moved.segments[0].broker_id) == (NOW_MS + 5, 2)
    again = moved.with_log_start(300, NOW_MS + 9, 3)
    assert [segment.event_ms for segment in again.segments] == [NOW_MS + 5, NOW_MS + 5, NOW_MS + 9]
    assert decode_manifest(encode_manifest(moved, NOW_MS)) == moved
    left = moved.without_segments({segment.segment_id for segment in moved.segments[:2]})
    assert [segment.base_offset for segment in left.segments] == [200]
    with pytest.raises(AssertionError):
        moved.without_segments({moved.segments[2].segment_id})
    found = ManifestSegments(moved.segments)
    assert found.segment_at(150) is None
    assert found.segment_at(250).base_offset == 200


def test_a_segment_of_a_kafka_without_the_field_may_have_aborts():
    old = replace(segment(0, by_kafka=True), is_txn_index_empty=False)
    new = segment(0, by_kafka=True)
    assert old.may_have_aborts
    assert not new.may_have_aborts
    assert segment(0, least=3).may_have_aborts
    read = decode_manifest(encode_manifest(Manifest("c", 0, (old,)), NOW_MS)).segments[0]
    assert read == old


@st.composite
def logs(draw):
    """A log's segments, with transactions that are aborted in any later segment."""
    count = draw(st.integers(1, 12))
    aborted = draw(
        st.lists(st.tuples(st.integers(0, count * 100 - 1), st.integers(0, count - 1)), max_size=8).map(
            lambda pairs: [(first, number) for first, number in pairs if first < number * 100 + 100]
        )
    )
    kafka = draw(st.sets(st.integers(0, count - 1)))
    segments = []
    for number in range(count):
        end = number * 100 + 100
        least = min((first for first, at in aborted if at == number), default=None)
        stable = min((first for first, at in aborted if at > number and first < end), default=end)
        made = segment(number, stable=stable, least=least, by_kafka=number in kafka)
        if number in kafka and draw(st.booleans()):
            made = replace(made, is_txn_index_empty=False)
        segments.append(made)
    return segments, aborted


@given(logs(), st.data())
def test_the_search_finds_every_segment_with_an_abort_that_concerns_the_reader(log, data):
    segments, aborted = log
    start = data.draw(st.integers(0, len(segments) * 100 - 1))
    end = data.draw(st.integers(start + 1, len(segments) * 100))
    found, ended = ManifestSegments(segments).with_aborts(start, end)
    needed = {number for first, number in aborted if first < end and number >= start // 100}
    numbers = {found_one.base_offset // 100 for found_one in found}
    assert needed <= numbers
    for found_one in found:
        assert found_one.may_have_aborts
        assert found_one.least_aborted_offset < end
    if ended:
        assert any(one.stable_offset is not None and one.stable_offset >= end for one in segments)


class Looks:
    """How many values were looked at, in all arrays and rows together."""

    count = 0


class CountedArray(array):
    """An array that counts the items that are looked at."""

    def __getitem__(self, at):
        Looks.count += 1 if isinstance(at, int) else len(range(*at.indices(len(self))))
        return super().__getitem__(at)

    def __iter__(self):
        return map(self.__getitem__, range(len(self)))


@dataclass(slots=True)
class Row:
    """What searches use of a segment. It counts each look at one of its values."""

    base_offset: int
    end_offset: int
    stable_offset: int
    may_have_aborts: bool
    least_aborted_offset: int | None
    size: int = 1
    state: SegmentState = SegmentState.COPY_FINISHED

    def __getattribute__(self, name):
        Looks.count += 1
        return object.__getattribute__(self, name)


class Searched:
    """A long list of segments of one offset each. A search in it counts each row of the list, of the array with the
    numbers of the segments, of the arrays that are searched by bisection, and of the tree of minima that is looked at.

    Args:
        least: returns for a segment at which offset a transaction began that was aborted there; None if none was.
        is_open: whether a transaction is open from the first segment to the last.
    """

    def __init__(self, monkeypatch, count, least, *, is_open=False):
        for module in ("log.search.rows", "log.indexes.minima"):
            monkeypatch.setattr(f"stablelog.{module}.array", CountedArray)
        firsts = ((number, least(number)) for number in range(count))
        self.segments = ManifestSegments(
            [
                Row(at, at + 1, 0 if is_open and at < count - 1 else at + 1, first is not None, first)
                for at, first in firsts
            ]
        )

    def search(self, start, end):
        """Return the number of segments that are found, and of the rows that are looked at."""
        Looks.count = 0
        found, is_complete = self.segments.with_aborts(start, end)
        assert is_complete
        return len(found), Looks.count


LONG_COUNT, SEARCHED_MAX = 1_000_000, 64
MANY = pytest.mark.parametrize("count", [100_000, pytest.param(LONG_COUNT, marks=pytest.mark.night)])


@pytest.mark.extended
@MANY
@pytest.mark.parametrize("is_open", [False, True])
def test_a_search_in_many_segments_without_many_aborts_looks_at_few(monkeypatch, count, is_open):
    """KIP-1058: it is not a linear search."""
    with_aborts = {5, count // 2, count - 10}
    searched = Searched(monkeypatch, count, lambda at: 0 if at in with_aborts else None, is_open=is_open)
    for start, end, wanted, late in (
        (10, count * 9 // 10, 1, 1),
        (0, count, 3, 0),
        (count * 6 // 10, count * 7 // 10, 0, 1),
        (count - 1, count, 0, 0),
    ):
        answer, looks = searched.search(start, end)
        assert answer == wanted + late * is_open
        assert looks <= SEARCHED_MAX + answer


@MANY
def test_a_search_in_many_segments_with_aborts_looks_at_few_besides_its_result(monkeypatch, count):
    searched = Searched(monkeypatch, count, lambda at: at)
    for start, end in ((10, 1_010), (0, count), (count // 2, count // 2 + 1), (count - 1, count)):
        answer, looks = searched.search(start, end)
        assert answer == end - start
        assert looks <= SEARCHED_MAX + answer


@pytest.mark.extended
@MANY
def test_a_search_after_the_range_of_the_reader_looks_at_a_path_for_each_segment_that_it_finds(
    monkeypatch, count
):
    """A transaction of the range is open up to the last segment, and each segment has an abort of its own."""
    late = {count // 2: 7, count - 1: 8}
    searched = Searched(monkeypatch, count, lambda at: late.get(at, at), is_open=True)
    for end, late_count in ((7, 0), (8, 1), (9, 2), (1_000, 2)):
        answer, looks = searched.search(3, end)
        assert answer == end - 3 + late_count
        assert looks <= SEARCHED_MAX + answer + PATH * (late_count + 2)


PATH = 81  # The root of the tree of minima over 1,000,000 values, and 16 values in each of its five other levels.


def test_the_log_start_may_pass_the_last_segment_and_segments_go_in_any_order():
    passed = Manifest("c", 0, (segment(0), segment(1))).with_log_start(300, NOW_MS, 1)
    assert passed.end_offset == 300
    more = passed.with_copied([segment(3)])
    assert more.end_offset == 400
    left = more.without_segments({segment(1).segment_id})
    assert [one.base_offset for one in left.segments] == [0, 300]
    assert decode_manifest(encode_manifest(left, NOW_MS)) == left


@pytest.mark.parametrize(
    "head",
    [
        {"version": 0, "cluster": "c", "log_start": 0, "count": 0},
        {"version": 500, "cluster": "c", "log_start": 0, "count": 0},
        {"version": 1, "cluster": None, "log_start": 0, "count": 0},
        {"version": 1, "cluster": "c", "log_start": 1.5, "count": 0},
        {"version": 1, "cluster": "c", "log_start": True, "count": 0},
        {"version": 1, "cluster": "c", "log_start": -5, "count": 0},
        {"version": 1, "cluster": "c", "log_start": float("inf"), "count": 0},
        {"version": 1, "cluster": "c", "count": 0},
        [1],
        "x",
    ],
)
def test_a_head_with_other_values_is_refused(head):
    record = Record(0, NOW_MS, HEAD_KEY, json.dumps(head).encode())
    with pytest.raises(DamageError, match="manifest"):
        decode_manifest(encode_batch([record]))


@pytest.mark.parametrize("changes", [{"end_offset": -1}, {"size": -1}, {"state": SegmentState.COPY_STARTED}])
def test_a_segment_with_impossible_values_is_refused(changes):
    wrong = replace(segment(0, by_kafka=True), **changes)
    with pytest.raises(DamageError):
        decode_manifest(encode_manifest(Manifest("c", 0, (wrong,)), NOW_MS))


def test_a_state_that_is_not_known_is_refused():
    record = replace(segment(0).to_record(), state=9)
    head = {"version": 1, "cluster": "c", "log_start": 0, "count": 1}
    first = Record(0, NOW_MS, HEAD_KEY, json.dumps(head).encode())
    with pytest.raises(DamageError, match="where only segments are expected"):
        decode_manifest(encode_batch([first, Record(1, NOW_MS, None, encode_record(record))]))
