import errno
import random
import sys
import threading
from pathlib import Path

import pytest

from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.testing.sim_disk import SimDisk


@pytest.fixture(params=["local", "simulated"])
def disk_and_root(request, tmp_path):
    if request.param == "local":
        return LocalDisk(), tmp_path
    disk = SimDisk()
    disk.make_dir(Path("/root"))
    return disk, Path("/root")


def test_both_disks_keep_the_same_promises(disk_and_root):
    disk, root = disk_and_root
    directory = root / "a" / "b"
    disk.make_dir(directory)
    assert disk.is_dir(directory)
    with pytest.raises(FileNotFoundError):
        disk.open(directory / "x")
    file = disk.open(directory / "x", create=True)
    assert file.append(b"one", memoryview(b"two")) == 0
    assert file.append(b"three") == 6
    assert (file.size, file.read(3, 3), file.read(9, 99)) == (11, b"two", b"ee")
    file.will_need(0, 6)
    file.will_need(6, 1_000)  # more than there is
    view = file.view(6, 5)
    file.append(b"more")
    assert bytes(view) == b"three"
    file.sync()
    file.truncate(3)
    assert (file.size, disk.read_bytes(directory / "x")) == (3, b"one")
    file.close()
    disk.write_atomic(directory / "y", b"first")
    disk.write_atomic(directory / "y", b"second")
    assert disk.list_dir(directory) == ["x", "y"]
    disk.rename(directory / "x", directory / "y")
    assert disk.read_bytes(directory / "y") == b"one"
    disk.remove(directory / "y")
    disk.remove(directory / "y")
    assert disk.list_dir(directory) == []
    disk.open(directory / "z", create=True)
    disk.remove_dir(directory)
    assert not disk.exists(directory)
    assert disk.exists(root / "a")


def test_a_simulated_crash_keeps_what_was_synced_and_may_lose_the_rest():
    lost = kept = torn = 0
    for seed in range(200):
        disk = SimDisk()
        disk.make_dir(Path("/d"))
        file = disk.open(Path("/d/f"), create=True)
        file.append(b"s" * 100)
        file.sync()
        disk.sync_dir(Path("/d"))
        file.append(b"u" * 2000)
        disk.open(Path("/d/new"), create=True)
        after = disk.crash(random.Random(seed))
        content = after.read_bytes(Path("/d/f"))
        assert content[:100] == b"s" * 100
        lost += len(content) == 100
        kept += content[100:] == b"u" * 2000
        torn += content[100:].count(0) > 0
    assert lost
    assert kept
    assert torn


def test_a_simulated_disk_bears_threads_that_work_in_other_directories():
    """As brokers do: partitions are made and recovered by threads."""
    disk, over, failures = SimDisk(), threading.Event(), []

    def make():
        try:
            for number in range(1, 400):
                disk.make_dir(Path(f"/made-{number}"))
                disk.open(Path(f"/made-{number}/x"), create=True)
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        maker = threading.Thread(target=make)
        maker.start()
        while not over.is_set():
            disk.make_dir(Path("/a"))
            disk.open(Path("/a/x"), create=True)
            disk.rename(Path("/a"), Path("/b"))
            disk.sync_dir(Path("/b"))
            disk.remove_dir(Path("/b"))
        maker.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert all(disk.list_dir(Path(f"/made-{number}")) == ["x"] for number in range(1, 400))
    assert not disk.exists(Path("/b/x"))


def test_a_simulated_disk_has_room_for_its_capacity_and_gives_it_back():
    disk = SimDisk()
    disk.make_dir(Path("/d"))
    disk.capacity = 1000
    disk.allocate(Path("/d/reserve"), 400)
    file = disk.open(Path("/d/f"), create=True)
    file.append(b"x" * 600)
    for write in (
        lambda: file.append(b"y"),
        lambda: file.truncate(601),
        lambda: disk.write_atomic(Path("/d/g"), b"y"),
        lambda: disk.write_unsynced(Path("/d/g"), b"y"),
        lambda: disk.allocate(Path("/d/more"), 1),
    ):
        with pytest.raises(DiskError) as raised:
            write()
        assert raised.value.number == errno.ENOSPC
    disk.remove(Path("/d/reserve"))
    assert disk.free_size(Path("/d")) == 400
    disk.write_atomic(Path("/d/g"), b"y" * 300)
    disk.remove(Path("/d/f"))
    assert disk.free_size(Path("/d")) == 100  # as long as it is open, a removed file takes its room
    file.close()
    assert disk.free_size(Path("/d")) == 700


def test_a_simulated_disk_that_fails_late_has_done_what_it_says_has_failed():
    disk = SimDisk()
    disk.make_dir(Path("/d"))
    disk.fails_late = True
    disk.fail_at = disk.steps + 1
    with pytest.raises(DiskError) as raised:
        disk.write_atomic(Path("/d/f"), b"x")
    assert not raised.value.undone
    assert disk.read_bytes(Path("/d/f")) == b"x"


def test_after_a_crash_directories_too_are_where_they_were_or_where_they_went():
    found = set()
    for seed in range(100):
        disk = SimDisk()
        disk.make_dir(Path("/d/a"))
        disk.write_atomic(Path("/d/a/f"), b"x")
        disk.rename(Path("/d/a"), Path("/d/b"))
        after = disk.crash(random.Random(seed))
        names = after.list_dir(Path("/d"))
        assert [after.list_dir(Path("/d") / name) for name in names] == [["f"]]
        found.add(*names)
        disk.sync_dir(Path("/d"))
        assert disk.crash(random.Random(seed)).list_dir(Path("/d")) == ["b"]
        disk.remove_dir(Path("/d/b"))
        found.add(tuple(disk.crash(random.Random(seed)).list_dir(Path("/d"))))
    assert found == {"a", "b", (), ("b",)}


def test_what_was_written_unsynced_may_be_any_part_of_it_after_a_crash():
    found = set()
    for seed in range(100):
        disk = SimDisk()
        disk.make_dir(Path("/d"))
        disk.write_atomic(Path("/d/f"), b"old")
        disk.write_unsynced(Path("/d/f"), b"new")
        found.add(disk.crash(random.Random(seed)).read_bytes(Path("/d/f")))
    assert {b"old", b"new", b""} <= found


def test_a_private_file_is_readable_by_its_owner_only(tmp_path):
    disk, path = LocalDisk(), tmp_path / "users"
    disk.write_atomic(path, b"open")
    assert path.stat().st_mode & 0o777 != 0o600
    (tmp_path / "users.tmp").write_bytes(b"left by a crash")
    disk.write_atomic(path, b"secret", is_private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"secret"
