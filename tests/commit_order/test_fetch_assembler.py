"""Batches of transactions on their way to a reader: all of them, at their positions, and no more work than that."""

import random
import struct

import pytest

from stablelog.batch.header import HEADER, PREFIX, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.commit_order import extent_lookup, fetch_assembler, view
from stablelog.commit_order.extents import SEVERAL, ExtentColumns
from stablelog.errors import DamageError
from stablelog.log.model import Isolation
from stablelog.log.search import batches
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.segment import LogProof
from stablelog.testing.sim_disk import SimFile
from tests.commit_order.committed_log import Log, a_log_of_many_writers, a_log_of_small_batches


@pytest.mark.parametrize(("seed", "together"), [(0, 512), (1, 3), (2, 1)])
@pytest.mark.parametrize("size_max", [1, 5_000, 100_000, 1 << 30])
def test_every_record_stands_at_its_position_whatever_the_size_of_batches_and_fetches(
    monkeypatch, seed, size_max, together
):
    monkeypatch.setattr(extent_lookup, "FIRST_AT_ONCE", min(together, 2))
    monkeypatch.setattr(extent_lookup, "LEAST_AT_ONCE", min(together, 16))
    monkeypatch.setattr(extent_lookup, "MOST_AT_ONCE", together)
    log = a_log_of_many_writers(seed, segment_bytes=400_000)
    assert log.read_all(0, size_max) == log.expected()
    positions = [position for position, _ in log.expected()]
    for start in random.Random(seed).sample(positions, 20):
        assert (start, dict(log.expected())[start]) in log.fetched(start, size_max)[0]


@pytest.mark.extended
def test_no_answer_is_larger_than_was_asked_for_but_for_one_batch():
    log = a_log_of_many_writers(5)
    for start, _ in log.expected()[::3]:
        for size_max in (0, 150, 20_000, 31_000):
            read = log.partition.read(start, size_max, Isolation.READ_COMMITTED)
            data = b"".join(read.buffers)
            assert read.size == len(data) > 0
            assert len(data) <= size_max or len(list(headers_in(data))) == 1
            none = log.partition.read(start, size_max, Isolation.READ_COMMITTED, at_least_one=False)
            assert none.size <= size_max


def test_a_batch_fits_that_is_exactly_as_large_as_the_room():
    log = a_log_of_many_writers(5)
    records, headers = log.fetched(0)
    starts, position = [], iter(records)
    for header in headers:
        starts.append(next(position)[0])
        for _ in range(header.last_offset_delta):
            next(position)
    for start, header in zip(starts, headers, strict=True):
        for size_max, end in ((header.size, start + header.last_offset_delta + 1), (header.size - 1, start)):
            read = log.partition.read(start, size_max, Isolation.READ_COMMITTED, at_least_one=False)
            assert (read.start_offset, read.end_offset) == (start, end)


@pytest.mark.parametrize("size", [600, 6_000])
def test_a_batch_that_stands_alone_is_not_looked_at(monkeypatch, size):
    log = Log()
    for _ in range(10):
        for writer in range(3):
            log.append(writer, size=size)
            log.append(writer, size=size)
            log.append(writer)  # small, but nothing small beside it
    for writer in range(3):
        log.end(writer)
    log.sync()
    monkeypatch.setattr(fetch_assembler, "LOOKED_AT", None)
    assert log.read_all(0, 1 << 30) == log.expected()


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, -(2**31), 100, 70])
def test_damage_where_small_batches_stand_side_by_side_is_told(batch, length):
    one = encode_batch(
        [Record(0, 0, None, b"value")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    data, size = bytearray(6 * one), 3 * len(one)
    both = [PREFIX.pack(at, SEVERAL, 7) for at in (10, 13)]
    columns = ExtentColumns(0, both, [SEVERAL] * 2, [0, size], [size, 2 * size])
    whole, damage = fetch_assembler.split_extents(memoryview(data), columns, 0)
    prefixes = [PREFIX.pack(at, len(one) - 12, 7) for at in range(10, 16)]
    assert (whole.prefixes, damage) == (prefixes, None)
    for extent in (0, 1):
        damaged = data.copy()
        struct.pack_into(">i", damaged, extent * size + batch * len(one) + 8, length)
        found, damage = fetch_assembler.split_extents(memoryview(damaged), columns, 0)
        assert isinstance(damage, DamageError)
        assert found.prefixes == prefixes[: extent * 3], "what stands in extents before it is handed out"


def test_a_batch_of_no_records_is_passed_over_and_one_without_a_whole_header_is_told():
    one = encode_batch(
        [Record(0, 0, None, b"value")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    for less, is_one in ((0, True), (1, False)):
        empty = bytearray(one[: HEADER.size])
        struct.pack_into(">i", empty, 8, HEADER.size - 12 - less)
        data = memoryview(one + bytes(empty) + one)
        columns = ExtentColumns(0, [PREFIX.pack(10, SEVERAL, 7)], [SEVERAL], [0], [len(data)])
        found, damage = fetch_assembler.split_extents(data, columns, 0)
        if is_one:
            assert found.ends == [len(one), len(one) + 61, len(data)]
            assert damage is None
        else:
            assert found.ends == []
            assert isinstance(damage, DamageError)


@pytest.mark.parametrize("together", [3, 64])
def test_small_batches_take_little_memory_until_the_reader_has_them(monkeypatch, together):
    monkeypatch.setattr(fetch_assembler, "COPIED_SIZE_MAX", 10_000)
    for name in ("FIRST_AT_ONCE", "LEAST_AT_ONCE", "MOST_AT_ONCE"):
        monkeypatch.setattr(extent_lookup, name, together)
    log = Log()
    for _ in range(200):
        log.append(1, size=500)
    log.end(1)
    log.sync()
    read = log.partition.read(0, 1 << 30, Isolation.READ_COMMITTED)
    assert 9_000 < read.size <= 10_000
    assert log.read_all(0, 1 << 30) == log.expected()


class Noted:
    """A segment, and its log file of zeros, that notes what it is asked to read from the disk."""

    def __init__(self):
        self.asked = []

    proof = LogProof()

    @property
    def log(self):
        return self

    def view(self, position, size):
        return memoryview(bytes(position + size))[position:]

    def will_need(self, position, size):
        self.asked.append((position, position + size))


PAGE = fetch_assembler.PAGE_SIZE


@pytest.mark.parametrize(
    ("extents", "room", "asked"),
    [
        ([(0, 5000), (5000, 10_000)], 99_999, [(0, 10_000)]),
        ([(7, 5000), (5000 + PAGE - 1, 20_000)], 99_999, [(7, 20_000)]),
        ([(7, 5000), (5000 + PAGE, 20_000)], 99_999, [(7, 5000), (5000 + PAGE, 20_000)]),
        ([(7000, 12_000), (0, 5000), (5001, 10_001)], 99_999, [(7000, 12_000), (0, 10_001)]),
        ([(0, 5000), (90_000, 95_000), (180_000, 185_000)], 10_001, 3),
        ([(0, 5000), (90_000, 95_000), (180_000, 185_000)], 10_000, 2),
        ([(0, 5000), (90_000, 95_000), (180_000, 185_000)], 5001, 2),
        ([(0, 5000), (90_000, 95_000), (180_000, 185_000)], 5000, 1),
    ],
)
def test_of_the_disk_is_asked_what_there_is_room_for_in_pages_that_lie_apart(extents, room, asked):
    begins, ends = zip(*extents, strict=True)
    lengths = [end - begin - 12 for begin, end in extents]
    prefixes = [PREFIX.pack(at, length, 0) for at, length in enumerate(lengths)]
    for goes_on in (False, True):
        log = Noted()
        gathered = fetch_assembler.FetchAssembler(0, room, at_least_one=True, reads_on=goes_on)
        gathered.add_batches(log, ExtentColumns(0, prefixes, lengths, list(begins), list(ends)))
        expected = extents[:asked] if isinstance(asked, int) else asked
        assert log.asked == ([] if goes_on else expected)


def test_of_a_transaction_among_a_hundred_only_its_own_bytes_are_asked_of_the_disk(monkeypatch):
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda _self, position, size: asked.append((position, size)))
    log = Log()
    for _ in range(10):
        for writer in range(100):
            log.append(writer, size=5_000)
    for writer in range(100):
        log.end(writer)
    log.sync()
    start = log.expected()[500][0]
    read = log.partition.read(start, 10 * 5_100, Isolation.READ_COMMITTED)
    assert read.size >= 9 * 5_000
    assert read.size <= sum(size for _, size in asked) <= 1.2 * read.size


def test_for_a_reader_who_goes_on_the_system_reads_ahead(monkeypatch):
    log = a_log_of_many_writers(7)
    end = log.partition.read(0, 20_000, Isolation.READ_COMMITTED).end_offset
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda _self, position, size: asked.append((position, size)))
    assert log.fetched(end, 20_000)[0]
    assert asked == []
    assert log.fetched(log.expected()[0][0], 20_000)[0]
    assert asked != []


def test_so_many_readers_are_known_and_no_more(monkeypatch):
    monkeypatch.setattr(view, "SEQUENTIAL_READERS_MAX", 3)
    log = a_log_of_small_batches(60)
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda _self, position, size: asked.append((position, size)))
    starts = [position for position, _ in log.expected()][1::7][:5]
    ends = [log.partition.read(start, 1, Isolation.READ_COMMITTED).end_offset for start in starts]
    for end, is_known in ((ends[4], True), (ends[0], False), (ends[1], False), (ends[3], False)):
        asked.clear()
        log.fetched(end, 1)
        assert (asked == []) == is_known


def test_who_begins_at_the_beginning_is_taken_to_read_on(monkeypatch):
    log = a_log_of_many_writers(7)
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda _self, position, size: asked.append((position, size)))
    assert log.fetched(log.partition.visible_start(Isolation.READ_COMMITTED), 20_000)[0]
    assert asked == []


def test_what_lies_side_by_side_is_asked_of_the_disk_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda _self, position, size: asked.append((position, size)))
    log = a_log_of_small_batches(100)
    read = log.partition.read(log.expected()[3][0], 1 << 30, Isolation.READ_COMMITTED)
    assert len(asked) < 10
    assert sum(size for _, size in asked) == read.size


def test_an_extent_of_one_batch_is_handed_on_as_it_is():
    one = encode_batch(
        [Record(0, 0, None, b"value")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    length = len(one) - 12
    prefixes = [PREFIX.pack(10, length, 7), PREFIX.pack(11, SEVERAL, 7)]
    columns = ExtentColumns(0, prefixes, [length, SEVERAL], [0, len(one)], [len(one), 3 * len(one)])
    found, _ = fetch_assembler.split_extents(memoryview(3 * one), columns, 0)
    assert found.lengths == [length] * 3
    assert found.begins == [0, len(one), 2 * len(one)]
    assert found.ends == [len(one), 2 * len(one), 3 * len(one)]


def test_a_position_that_no_batch_reaches_is_told_and_not_passed_over():
    """A batch says how many records it has, and damage can make it say less."""
    log = Log()
    for _ in range(3):
        log.append(1, count=2)
    log.end(1)
    log.append(2)
    log.end(2)
    log.sync()
    position = log.expected()[5][0]
    segment = log.partition.segments()[0]
    path = segment.path(".log")
    content = bytearray(log.disk.read_bytes(path))
    at = [at for at, header in headers_in(bytes(content)) if header.producer_id == 1][2]
    struct.pack_into(">i", content, at + 23, 0)
    log.disk.damage(path, bytes(content))
    with pytest.raises(DamageError, match=f"end before position {position}"):
        log.fetched(position)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_read_in_the_middle_passes_over_little_of_what_stands_before_it(monkeypatch, transactional):
    log = Log()
    for _ in range(600):
        if transactional:
            log.append(1, size=300)
        else:
            log.plain()
    if transactional:
        log.end(1)
    log.sync()
    if not transactional:
        log.reopen(clean=False)  # so that all of it is one run
    looked_at = []

    class Counted:
        """A struct that tells where it was asked to unpack."""

        def __init__(self, of):
            self.of, self.size = of, of.size

        def unpack_from(self, buffer, position=0):
            looked_at.append(position)
            return self.of.unpack_from(buffer, position)

    monkeypatch.setattr(fetch_assembler, "LOOKED_AT", Counted(fetch_assembler.LOOKED_AT))
    monkeypatch.setattr(batches, "OFFSETS", Counted(batches.OFFSETS))
    position, payload = log.expected()[590]
    assert (position, payload) in log.fetched(position, size_max=1)[0]
    assert 0 < len(looked_at) < 140


@pytest.mark.parametrize("is_last", [True, False])
def test_a_run_that_ends_before_a_position_of_its_own_is_told(is_last):
    """A batch says how many records it has, and damage can make it say less."""
    log = Log()
    log.plain(2)
    log.plain(2)
    if not is_last:
        log.append(1)
    log.sync()
    segment = log.partition.segments()[0]
    content = bytearray(log.disk.read_bytes(segment.path(".log")))
    at = [at for at, _ in headers_in(bytes(content))][1]
    content[at + 23 : at + 27] = (0).to_bytes(4, "big")
    log.disk.damage(segment.path(".log"), bytes(content))
    assert log.fetched(2, 1)[0][0][0] == 2
    with pytest.raises(DamageError, match=r"position 3 is in the batches .* end before this position"):
        log.fetched(3)


@pytest.mark.parametrize("kind", ["alone in their extents", "together in an extent", "outside transactions"])
def test_a_batch_that_the_scrub_has_found_damaged_is_not_handed_out(kind):
    log = Log()
    for _ in range(3):
        if kind == "outside transactions":
            log.plain()
        else:
            log.append(1, size=600 if kind == "alone in their extents" else 0)
    if kind != "outside transactions":
        log.end(1)
    log.sync()
    (segment,) = log.partition.segments()
    batches = [(position, header) for position, header in segment.walk(0) if not header.is_control]
    expected = log.expected()
    assert len(log.partition.view.indexes[0].extents) == (3 if kind == "alone in their extents" else 1)
    for at, (position, header) in enumerate(batches):
        segment.proof.damaged_batches = []
        segment.add_damaged_batch(DamagedBatch(position, header.size, header.base_offset))
        with pytest.raises(DamageError, match=f"batch of offset {header.base_offset}"):
            log.fetched(expected[at][0], 1)
        for behind in expected[at + 1 :]:
            assert log.fetched(behind[0], 1)[0] == [behind]
        if at:
            assert log.fetched(0)[0] == expected[:at], "what stands before it is handed out"
    segment.proof.damaged_batches = []
    assert log.fetched(0)[0] == expected


def test_damage_of_a_batch_harms_no_transaction_that_stands_around_it():
    log = Log()
    for producer in (1, 2, 1, 3):
        log.append(producer)
    for producer in (1, 2, 3):
        log.end(producer)
    log.sync()
    (segment,) = log.partition.segments()
    position, header = list(segment.walk(0))[1]
    assert header.producer_id == 2
    segment.add_damaged_batch(DamagedBatch(position, header.size, header.base_offset))
    first, second, damaged, last = log.expected()
    assert log.fetched(0)[0] == [first, second]
    with pytest.raises(DamageError, match="batch of offset 1"):
        log.fetched(damaged[0])
    assert log.fetched(last[0])[0] == [last]


def test_batches_have_the_leader_epoch_of_their_marker_in_the_view():
    log = Log()
    log.append(1)
    log.append(2, size=5000)
    log.partition.leader_epoch = 3
    log.end(1)
    log.partition.leader_epoch = 4
    log.end(2)
    log.plain()
    log.sync()
    _, headers = log.fetched(0)
    assert [header.leader_epoch for header in headers] == [3, 4, 4]
