"""What follows damage in a log file: real batches are found, and what a client wrote to look like one is not."""

import itertools
import os
import random
import struct

import pytest
from crc32c import crc32c

from stablelog.batch.filtering import without_records
from stablelog.batch.header import HEADER, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.log.recovery import tail
from stablelog.log.recovery.tail import batches_after_damage, keep_tail, lost_batches
from stablelog.testing.sim_disk import SimDisk
from tests.log.test_damage import path_of
from tests.log.timeline import DIRECTORY, NOW_MS

PATH = DIRECTORY / f"{0:020d}.log"


class CountingFile:
    """A file that counts the bytes that are read from it."""

    def __init__(self, content):
        self.disk = SimDisk()
        self.disk.make_dir(DIRECTORY)
        self.file = self.disk.open(PATH, create=True)
        self.file.append(content)
        self.read_size = 0
        self.calls = []

    @property
    def size(self):
        return self.file.size

    def read(self, position, size):
        found = self.file.read(position, size)
        self.read_size += len(found)
        self.calls.append((position, size))
        return found


def batch(offset, value):
    return encode_batch([Record(0, 1, b"k", value, ())], base_offset=offset, leader_epoch=1)


def offsets(file, position, end_offset):
    return [header.base_offset for _, header in batches_after_damage(file, position, end_offset)]


def test_a_batch_in_a_record_of_the_damaged_batch_is_not_taken_for_what_follows():
    inner = batch(2**31 - 10, b"inner")
    first = batch(0, b"a")
    damaged = bytearray(batch(1, b"xx" + inner))
    damaged[30] ^= 1
    log = first + damaged + b"".join(batch(2 + place, b"v%d" % place) for place in range(50))
    assert offsets(CountingFile(log), len(first), 1) == list(range(2, 52))


@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_where_the_length_is_damaged_a_batch_that_others_follow_is_preferred(bits):
    inner = batch(2**31 - 10, b"inner")
    first = batch(0, b"a")
    damaged = bytearray(batch(1, b"xx" + inner + b"yy"))
    damaged[9] ^= bits
    log = first + damaged + b"".join(batch(2 + place, b"v%d" % place) for place in range(50))
    assert offsets(CountingFile(log), len(first), 1) == list(range(2, 52))


def test_headers_that_a_client_wrote_into_a_value_do_not_make_the_search_long():
    crafted = struct.pack(">qi", 5, 6 << 20) + bytes(4) + b"\2"
    first = batch(0, b"a")
    damaged = bytearray(batch(1, crafted * 1000))
    damaged[9] ^= 1
    log = first + damaged + b"".join(batch(2 + place, os.urandom(1 << 20)) for place in range(8))
    file = CountingFile(log)
    assert offsets(file, len(first), 1) == list(range(2, 10))
    assert file.read_size < 10 * len(log)


@pytest.mark.parametrize("torn", [0, 1, HEADER.size - 1, HEADER.size, 90])
def test_the_last_batch_is_found_whatever_a_crash_left_behind_it(torn):
    damaged = bytearray(batch(0, b"a"))
    damaged[9] ^= 1
    log = bytes(damaged) + batch(1, b"b" * 100) + batch(2, b"c" * 100)[:torn]
    assert offsets(CountingFile(log), 0, 0) == [1]


def test_a_file_is_read_from_its_beginning_batch_by_batch():
    log = b"".join(batch(place, b"v" * 1000) for place in range(1000))
    file = CountingFile(log)
    assert offsets(file, -1, 0) == list(range(1000))
    assert file.read_size < 2 * len(log)


# -- against a model ---------------------------------------------------------------------------------------------------


def damaged_log(chance):
    """A log file in which some batches are damaged: (content, [(position, offset, whether it is whole)])."""
    content, rows, offset = b"", [], chance.randint(0, 5)
    for _ in range(chance.randint(2, 12)):
        one = bytearray(batch(offset, chance.randbytes(chance.choice([1, 30, 200, 900]))))
        is_whole = chance.random() < 0.6
        if not is_whole:
            how = chance.choice(["bit", "zeros", "length", "shorter"])
            if how == "bit":
                one[chance.randrange(16, len(one))] ^= 1 << chance.randrange(8)
            elif how == "zeros":
                one = bytearray(len(one))
            elif how == "length":
                one[chance.randrange(8, 12)] ^= 1 << chance.randrange(8)
            else:
                del one[chance.randrange(1, len(one) - 1) :]
        rows.append((len(content), offset, is_whole))
        content += bytes(one)
        offset += chance.choice([1, 1, 1, 4])
    return content, rows


@pytest.mark.parametrize("seed", range(150))
def test_the_whole_batches_behind_damage_are_found_and_nothing_else(seed, monkeypatch):
    """One that neither a batch nor the file's end follows may be passed over: a client may have written it."""
    chance = random.Random(seed)
    monkeypatch.setattr(tail, "SCAN_SIZE", chance.choice([HEADER.size, HEADER.size + 1, 100, 500, 4 << 20]))
    content, rows = damaged_log(chance)
    file = CountingFile(content)
    followed = {
        row[:2] for row, behind in zip(rows, [*rows[1:], (0, 0, True)], strict=True) if row[2] and behind[2]
    }

    def check(found, wanted):
        wanted = [row[:2] for row in wanted if row[2]]
        assert bool(found) == bool(wanted)
        assert set(found) <= set(wanted)
        assert found == sorted(found)
        assert set(found) >= followed & set(wanted)

    def places(found):
        return [(at, header.base_offset) for at, header in found]

    for place, (position, offset, is_whole) in enumerate(rows):
        if not is_whole:
            check(places(batches_after_damage(file, position, offset)), rows[place + 1 :])
            check(places(lost_batches(file, position, offset)), rows[place + 1 :])
        elif all(row[2] for row in rows[place + 1 :]):  # refused for another reason than its bytes
            check(places(lost_batches(file, position, offset)), rows[place:])
    check(places(batches_after_damage(file, -1, 0)), rows)
    assert list(lost_batches(file, -1, 0)) == list(batches_after_damage(file, -1, 0))
    assert offsets(file, -1, rows[-1][1] + 1) == []


def emptied_batch(offset):
    return without_records(read_header(batch(offset, b"")))


def damaged_at(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("last", [b"", batch(8, b"last")], ids=["the last one", "followed"])
def test_batches_in_a_record_of_the_damaged_batch_are_not_taken_for_what_follows(last):
    """They follow each other there. But the damaged batch says how long it is."""
    damaged = damaged_at(batch(1, batch(5, b"inner") + batch(6, b"inner")), 30)
    assert offsets(CountingFile(batch(0, b"a") + damaged + last), len(batch(0, b"a")), 1) == [8] * bool(last)


def test_a_whole_batch_where_the_damaged_one_ends_comes_before_those_that_others_follow():
    """Also behind a damaged batch without records."""
    for damaged in (damaged_at(batch(0, b"a"), 30), damaged_at(emptied_batch(0), 30)):
        content = damaged + batch(1, b"alone") + bytes(70) + batch(2, b"b") + batch(3, b"c")
        assert offsets(CountingFile(content), 0, 0) == [1, 2, 3]


def test_of_batches_at_any_byte_the_first_that_another_or_the_files_end_follows_is_taken():
    alone, behind = batch(1, b"alone"), batch(2, b"b")
    for content, wanted in (
        (bytes(80) + alone + bytes(80) + behind, [2]),
        (bytes(80) + alone + bytes(80) + behind + bytes(60), [2]),  # a torn header follows
        (bytes(80) + alone + bytes(80) + behind + bytes(61), [1, 2]),
        (bytes(80) + alone + behind + bytes(61), [1, 2]),
        (bytes(80) + emptied_batch(1), [1]),
        (bytes(80) + emptied_batch(1) + bytes(61), [1]),
    ):
        assert offsets(CountingFile(content), 0, 0) == wanted


def test_a_batch_is_found_by_a_byte_that_stands_behind_an_equal_one():
    """The byte that tells a batch's format is searched, and a leader epoch in front of it may end in the same."""
    wanted = encode_batch([Record(0, 1, None, b"")], base_offset=3, leader_epoch=2)
    assert offsets(CountingFile(bytes(80) + wanted), 0, 0) == [3]


@pytest.mark.parametrize("first", [batch(1, b"whole"), emptied_batch(1)], ids=["records", "no records"])
def test_a_whole_batch_that_was_refused_is_lost_once(first):
    damaged = damaged_at(batch(2, b"b"), 9)
    for behind, wanted in (
        (b"", []),
        (damaged, []),
        (damaged + batch(3, b"c") + batch(4, b"d"), [3, 4]),
        (batch(2, b"b") + damaged + batch(4, b"d"), [2, 4]),
    ):
        file = CountingFile(batch(0, b"a") + first + behind)
        begin = len(batch(0, b"a"))
        assert [one.base_offset for _, one in lost_batches(file, begin, 1)] == [1, *wanted]
        assert offsets(file, begin, 1) == wanted
    overlapping = CountingFile(batch(5, b"e") + batch(5, b"f"))
    assert [at for at, _ in lost_batches(overlapping, 0, 0)] == [len(batch(5, b"e"))]


# -- what the search may read -------------------------------------------------------------------------------------------


def crafted(offset, size):
    """A header that claims a batch of this size. Its CRC is that of nothing."""
    return struct.pack(">qiibI", offset, size - 12, 0, 2, 0) + bytes(40)


@pytest.mark.parametrize("seed", range(60))
def test_the_crc_of_large_batches_is_read_only_where_one_follows_and_within_a_budget(seed, monkeypatch):
    chance = random.Random(seed)
    wanted = batch(9, bytes(chance.randint(0, 900)))
    gap, begin = chance.choice([0, 100]), 61
    whole_at = begin + 61 * chance.randint(0, 8) + gap
    rows = []  # each false header claims to end where the whole batch begins, or in the zeros before that
    for at in range(begin, whole_at - gap, 61):
        end = whole_at - (gap if chance.random() < 0.3 else 0)
        rows.append((at, max(end - at, 62)))
    content = bytes(begin) + b"".join(crafted(1, size) for _, size in rows) + bytes(gap) + wanted
    size_max, times = chance.choice([62, 100, 300, len(wanted), 2000]), chance.choice([0, 1, 1, 2])
    monkeypatch.setattr(tail, "LONE_SIZE_MAX", size_max)
    monkeypatch.setattr(tail, "SPARE_READS", times)
    spare, read = times * len(content), []
    for at, size in [*rows, (whole_at, len(wanted))]:
        is_followed = at + size in (whole_at, len(content))
        if size <= size_max:
            read.append((at, size))
        elif is_followed and size <= spare:
            read.append((at, size))
            spare -= size
    is_found = (whole_at, len(wanted)) in read
    file = CountingFile(content)
    assert offsets(file, 0, 0) == [9] * is_found
    # What was found is read once more.
    calls = [call for call in file.calls if call in [*rows, (whole_at, len(wanted))]]
    assert calls == read + [(whole_at, len(wanted))] * is_found


def test_a_lone_batch_of_2_mib_is_searched_for_and_none_that_is_larger():
    small = len(batch(7, bytes(1 << 20))) - (1 << 20)
    for size, is_found in ((2 << 20, True), ((2 << 20) + 1, False)):
        alone = batch(7, bytes(size - small))
        assert len(alone) == size
        assert offsets(CountingFile(bytes(80) + alone + bytes(80)), 0, 0) == [7] * is_found


@pytest.mark.parametrize("size", [0, 1, 60, 61, 100])
def test_what_is_shorter_than_a_batch_holds_none(size):
    found = CountingFile(batch(0, b"a" * 200)[:size])
    assert offsets(found, -1, 0) == offsets(found, 0, 0) == []
    assert list(lost_batches(found, 0, 0)) == []


@pytest.mark.parametrize("copy_size", [1, 7, 4 << 20])
def test_the_bytes_from_a_position_on_are_kept_once_and_beside_those_that_were_kept_before(
    copy_size, monkeypatch
):
    monkeypatch.setattr(tail, "COPY_SIZE", copy_size)
    disk = CountingFile(bytes(range(50))).disk

    def copy_of_tail(position):
        (cut,) = keep_tail(disk, PATH, position, 7, "why")
        assert (cut.path, cut.position, cut.offset, cut.size, cut.damage) == (
            PATH,
            position,
            7,
            50 - position,
            "why",
        )
        return cut.kept

    assert copy_of_tail(20) == PATH.with_suffix(".cut")
    assert disk.read_bytes(PATH.with_suffix(".cut")) == bytes(range(20, 50))
    assert copy_of_tail(20) == PATH.with_suffix(".cut"), "it is there"
    disk.damage(PATH.with_suffix(".cut"), bytes(range(20, 33)))
    assert copy_of_tail(20) == PATH.with_suffix(".cut"), "a crash has cut the copy short"
    assert disk.read_bytes(PATH.with_suffix(".cut")) == bytes(range(20, 50))
    assert copy_of_tail(19).name == f"{0:020d}.cut.1", "these are other bytes"
    assert copy_of_tail(21).name == f"{0:020d}.cut.2", "and these"
    assert copy_of_tail(0).name == f"{0:020d}.cut.3"
    assert disk.read_bytes(PATH.with_suffix(".cut.3")) == bytes(range(50))
    kept = {path.name: disk.read_bytes(path) for path in disk.files()}
    assert kept[f"{0:020d}.cut.1"] == bytes(range(19, 50))
    assert kept[f"{0:020d}.cut.2"] == bytes(range(21, 50))
    for seed in range(10):
        left = disk.crash(random.Random(seed))
        assert {path.name: left.read_bytes(path) for path in left.files() if ".cut" in path.name} == {
            name: content for name, content in kept.items() if ".cut" in name
        }
    disk.damage(PATH, b"")
    assert keep_tail(disk, PATH, 0, 7, "why") == []


@pytest.mark.parametrize("copy_size", [1, 7, 4 << 20])
@pytest.mark.parametrize("at", [0, 6, 7, 29])
def test_a_file_that_differs_in_any_byte_is_no_copy(copy_size, at, monkeypatch):
    monkeypatch.setattr(tail, "COPY_SIZE", copy_size)
    disk = CountingFile(bytes(range(50))).disk
    other = damaged_at(bytes(range(20, 50)), at)
    disk.write_atomic(PATH.with_suffix(".cut"), other)
    (cut,) = keep_tail(disk, PATH, 20, 7, "why")
    assert cut.kept.name == f"{0:020d}.cut.1"
    assert disk.read_bytes(PATH.with_suffix(".cut")) == other


def test_behind_damage_only_what_may_stand_there_is_taken_for_a_batch():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base_offset, delta, attributes, is_found in (
        (7, 0, 0, True),
        (6, 0, 0, False),  # before the end of what is whole
        (7 + 2**31 - 1, 0, 0, True),
        (7 + 2**31, 0, 0, False),
        (7, -1, 0, False),
        (7, 3, 0, True),
        (7, 0, 0x7F, True),
        (7, 0, 0x80, False),
    ):
        batch = bytearray(encode_batch([Record(0, NOW_MS, None, b"x")], base_offset=base_offset))
        batch[21:23], batch[23:27] = attributes.to_bytes(2, "big"), delta.to_bytes(4, "big", signed=True)
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        disk.write_atomic(path_of(0), bytes(80) + batch)
        found = [position for position, _ in tail.batches_after_damage(disk.open(path_of(0)), 0, 7)]
        assert found == [80] * is_found, (base_offset, delta, attributes)


def test_a_search_in_pieces_of_any_size_finds_the_same_batches(monkeypatch):
    batches = [encode_batch([Record(0, NOW_MS, None, bytes(at))], base_offset=at) for at in range(4)]
    content = b"\x02".join([b"damaged" * 11, batches[0] + batches[1], batches[2] + batches[3]])
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(path_of(0), content)
    wanted = [(content.index(batch), at) for at, batch in enumerate(batches)]
    for scan_size in (*range(61, 215, 3), 10_000):
        monkeypatch.setattr(tail, "SCAN_SIZE", scan_size)
        found = list(tail.batches_after_damage(disk.open(path_of(0)), 0, 0))
        assert [(position, one.base_offset) for position, one in found] == wanted, scan_size


def test_a_large_batch_is_searched_for_if_another_follows_and_there_is_room_for_its_crc(monkeypatch):
    large = encode_batch([Record(0, NOW_MS, None, bytes(900))], base_offset=4)
    small = encode_batch([Record(0, NOW_MS, None, b"")], base_offset=5)
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for is_followed, (limit, reads) in itertools.product((True, False), ((0, 16), (0, 1), (0, 0), (1, 0))):
        disk.write_atomic(path_of(0), bytes(100) + large + (small if is_followed else bytes(100)))
        monkeypatch.setattr(tail, "LONE_SIZE_MAX", len(large) - 1 + limit)
        monkeypatch.setattr(tail, "SPARE_READS", reads)
        found = [one.base_offset for _, one in tail.batches_after_damage(disk.open(path_of(0)), 0, 0)]
        is_found = bool(limit) or (is_followed and reads > 0)
        assert found == [4] * is_found + [5] * is_followed, (is_followed, limit, reads)
