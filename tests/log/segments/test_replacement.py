"""Operations that a crash has interrupted are finished or undone."""

import contextlib
import random

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES
from stablelog.log.indexes.summary import Summary
from stablelog.log.segments.replacement import CLEANED, SWAP, begin_swap, finish_interrupted
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, Log


@pytest.mark.extended
def test_a_swap_that_has_begun_is_durable_with_all_its_files():
    """The log file's name decides: where a crash leaves it, it leaves the others; and after the call it is there."""
    for crash_at in (None, *range(1, 30)):
        for seed in range(20):
            disk = SimDisk()
            disk.make_dir(DIRECTORY)
            for suffix in SEGMENT_SUFFIXES:
                disk.write_atomic(DIRECTORY / f"{7:020d}{suffix}{CLEANED}", b"x")
            if crash_at is not None:
                disk.crash_at = disk.steps + crash_at
            with contextlib.suppress(SimulatedCrash):
                begin_swap(disk, DIRECTORY, 7)
            names = disk.crash(random.Random(seed)).list_dir(DIRECTORY)
            has_begun = f"{7:020d}{LOG}{SWAP}" in names
            assert has_begun or crash_at is not None
            if has_begun:
                assert {f"{7:020d}{suffix}{SWAP}" for suffix in SEGMENT_SUFFIXES} <= set(names)


@pytest.mark.parametrize("has_summary", [False, True])
@pytest.mark.parametrize("offsets", [(), (20, 23), (20, 22, 24)])
def test_a_swap_replaces_the_segments_that_begin_within_its_offsets(offsets, has_summary):
    """To the end that its summary tells; Kafka has none, and its last batch tells."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    batches = [encode_batch([Record(0, 1, None, b"")], base_offset=at) for at in offsets]
    end = 27 if has_summary else max(offsets, default=20) + 1
    files = {f"{base:020d}{suffix}": b"old" for base in (0, 19, *range(20, 30)) for suffix in (LOG, ".index")}
    files |= {f"{20:020d}.txnindex": b"old", f"{20:020d}{LOG}{SWAP}": b"".join(batches)}
    files |= {f"{20:020d}.index{SWAP}": b"new"}
    if has_summary:
        files[f"{20:020d}.summary{SWAP}"] = Summary(20, 27).encode()
    for name, content in files.items():
        disk.write_atomic(DIRECTORY / name, content)
    finish_interrupted(Listing(disk, DIRECTORY))
    left = {base for base in (0, 19, *range(20, 30)) if base < 20 or base >= end} | {20}
    names = {f"{base:020d}{suffix}" for base in left for suffix in (LOG, ".index")}
    names.add(f"{20:020d}{'.summary' if has_summary else '.txnindex'}")  # which says whether there are aborts
    assert set(disk.list_dir(DIRECTORY)) == names
    assert disk.read_bytes(DIRECTORY / f"{20:020d}{LOG}") == b"".join(batches)
    assert disk.read_bytes(DIRECTORY / f"{20:020d}.index") == b"new"


@pytest.mark.extended
@pytest.mark.parametrize("durable", [True, False], ids=["all durable", "the last not durable"])
def test_a_power_cut_among_the_renames_of_a_deletion_loses_nothing(durable):
    """Names come back in any subset: a segment's log may be gone, and its summary, or an earlier log file, be there."""
    for seed in range(150):
        chance = random.Random(seed)
        log = Log(segment_bytes=400)
        log.write("P1 P1a P2 - P1 P1c P2c " * 4)
        log.partition.roll(log.now_ms)
        log.write("- -", sync=durable)
        if not durable:
            log.partition.roll(log.now_ms)
            for segment in log.partition.segments():
                segment.log.sync()
            log.disk.sync_dir(DIRECTORY)
            log.partition.assume_synced()  # as where the operating system counts
        start = chance.randrange(20, log.partition.end_offset)
        log.disk.crash_at = log.disk.steps + chance.randint(1, 40)
        with contextlib.suppress(SimulatedCrash):
            log.partition.deletion.delete_records(start)
        log.disk.crash_at = None
        disk = log.disk.crash(chance)
        after = Log(disk, segment_bytes=400, recovery_point=0)
        assert after.partition.end_offset >= 28
        assert list(verify_directory(disk, DIRECTORY)) == []
