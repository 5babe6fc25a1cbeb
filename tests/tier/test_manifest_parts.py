"""The parts of a manifest: whatever happens to its segments, it is read as it was, and a publication stays small."""

import itertools
import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.tier.manifest import (
    HEAD_KEY,
    PART_KEY,
    Manifest,
    decode_manifest,
    encode_manifest,
    encode_part,
    read_part,
)
from stablelog.tier.manifest_parts import PART_COUNT, divide_into_parts
from stablelog.tier.records import SegmentState
from tests.tier.test_manifest import NOW_MS, segment

COUNT = 3  # segments in a part


class Publisher:
    """A broker that publishes manifests, and the parts in its store."""

    def __init__(self, part_count=COUNT):
        self.part_count = part_count
        self.manifest = Manifest("c")
        self.parts = {}
        self.written = 0
        self.ids = (uuid.UUID(int=number) for number in itertools.count(1))

    def publish(self, manifest):
        manifest, fresh = divide_into_parts(
            manifest, self.manifest, NOW_MS, lambda: next(self.ids), part_count=self.part_count
        )
        for part, content in fresh:
            self.parts[part.part_id] = content
            self.written += part.segment_count
        payload = encode_manifest(manifest, NOW_MS)
        self.manifest = decode_manifest(payload, lambda part: read_part(part, self.parts[part.part_id]))
        assert self.manifest == manifest
        return payload

    def places(self):
        """The number of segments that the manifest itself has, before, between and after its parts, and on both
        sides of the log start.
        """
        states = [one.state for one in self.manifest.segments]
        bases = [one.base_offset for one in self.manifest.segments]
        ends = [0]
        for part in self.manifest.parts:
            place = bases.index(part.base_offset)
            ends += [place, place + part.segment_count]
        ends.append(len(states))
        runs = [states[begin:end] for begin, end in zip(ends[::2], ends[1::2], strict=True)]
        return [sum(one is state for one in run) for run in runs for state in set(run)]


@pytest.mark.extended
@given(st.data())
def test_a_manifest_is_read_as_it_was_published(data):
    """Segments are copied, marked and removed in every order; a part is written only if its segments changed."""
    broker, copied = Publisher(), 0
    for _ in range(data.draw(st.integers(1, 12))):
        manifest = broker.manifest
        match data.draw(st.sampled_from(["copy", "copy", "begin", "remove"])):
            case "copy":
                count = data.draw(st.integers(1, 9))
                manifest = manifest.with_copied(segment(copied + at) for at in range(count))
                copied += count
            case "begin":
                start = data.draw(st.integers(manifest.log_start // 100, copied)) * 100
                manifest = manifest.with_log_start(start, NOW_MS, 1)
            case "remove":
                marked = [
                    one.segment_id for one in manifest.segments if one.state is SegmentState.DELETE_STARTED
                ]
                gone = data.draw(st.integers(0, len(marked)))
                manifest = manifest.without_segments(set(marked[:gone]))
        broker.publish(manifest)
        assert broker.manifest.segments == manifest.segments
        assert all(count <= COUNT for count in broker.places())


def test_each_segment_that_stays_is_written_into_one_part_once():
    broker = Publisher()
    for number in range(100):
        broker.publish(broker.manifest.with_copied([segment(number)]))
    in_parts = sum(part.segment_count for part in broker.manifest.parts)
    assert broker.written == in_parts > 100 - 2 * COUNT


def test_retention_of_single_segments_writes_no_part_again():
    broker = Publisher()
    broker.publish(broker.manifest.with_copied(map(segment, range(30))))
    written = broker.written
    for number in range(1, 20):
        marked = broker.manifest.with_log_start(number * 100, NOW_MS, 1)
        gone = {one.segment_id for one in marked.segments if one.state is SegmentState.DELETE_STARTED}
        broker.publish(marked)
        broker.publish(broker.manifest.without_segments(gone))
    assert broker.written == written
    assert [one.base_offset for one in broker.manifest.segments] == [n * 100 for n in range(19, 30)]


@pytest.mark.extended
@pytest.mark.parametrize("delay", [0, 25, None])
@pytest.mark.parametrize("kept", [10, 30, 39, 50, 90])
def test_parts_are_seldom_written_again_whatever_retention_keeps(kept, delay):
    """Each publication marks the oldest segment and has a new one. A marked segment leaves the manifest when so many others
    were marked after it, or never.
    """
    part_count, count = 20, 100
    broker = Publisher(part_count)
    for number in range(kept):
        broker.publish(broker.manifest.with_copied([segment(number)]))
    before = len(broker.parts)
    for number in range(1, count + 1):
        manifest = broker.manifest.with_log_start(number * 100, NOW_MS, 1)
        if delay is not None:
            old = {one.segment_id for one in manifest.segments if one.end_offset <= (number - delay) * 100}
            manifest = manifest.without_segments(old)
        broker.publish(manifest.with_copied([segment(kept + number - 1)]))
        assert all(rows <= part_count + part_count // 4 for rows in broker.places())
    assert len(broker.parts) - before <= 2 * count // (part_count // 4)


@pytest.mark.extended
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.night)])
def test_a_publication_beside_many_segments_is_small(count):
    broker = Publisher(PART_COUNT)
    broker.publish(broker.manifest.with_copied(map(segment, range(count))))
    payload = broker.publish(broker.manifest.with_copied([segment(count)]))
    assert len(payload) < 350_000
    assert len(broker.parts) == count // PART_COUNT - 1
    whole = encode_manifest(broker.manifest._replace(parts=()), NOW_MS)
    assert decode_manifest(whole).segments == broker.manifest.segments


def part_of(count=2):
    return encode_part(uuid.UUID(int=9), [segment(number) for number in range(count)], NOW_MS)


def read_with(part, content):
    payload = encode_manifest(Manifest("c", 0, (segment(0), segment(1)), (part,)), NOW_MS)
    return decode_manifest(payload, lambda part: read_part(part, content))


def test_a_damaged_part_is_refused_by_its_id():
    part, content = part_of()
    assert read_with(part, content).segments == (segment(0), segment(1))
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(DamageError, match=f"the part {part.part_id} of a manifest is damaged"):
            read_with(part, bytes(damaged))
    with pytest.raises(DamageError, match="is damaged"):
        read_with(part, content[:-1])


def test_a_part_with_other_segments_than_the_manifest_says_is_refused():
    part, content = part_of()
    for wrong in (part._replace(segment_count=3), part._replace(base_offset=100)):
        with pytest.raises(DamageError, match="does not contain the segments that the manifest lists"):
            decode_manifest(_named(wrong), lambda part: read_part(part, content))


def test_a_part_of_another_version_is_refused(monkeypatch):
    for version, error in ((2, UnknownFormatError), (0, DamageError)):
        monkeypatch.setattr("stablelog.tier.manifest.PART_VERSION", version)
        part, content = part_of()
        monkeypatch.undo()
        with pytest.raises(error, match="part"):
            read_with(part, content)


def test_a_file_that_is_no_part_is_refused():
    content = encode_manifest(Manifest("c", 0, (segment(0),)), NOW_MS)
    part, _ = part_of(1)
    with pytest.raises(DamageError, match=r"the part .* of a manifest is damaged"):
        decode_manifest(_named(part), lambda named: read_part(named, content))


def test_a_caller_that_loads_no_parts_is_told_of_them():
    part, _ = part_of()
    with pytest.raises(DamageError, match="only reads manifests without parts"):
        decode_manifest(_named(part))


@pytest.mark.parametrize("parts", [None, 5, [[]], [["x", 0, 1, 2, 3]], [[7, 0, 1, 2, 3]], [["0" * 32, 0, 1]]])
def test_parts_that_are_named_wrongly_are_refused(parts):
    with pytest.raises(DamageError, match="does not list its parts correctly"):
        decode_manifest(_head(parts))


@pytest.mark.parametrize("number", [-1, 1.5, True, "1", None])
def test_a_part_that_is_described_with_other_values_than_numbers_is_refused(number):
    with pytest.raises(DamageError, match="a value that is no number"):
        decode_manifest(_head([["0" * 32, 0, number, 2, 3]]))


def test_parts_whose_segments_overlap_are_refused():
    part, content = part_of()
    with pytest.raises(DamageError, match="ends at offset"):
        decode_manifest(_head([[part.part_id.hex, *part[1:]]] * 2), lambda named: read_part(named, content))


def test_a_segment_that_changes_leaves_its_part():
    broker = Publisher()
    broker.publish(broker.manifest.with_copied(map(segment, range(12))))
    first, *others = broker.manifest.parts
    changed = replace(broker.manifest.segments[1], event_ms=NOW_MS + 1)
    manifest = broker.manifest
    broker.publish(manifest._replace(segments=(manifest.segments[0], changed, *manifest.segments[2:])))
    assert broker.manifest.segments[1] == changed
    assert first not in broker.manifest.parts
    assert set(others) == set(broker.manifest.parts)
    assert PART_KEY != HEAD_KEY


def _head(parts):
    head = {"version": 2, "cluster": "c", "log_start": 0, "count": 0, "parts": parts}
    return encode_batch([Record(0, NOW_MS, HEAD_KEY, json.dumps(head).encode())])


def _named(part):
    return _head([[part.part_id.hex, *part[1:]]])
