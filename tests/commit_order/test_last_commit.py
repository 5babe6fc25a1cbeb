"""The last commit of a partition that is not open, against the view of the same log when it is opened."""

import random

import pytest

from stablelog.batch.header import headers_in
from stablelog.commit_order import last_commit
from stablelog.commit_order.last_commit import last_commit_sequence
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.log.files.names import INDEX, LOG
from stablelog.testing.sim_disk import SimDisk, SimFile
from tests.commit_order.committed_log import DIRECTORY, Files, Log
from tests.scale import seeds


def path_of(base, suffix):
    return DIRECTORY / f"{base:020d}{suffix}"


def grown(chance, steps=60):
    """A log of several segments: of commits, aborts, open transactions and records outside any."""
    log = Log(
        segment_bytes=chance.choice((600, 3000, 1 << 20)), index_interval_bytes=chance.choice((1, 200, 4096))
    )
    for _ in range(steps):
        producer = chance.randint(1, 4)
        action = chance.random()
        if action < 0.4:
            log.append(producer, count=chance.randint(1, 3), size=chance.randint(1, 80))
        elif action < 0.5:
            log.plain(chance.randint(1, 3))
        elif action < 0.8 and producer in log.open_records:
            log.end(producer, commit=chance.random() < 0.6)
        elif action < 0.83:
            log.partition.roll(log.now_ms)
        elif action < 0.9:
            log.sync()
        elif action < 0.92:
            log.partition.log.take_snapshot()
    return log


@pytest.fixture(params=[64, 1000, 64 << 10], ids=["short steps", "longer steps", "steps as they are"])
def step_size(request, monkeypatch):
    monkeypatch.setattr(last_commit, "STEP_SIZE", request.param)


@pytest.mark.sampled(40)
@pytest.mark.usefixtures("step_size")
@pytest.mark.parametrize("seed", seeds(30))
def test_it_is_what_the_view_says_once_the_partition_is_open(seed):
    chance = random.Random(seed)
    log = grown(chance)
    if seed % 3 == 0:
        log.sync()
        log.partition.close()
    elif seed % 3 == 1:
        log.sync()
    else:
        log.disk = log.disk.crash(chance)
    read = last_commit_sequence(log.disk, DIRECTORY)
    log.partition = log.open(clean=seed % 3 == 0)
    kept = log.partition.view.latest_sequence
    if seed % 3 == 2:  # recovery may cut what no sync covered
        assert kept <= read <= log.commit_sequence
    else:
        assert read == kept == (log.commit_sequence or -1)
    assert last_commit_sequence(log.disk, DIRECTORY) == kept


@pytest.mark.sampled(36)
@pytest.mark.usefixtures("step_size")
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("damage", ["lost", "zeros", "of another log", "bits"])
def test_an_offset_index_that_is_not_that_of_the_log_hides_no_commit(seed, damage):
    chance = random.Random(seed)
    log = grown(chance)
    log.sync()
    log.partition.close()
    expected = log.partition.view.latest_sequence
    for segment in log.partition.segments():
        path = segment.path(INDEX)
        if not log.disk.exists(path):
            assert segment is log.partition.segments()[-1], "it is the index of a log that is empty"
            continue
        content = bytearray(log.disk.read_bytes(path))
        if damage == "lost":
            log.disk.lose(path)
        elif damage == "zeros":
            log.disk.damage(path, bytes(len(content) + 80))
        elif damage == "of another log":
            log.disk.damage(
                path, b"".join((at * 3).to_bytes(4) + (at * 37).to_bytes(4) for at in range(1, 40))
            )
        else:
            for _ in range(len(content) // 20):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            log.disk.damage(path, bytes(content))
    assert last_commit_sequence(log.disk, DIRECTORY) == expected


def test_a_damaged_log_is_read_as_far_as_it_can_be():
    log = Log()
    ends = []
    for _ in range(6):
        log.append(1)
        log.end(1)
        ends.append(log.partition.size)
    log.sync()
    content = log.disk.read_bytes(path_of(0, LOG))
    # The last marker is torn; or there is rot in it, in a batch before it, or where a batch begins.
    for damaged, expected in (
        (content[:-1], 5),
        (content[:-1] + b"?", 5),
        (content[: ends[4] - 1] + b"?" + content[ends[4] :], 6),
        (content[: ends[3] + 8] + b"????" + content[ends[3] + 12 :], 4),
        (b"", -1),
    ):
        log.disk.damage(path_of(0, LOG), damaged)
        assert last_commit_sequence(log.disk, DIRECTORY) == expected


def test_an_offset_index_may_reach_into_a_batch_that_is_torn(monkeypatch):
    monkeypatch.setattr(last_commit, "STEP_SIZE", 1)
    log = Log(index_interval_bytes=1)
    for _ in range(4):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.close()
    content = log.disk.read_bytes(path_of(0, LOG))
    positions = [position for position, _ in headers_in(content)]
    for size in (*range(positions[-1] + 1, len(content)), positions[-1]):
        log.disk.damage(path_of(0, LOG), content[:size])
        assert last_commit_sequence(log.disk, DIRECTORY) == 3


def test_a_partition_without_commits_or_files_has_none():
    log = Log()
    assert last_commit_sequence(log.disk, DIRECTORY) == -1
    log.plain(3)
    log.append(1)
    log.end(1, commit=False)
    log.sync()
    assert last_commit_sequence(log.disk, DIRECTORY) == -1
    log.disk.lose(path_of(0, LOG))
    assert last_commit_sequence(log.disk, DIRECTORY) == -1
    with pytest.raises(FileNotFoundError):
        last_commit_sequence(SimDisk(), DIRECTORY)


def test_a_disk_that_fails_is_told():
    log = Log()
    log.disk.fault = lambda what, _path: 5 if what == "listing" else None
    with pytest.raises(DiskError):
        last_commit_sequence(log.disk, DIRECTORY)


@pytest.mark.extended
def test_only_the_end_of_a_long_log_is_read(monkeypatch):
    """After an orderly stop the offset index reaches to the end; behind sealed segments their indexes say it."""
    log = Log(index_interval_bytes=100)
    for number in range(3000):
        log.append(1, size=200)
        log.end(1)
        if number == 1500:
            log.sync()
            log.partition.roll(log.now_ms)
    log.sync()
    log.partition.close()
    assert log.partition.size > 1_000_000
    reads = []
    log.disk.fault = lambda what, path: (
        reads.append(path) if what == "reading" and path.suffix == LOG else None
    )
    assert last_commit_sequence(log.disk, DIRECTORY) == 3000
    assert 0 < len(reads) < 400  # of 64 KiB, and of each marker in them


@pytest.mark.extended
@pytest.mark.parametrize("behind", [0, 40_000, 150_000])
def test_as_much_is_read_as_lies_behind_the_last_commit_and_no_file_stays_open(monkeypatch, behind):
    """In steps of which each one back is twice as long as the one before it."""
    log = Log(index_interval_bytes=100)
    for _ in range(1500):
        log.append(1, size=200)
        log.end(1)
    for _ in range(behind // 300):
        log.append(1, size=200)
    log.sync()
    log.partition.close()
    content, sizes, files = log.disk.read_bytes(path_of(0, LOG)), [], Files(monkeypatch)
    size = len(content)
    for name in ("read", "view"):
        method = getattr(SimFile, name)

        def noted(file, position, size, method=method):
            found = method(file, position, size)
            sizes.append(len(found) if files.paths[file].suffix == LOG else 0)
            return found

        monkeypatch.setattr(SimFile, name, noted)
    assert last_commit_sequence(log.disk, DIRECTORY) == 1500
    behind_it = size - max(at for at, header in headers_in(content) if header.is_control) - 80
    assert sum(sizes) <= 4 * behind_it + 20_000
    assert files.paths
    assert not files.open


def test_behind_sealed_segments_no_log_is_read():
    log = Log()
    for _ in range(5):
        log.append(1)
        log.end(1)
    log.partition.roll(log.now_ms)
    log.sync()
    log.partition.close()
    log.disk.fault = lambda what, path: (
        pytest.fail(str(path)) if (what, path) == ("reading", path_of(0, LOG)) else None
    )
    assert last_commit_sequence(log.disk, DIRECTORY) == 5


def test_it_is_read_from_a_real_disk(tmp_path):
    log = Log()
    for _ in range(5):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.close()
    for path in log.disk.files(DIRECTORY):
        (tmp_path / path.name).write_bytes(log.disk.read_bytes(path))
    assert last_commit_sequence(LocalDisk(read_only=True), tmp_path) == 5


def test_of_the_commits_of_the_growing_segment_it_is_the_last():
    log = Log()
    for _ in range(3):
        log.append(1)
        log.end(1)
    log.append(2)
    log.sync()
    assert last_commit_sequence(log.disk, DIRECTORY) == 3
