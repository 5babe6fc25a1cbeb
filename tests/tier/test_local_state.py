"""The files in which a partition's directory records its remote tier."""

import uuid

import pytest

from stablelog.errors import DamageError, DiskError, UnknownFormatError
from stablelog.log.files.names import REMOTE_LOG_START_FILE, REMOTE_MANIFEST_FILE, REMOTE_PART_PREFIX
from stablelog.testing.sim_disk import SimDisk
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, encode_manifest, encode_part
from tests.log.timeline import DIRECTORY
from tests.tier.test_manifest import NOW_MS, segment

SEGMENTS = segment(0), segment(1)
PART_IDS = uuid.UUID(int=1), uuid.UUID(int=2)
PARTS = [encode_part(part_id, [one], NOW_MS) for part_id, one in zip(PART_IDS, SEGMENTS, strict=True)]


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    return disk


@pytest.fixture
def state(disk):
    return LocalState(disk, DIRECTORY)


def manifest(*numbers, log_start=0):
    """A manifest whose segments are all in parts."""
    return Manifest(
        "cluster",
        log_start,
        tuple(SEGMENTS[number] for number in numbers),
        parts=tuple(PARTS[number][0] for number in numbers),
    )


def record(state, *numbers, new=(), **changes):
    """Record a manifest with these parts. `new` are the numbers of those that are not recorded yet."""
    recorded = manifest(*numbers, **changes)
    contents = {PART_IDS[number]: PARTS[number][1] for number in new}
    state.write_manifest(encode_manifest(recorded, NOW_MS), recorded.parts, contents)
    return recorded


def names(disk):
    return {name for name in disk.list_dir(DIRECTORY) if name.startswith(REMOTE_PART_PREFIX)}


def part_name(number):
    return f"{REMOTE_PART_PREFIX}{PART_IDS[number].hex}"


def test_a_directory_without_remote_tier_has_no_manifest_and_begins_at_0(state):
    assert state.read_manifest() is None
    assert state.read_start() == 0
    assert state.log_start(31) == 31


def test_a_manifest_is_read_as_it_was_recorded_with_its_parts(state):
    assert record(state, 0, 1, new=(0, 1)) == state.read_manifest()


def test_parts_that_the_manifest_does_not_name_are_removed_and_the_others_stay(state, disk):
    record(state, 0, new=(0,))
    assert names(disk) == {part_name(0)}
    assert record(state, 0, 1, new=(1,)) == state.read_manifest()
    record(state, 1)
    assert names(disk) == {part_name(1)}


@pytest.mark.parametrize("step", range(1, 5))
def test_a_write_that_fails_leaves_the_manifest_before_or_the_new_one(state, disk, step):
    before, after = record(state, 0, new=(0,)), manifest(1)
    disk.fail_at = disk.steps + step
    with pytest.raises(DiskError):
        for _ in range(10):
            record(state, 1, new=(1,))
    assert state.read_manifest() in (before, after)


def test_a_manifest_whose_part_is_missing_is_damaged_and_says_which(state, disk):
    record(state, 0, new=(0,))
    disk.remove(DIRECTORY / part_name(0))
    path = DIRECTORY / REMOTE_MANIFEST_FILE
    with pytest.raises(
        DamageError, match=f"^{path} is damaged: the manifest's part {part_name(0)} is missing"
    ):
        state.read_manifest()


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_part_is_refused_by_the_manifest_and_its_file(state, disk, number):
    record(state, 0, 1, new=(0, 1))
    disk.write_atomic(DIRECTORY / part_name(number), PARTS[number][1][:-1])
    path = DIRECTORY / REMOTE_MANIFEST_FILE
    with pytest.raises(
        DamageError, match=f"^{path} is damaged: the manifest's part {part_name(number)} is damaged: "
    ):
        state.read_manifest()


def test_a_part_of_another_manifest_is_refused(state, disk):
    record(state, 0, new=(0,))
    disk.write_atomic(DIRECTORY / part_name(0), PARTS[1][1])
    with pytest.raises(DamageError, match=f"the manifest's part {part_name(0)} is damaged: "):
        state.read_manifest()


def test_a_damaged_manifest_is_refused_by_its_path(state, disk):
    path = DIRECTORY / REMOTE_MANIFEST_FILE
    disk.write_atomic(path, b"no manifest")
    with pytest.raises(DamageError, match=f"^{path} is damaged: "):
        state.read_manifest()


def test_a_log_start_is_read_as_it_was_recorded(state):
    state.write_start(12)
    assert state.read_start() == 12


def test_a_log_start_of_a_later_release_is_refused_by_its_path(state, disk):
    state.write_start(12)
    path = DIRECTORY / REMOTE_LOG_START_FILE
    disk.write_atomic(path, disk.read_bytes(path).replace(b"1", b"9", 1))
    with pytest.raises(UnknownFormatError, match=f"^{path}: "):
        state.read_start()


@pytest.mark.parametrize(
    ("published", "recorded", "local", "start"),
    [(20, 0, 100, 20), (20, 50, 100, 50), (50, 20, 100, 50), (20, 150, 100, 100), (120, 0, 100, 100)],
    ids=[
        "as published",
        "moved since",
        "published later",
        "recorded past the local start",
        "published past it",
    ],
)
def test_the_log_begins_at_the_later_of_both_starts_but_not_after_the_local_log(
    state, published, recorded, local, start
):
    record(state, 0, new=(0,), log_start=published)
    if recorded:
        state.write_start(recorded)
    assert state.log_start(local) == start
