"""What readers of a segment use: its proof, its scrub, and what is known of its damage."""

import itertools

import pytest

from stablelog.errors import DamageError, UnprovenError
from stablelog.log.compaction import policy as compaction
from stablelog.log.files.names import SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.model import Isolation
from stablelog.log.recovery import examine as examine_module
from stablelog.log.recovery import replay, tail
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.repair import examine
from stablelog.log.segments import segment as segment_module
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.verify import segment as segment_proof
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from tests.log.test_damage import changed, headers, path_of
from tests.log.timeline import DIRECTORY, NOW_MS, Log


def test_a_damaged_batch_refuses_exactly_the_reads_that_touch_it():
    segment = GrowingSegment(SimDisk(), SegmentName.of(DIRECTORY, 0))
    batches = [DamagedBatch(300, 50, 3), DamagedBatch(100, 20, 1), DamagedBatch(500, 1, 5)]
    assert [segment.add_damaged_batch(batch) for batch in batches] == [True] * 3
    assert [segment.add_damaged_batch(batch) for batch in batches] == [False] * 3
    assert [batch.position for batch in segment.proof.damaged_batches] == [100, 300, 500]
    places = [0, 99, 100, 101, 119, 120, 121, 299, 300, 349, 350, 499, 500, 501, 600]
    for begin, end in itertools.combinations(places, 2):
        touched = [b for b in batches if set(range(begin, end)) & set(range(b.position, b.position + b.size))]
        if touched:
            with pytest.raises(DamageError, match=str(path_of(0))):
                segment.check_undamaged(begin, end)
        else:
            segment.check_undamaged(begin, end)
    for place in places:
        behind = min((batch.position for batch in batches if batch.position >= place), default=None)
        found = segment.damaged_behind(place)
        assert (found and found.position) == behind


def test_a_scrub_of_a_segment_reads_all_of_it_and_names_each_damaged_batch():
    log = Log().write("- - - -")
    (segment,) = log.partition.segments()
    assert sum(segment.scrub()) == segment.size
    positions = [position for position, _ in headers(log, path_of(0))]
    for position in positions[1::2]:
        changed(log, path_of(0), position + 64)
    damaged = [one for one in segment.scrub() if isinstance(one, DamagedBatch)]
    assert [(one.position, one.base_offset) for one in damaged] == [(positions[1], 1), (positions[3], 3)]


def test_a_log_file_that_gets_shorter_before_it_is_proven_is_damaged():
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.close()
    log.partition = log.open(clean=True, prove=False)
    log.disk.damage(path_of(0), log.disk.read_bytes(path_of(0))[:-1])
    with pytest.raises(UnprovenError) as raised:
        log.partition.read(0, 100, Isolation.LOG_END)
    with pytest.raises(DamageError, match="bytes, but "):
        list(raised.value.prove())
    with pytest.raises(DamageError, match=str(path_of(0))):
        log.partition.read(0, 100, Isolation.LOG_END)


@pytest.mark.parametrize(
    ("at", "new", "is_refused"),
    [(8, 0, True), (8, 48, True), (8, -70, True), (8, 49, False), (23, -1, True), (23, 0, False)],
)
def test_a_lookup_of_an_offset_meets_only_what_may_be_a_batch(at, new, is_refused):
    """Also in a log file that was proven: the disk may change it since."""
    log = Log().write("- - -")
    (segment,) = log.partition.segments()
    content = bytearray(log.disk.read_bytes(path_of(0)))
    content[at : at + 4] = new.to_bytes(4, "big", signed=True)
    log.disk.damage(path_of(0), bytes(content))
    if is_refused:
        with pytest.raises(DamageError, match=f"{path_of(0)}: the bytes at byte 0 are no batch"):
            segment.find(1)
    else:
        assert segment.find(0).position == 0


def test_a_proof_goes_over_the_map_that_readers_get(monkeypatch):
    """So its pages are there for them. A file that is too short is not mapped: the proof says what is wrong."""
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.close()
    log.partition = log.open(clean=True, prove=False)
    content, given = log.disk.read_bytes(path_of(0)), []
    monkeypatch.setattr(
        segment_module, "prove_headers", lambda *arguments: iter(given.append(arguments) or ())
    )
    for there in (content, content + b"more", content[:-1]):
        log.disk.damage(path_of(0), there)
        summary = log.partition.segments()[0].summary
        segment = SealedSegment(log.disk, SegmentName.of(DIRECTORY, 0), summary, OpenFiles())
        list(segment.unproven_error().prove())
        disk, path, size, crc, mapped = given.pop()
        assert (disk, path, size, crc) == (log.disk, path_of(0), len(content), segment.summary.log_crc)
        assert mapped is None if len(there) < len(content) else bytes(mapped) == content


@pytest.mark.parametrize("base", [0, 7])
@pytest.mark.parametrize("spare", [1, 0, -1])
def test_every_reader_of_a_segment_knows_how_far_its_offsets_may_go(spare, base, monkeypatch):
    """The bound is made low here: offsets of a segment's last batch lie at it, or one past it."""
    log = Log().write("- " * base)
    if base:
        log.partition.roll(NOW_MS)
        log.sync()
        log.partition.deletion.delete_records(base)
    log.write("- - P1 - -")
    log.partition.close()
    for module in (replay, examine_module, segment_proof, tail, compaction):
        monkeypatch.setattr(module, "RELATIVE_OFFSET_MAX", 4 + spare)
    fits = spare >= 0
    summaries = [Summary(0, 3), Summary(3, 5)]
    assert len(compaction.group_segments(summaries, log.config)) == (1 if fits else 2)
    found = list(verify_directory(log.disk, DIRECTORY))
    assert [finding.path for finding in found] == ([] if fits else [path_of(base)])
    damage = examine(log.disk, DIRECTORY, Expected())
    assert (damage is None) == fits
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    assert log.open(clean=False, recovery_point=0).end_offset == base + (5 if fits else 4)
