"""The cache of ranges: it is bounded in memory and on the disk, and neither a full disk nor damage is seen by readers."""

import errno
import random
from pathlib import Path

import pytest

from stablelog.broker.tiering.range_cache import INDEX_SIZE_MIN, RangeCache
from stablelog.errors import ObjectMissingError
from stablelog.testing.sim_disk import SimDisk
from stablelog.types import ObjectRange
from tests.broker.tiering.world import warnings
from tests.scale import seeds

DIRECTORY = Path("/data/remote-log-index-cache")


class Fetches:
    """Contents by range, and the ranges that were fetched."""

    def __init__(self):
        self.asked = []

    def content(self, wanted):
        return (b"%d " % wanted.start * wanted.size)[: wanted.size]

    def of(self, wanted):
        def fetch():
            self.asked.append(wanted)
            return self.content(wanted)

        return fetch


def made(disk=None, memory=1000, size=1000):
    cache = RangeCache(disk or SimDisk(), DIRECTORY, memory, size)
    cache.clear()
    return cache


def loaded(cache, wanted, fetches):
    """Load a range, and keep it on the disk."""
    content = cache.load_range(wanted, fetches.of(wanted))
    cache.write_to_disk(wanted, content)
    return content


def ranges(count, size=100):
    return [ObjectRange("a.log", number * size, size) for number in range(count)]


def on_disk(disk):
    return sum(len(disk.read_bytes(DIRECTORY / name)) for name in disk.list_dir(DIRECTORY))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", seeds(20))
def test_both_parts_stay_within_their_bounds_and_return_the_right_bytes(seed):
    chance, disk, fetches = random.Random(seed), SimDisk(), Fetches()
    cache = made(disk, memory=1000, size=2000)
    sizes = {}
    for _ in range(400):
        start = chance.randrange(30)
        wanted = ObjectRange("a.log", start, sizes.setdefault(start, chance.randint(1, 900)))
        found = cache.get(wanted)
        if found is None:
            found = cache.load_range(wanted, fetches.of(wanted))
            for one in cache.put(wanted, found):
                cache.write_to_disk(*one)
            assert cache.get(wanted) is found, "a reader that waits for a range gets it"
        assert found == fetches.content(wanted)
        assert cache.memory_size <= 1000
        assert on_disk(disk) == cache.disk_size <= 2000
    assert len(fetches.asked) < 400


def test_the_range_that_was_used_longest_ago_is_dropped_from_memory():
    cache = made(memory=300)
    one, two, three, four = ranges(4)
    for wanted in (one, two, three):
        cache.put(wanted, bytes(100))
    cache.get(one)
    cache.put(four, bytes(100))
    assert [wanted.start for wanted in (one, two, three, four) if cache.get(wanted) is not None] == [
        0,
        200,
        300,
    ]


def test_a_range_that_was_read_to_its_end_is_dropped_first_and_not_written():
    cache = made(memory=300)
    one, two, three, four, five = ranges(5)
    for wanted in (one, two, three):
        assert cache.put(wanted, bytes(100)) == []
    cache.mark_consumed(three)
    assert cache.put(four, bytes(100)) == []
    assert cache.get(three) is None
    assert cache.put(five, bytes(100)) == [(one, bytes(100))], "it is dropped before its reader has read it"
    # The second load of a range is written, because a third one may follow.
    assert (three, bytes(100)) in cache.put(three, bytes(100))


def test_memory_has_room_for_all_ranges_that_a_read_needs_at_once():
    cache = made(memory=100)
    cache.make_room(300)
    wanted = ranges(3)
    for one in wanted:
        assert cache.put(one, bytes(100)) == []
    assert all(cache.get(one) is not None for one in wanted)
    cache.make_room(10)
    assert all(cache.get(one) is not None for one in wanted)


def test_a_range_that_was_found_to_be_damaged_is_loaded_again():
    fetches, cache = Fetches(), made()
    (wanted,) = ranges(1)
    cache.put(wanted, loaded(cache, wanted, fetches))
    cache.drop(wanted)
    assert cache.get(wanted) is None
    assert (cache.memory_size, cache.disk_size) == (0, 0)
    loaded(cache, wanted, fetches)
    assert fetches.asked == [wanted, wanted]
    cache.drop(ranges(2)[1])


def test_empty_ranges_count_in_memory():
    cache = made(memory=10 * INDEX_SIZE_MIN)
    for number in range(1000):
        cache.put(ObjectRange(f"{number}.indexes", 0, 0), b"")
    assert cache.memory_size == 10 * INDEX_SIZE_MIN


def test_a_range_larger_than_a_part_is_kept_in_memory_only_until_the_next():
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk, memory=50, size=50)
    one, two = ranges(2)
    for wanted in (one, two):
        for other in cache.put(wanted, cache.load_range(wanted, fetches.of(wanted))):
            cache.write_to_disk(*other)
        assert cache.get(wanted) is not None
    assert cache.get(one) is None
    assert on_disk(disk) == 0


def test_a_range_on_the_disk_is_not_fetched_again():
    fetches, cache = Fetches(), made()
    (wanted,) = ranges(1)
    for _ in range(3):
        assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert fetches.asked == [wanted]


@pytest.mark.parametrize("content", [b"", b"x", b"0" * 100, b"0 " * 51])
def test_damage_of_a_file_is_noticed_and_the_range_is_fetched_again(content):
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk)
    (wanted,) = ranges(1)
    loaded(cache, wanted, fetches)
    (name,) = disk.list_dir(DIRECTORY)
    disk.write_unsynced(DIRECTORY / name, content)
    assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert len(fetches.asked) == 2
    assert on_disk(disk) == cache.disk_size == 100


def test_a_file_that_a_user_removed_is_fetched_again():
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk)
    (wanted,) = ranges(1)
    loaded(cache, wanted, fetches)
    disk.remove_dir(DIRECTORY)
    assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert cache.disk_size == 0


def test_a_full_disk_serves_from_memory_and_is_told_once(caplog):
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk)
    disk.capacity = 250
    for wanted in ranges(5):
        assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert on_disk(disk) == cache.disk_size == 200
    (line,) = warnings(caplog)
    assert str(DIRECTORY) in line
    assert fetches.asked == ranges(5)


@pytest.mark.parametrize("call", ["reading", "writing", "removing"])
def test_a_disk_that_fails_is_not_seen_by_readers(call):
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk, size=250)
    for wanted in ranges(3):
        loaded(cache, wanted, fetches)
    calls = []

    def fault(what, _path):
        calls.append(what)
        return errno.EIO if call in what else None

    disk.fault = fault
    for wanted in (*reversed(ranges(3)), *ranges(5)):
        assert loaded(cache, wanted, fetches) == fetches.content(wanted)
    assert any(call in what for what in calls), set(calls)
    assert cache.disk_size <= 250


def test_a_disk_that_accepts_no_directory_is_not_used(caplog):
    disk, fetches = SimDisk(), Fetches()
    disk.fault = lambda _what, _path: errno.EROFS
    cache = made(disk)
    (line,) = warnings(caplog)
    assert f"does not use the directory {DIRECTORY}" in line
    (wanted,) = ranges(1)
    assert loaded(cache, wanted, fetches) == fetches.content(wanted)


def test_a_start_removes_the_files_of_an_earlier_one():
    disk, fetches = SimDisk(), Fetches()
    cache = made(disk)
    for wanted in ranges(3):
        loaded(cache, wanted, fetches)
    assert made(disk).disk_size == on_disk(disk) == 0


def test_an_error_of_the_store_is_raised_and_kept_nowhere():
    disk = SimDisk()
    cache = made(disk)
    (wanted,) = ranges(1)

    def fail():
        raise ObjectMissingError("no object")

    for _ in range(2):
        with pytest.raises(ObjectMissingError):
            cache.load_range(wanted, fail)
    assert on_disk(disk) == 0
