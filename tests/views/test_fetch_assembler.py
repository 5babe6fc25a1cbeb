"""Batches of transactions on their way to a reader: all of them, at their positions, and no more work than that."""

import io
import random
import re
import struct
from pathlib import Path

import pytest

from stablelog.batch.header import HEADER, PREFIX, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import Corrupt
from stablelog.log.model import Isolation
from stablelog.testing.sim_disk import SimFile
from stablelog.views import (
    commit_order,
    copy_buffers,
    extent_lookup,
    extents,
    fetch_assembler,
    index_format,
    row_file,
)
from stablelog.views.commit_index import CommitIndex
from stablelog.views.copy_buffers import KEPT_COUNT, CopyBuffers
from stablelog.views.extents import EXTENT, LONG_COUNT, SEVERAL, ExtentColumns, Extents
from stablelog.views.verify import verify_view
from tests.views.committed_log import DIRECTORY, Log


def a_log_of_many_writers(seed, **config):
    """Batches of a hundred bytes to thirty thousand, of four writers who commit now and then, and some of nobody."""
    chance = random.Random(seed)
    log = Log(**config)
    for _ in range(300):
        writer = chance.randrange(5)
        if writer == 4:
            log.plain(chance.randrange(1, 4))
        else:
            log.append(writer, chance.randrange(1, 4), size=chance.choice([1, 100, 600, 4_000, 10_000]))
            if chance.random() < 0.1:
                log.end(writer, commit=chance.random() < 0.8)
    for writer in list(log.open_records):
        log.end(writer)
    log.sync()
    return log


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
    whole, damage = fetch_assembler.split(memoryview(data), columns, 0)
    prefixes = [PREFIX.pack(at, len(one) - 12, 7) for at in range(10, 16)]
    assert (whole.prefixes, damage) == (prefixes, None)
    for extent in (0, 1):
        damaged = data.copy()
        struct.pack_into(">i", damaged, extent * size + batch * len(one) + 8, length)
        found, damage = fetch_assembler.split(memoryview(damaged), columns, 0)
        assert isinstance(damage, Corrupt)
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
        found, damage = fetch_assembler.split(data, columns, 0)
        if is_one:
            assert found.ends == [len(one), len(one) + 61, len(data)]
            assert damage is None
        else:
            assert found.ends == []
            assert isinstance(damage, Corrupt)


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


def a_log_of_small_batches(count):
    log = Log()
    for _ in range(count):
        log.append(1, size=700)
    log.end(1)
    log.sync()
    return log


def test_an_answer_stays_as_it_is_until_its_reader_has_let_go_of_it(monkeypatch):
    monkeypatch.setattr(fetch_assembler, "COPY_BUFFERS", CopyBuffers())
    log = a_log_of_small_batches(60)
    starts = [position for position, _ in log.expected()]
    held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED).buffers for start in starts]
    # As a connection holds what the socket has not taken yet.
    parts = [buffers[0][:600] for buffers in held]
    before = [bytes(part) for part in parts]
    del held
    for start in starts:
        assert log.fetched(start, 20_000)[0]
    assert [bytes(part) for part in parts] == before
    assert len(set(before)) == len(before)


def test_the_memory_of_an_answer_is_used_again_once_it_is_gone(monkeypatch):
    monkeypatch.setattr(fetch_assembler, "COPY_BUFFERS", CopyBuffers())
    made = []

    class Made(io.BytesIO):
        def __init__(self):
            super().__init__()
            made.append(len(made))

    monkeypatch.setattr(copy_buffers, "BytesIO", Made)
    log = a_log_of_small_batches(60)
    assert log.read_all(0, 5_000) == log.expected()
    assert len(made) == 1
    start = log.expected()[0][0]
    held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED) for _ in range(2 * KEPT_COUNT)]
    assert len(made) == 2 * KEPT_COUNT
    del held
    for _ in range(3):
        held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED) for _ in range(KEPT_COUNT)]
        del held
    assert len(made) == 2 * KEPT_COUNT


def test_the_memory_of_four_answers_is_kept():
    known = CopyBuffers()
    *four, fifth = (known.take() for _ in range(5))
    for memory in (*four, fifth):
        known.give_back(memory)
    assert [known.take() for _ in range(4)] == four
    assert known.take() not in (*four, fifth)
    four[0].write(b"from the answer before")
    known.give_back(four[0])
    held = four[0].getbuffer()
    assert known.take() is not four[0], "somebody holds a part of it"
    del held
    memory = known.take()
    assert (memory, memory.tell()) == (four[0], 0)


def test_rows_are_found_in_the_file_and_in_memory_and_over_both(tmp_path, monkeypatch):
    monkeypatch.setattr(row_file, "TAIL_SIZE", 10 * EXTENT.size)
    index = CommitIndex(LocalDisk(), tmp_path, 0)
    index.create(None)
    rows = [
        (
            1 << 40 | number,
            2**31 - 1 - number,
            number,
            5 << 33 | number // 5,
            2**31 + number,
            2**32 - 1 - number,
        )
        for number in range(17)
    ]
    for row in rows:
        index.extents.append(EXTENT.pack(*row))
    assert [index.extent(place) for place in range(len(rows))] == rows
    for first in range(len(rows)):
        for end in range(first + 1, len(rows) + 1):
            parts = list(index.extents_between(first, end))
            assert len(parts) == (end - 1) // 5 - first // 5 + 1, "one for each segment"
            assert [
                (*PREFIX.unpack(prefix), length, part.segment, begin, end)
                for part in parts
                for prefix, length, begin, end in zip(*part[1:], strict=True)
            ] == [(*row[:3], row[1], *row[3:]) for row in rows[first:end]]
    index.close()


@pytest.mark.parametrize("leader_epoch", [0, 7, 2**31 - 1, -1])
def test_once_it_is_committed_a_transaction_has_its_positions_and_the_leader_epoch_of_its_marker(
    tmp_path, leader_epoch
):
    extents = Extents(lambda: LocalDisk().open(tmp_path / "spill", create=True))
    extents.add(5 << 33, 2**31, 600, 2)
    extents.add(5 << 33, 2**31 + 600, 700, 3)
    rows, again = (b"".join(extents.rows(1 << 40, leader_epoch)) for _ in range(2))
    assert again == rows
    assert list(EXTENT.iter_unpack(rows)) == [
        (1 << 40, 588, leader_epoch, 5 << 33, 2**31, 2**31 + 600),
        ((1 << 40) + 2, 688, leader_epoch, 5 << 33, 2**31 + 600, 2**31 + 1300),
    ]


@pytest.mark.parametrize("count", [LONG_COUNT - 1, LONG_COUNT, LONG_COUNT + 100])
def test_a_long_transaction_is_read_at_its_positions_from_every_place_in_it(count):
    log = Log(segment_bytes=600_000)
    for at in range(count):
        log.append(1, 1 + at % 3, size=600)
        if at % 500 == 0:
            log.append(2, size=600)
            log.end(2)
    log.append(3)
    log.end(3)
    log.plain(2)
    log.end(1)
    log.append(4, size=600)
    log.end(4)
    log.sync()
    expected = log.expected()
    for _ in range(2):
        assert log.read_all(0, 100_000) == expected
        for start, payload in expected[5::97]:
            assert (start, payload) in log.fetched(start, 2_000)[0]
        assert log.partition.view.transactions(0, 100)[-2].end == expected[-2][0] + 1
        log.reopen()
    assert list(verify_view(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize(("size", "size_max"), [(600, 100_000), (5_000, 1_000_000), (20_000, 1 << 20)])
def test_few_batches_are_looked_up_that_there_is_no_room_for(monkeypatch, size, size_max):
    log = Log()
    for _ in range(20):
        for writer in range(40):
            log.append(writer, size=size)
    for writer in range(40):
        log.end(writer)
    log.sync()
    looked_up = []
    between = CommitIndex.extents_between

    def counted(index, first, end, long=None):
        looked_up.append(end - first)
        return between(index, first, end, long)

    monkeypatch.setattr(CommitIndex, "extents_between", counted)
    handed_out, _ = log.fetched(0, size_max)
    assert len(handed_out) > size_max / size * 0.7
    assert (
        sum(looked_up) <= max(len(handed_out) + 5, extent_lookup.FIRST_AT_ONCE) + extent_lookup.LEAST_AT_ONCE
    )


def test_a_large_answer_takes_few_lookups(monkeypatch):
    log = Log()
    for _ in range(800):
        log.append(1, size=600)
    log.end(1)
    log.sync()
    looked_up = []
    between = CommitIndex.extents_between
    monkeypatch.setattr(
        CommitIndex,
        "extents_between",
        lambda index, first, end, long=None: (
            looked_up.append(end - first) or between(index, first, end, long)
        ),
    )
    assert log.fetched(0)[0] == log.expected()
    assert (sum(looked_up), len(looked_up)) == (800, 3)
    looked_up.clear()
    handed_out, _ = log.fetched(0, 200 * 700)
    assert 190 < len(handed_out) <= sum(looked_up) < 230
    assert len(looked_up) <= 3


class Noted:
    """A segment, and its log file of zeros, that notes what it is asked to read from the disk."""

    def __init__(self):
        self.asked = []

    damaged_batches = ()

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
        gathered.add(log, ExtentColumns(0, prefixes, lengths, list(begins), list(ends)))
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
    monkeypatch.setattr(commit_order, "SEQUENTIAL_READERS_MAX", 3)
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
    found, _ = fetch_assembler.split(memoryview(3 * one), columns, 0)
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
    with pytest.raises(Corrupt, match=f"end before position {position}"):
        log.fetched(position)


def test_the_limits_of_extents_are_those_of_the_document():
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    words = (
        r"A batch of ([\d,]+) bytes or more has an extent of its own",
        r"with at most ([\d,]+) bytes between them",
        r"share an extent of at most ([\d,]+) KiB",
        r"If an entry has ([\d,]+) extents or more",
    )
    told = (re.search(said.replace(" ", r"\s+"), text) for said in words)
    alone, gap, most, long = (int(found[1].replace(",", "")) for found in told)

    def count(*batches):
        one = Extents(lambda: None)
        for position, size in batches:
            one.add(0, position, size, 1)
        return one.count

    assert count((0, alone - 1), (alone - 1, alone - 1)) == 1
    assert count((0, alone - 1), (alone - 1, alone)) == count((0, alone), (alone, alone - 1)) == 2
    assert [count((0, 100), (100 + between, 100)) for between in (gap, gap + 1)] == [1, 2]
    many = [(position, 128) for position in range(0, (most << 10) - 128, 128)]
    assert [count(*many, ((most << 10) - 128, size)) for size in (128, 129)] == [1, 2]
    entry = index_format.Entry(0, long, 0, 0, 1, 1, 0, long - 1, 0)
    assert (entry.is_long, entry._replace(extent_count=long).is_long) == (False, True)


def runs_of(batches):
    """Which batches share an extent, by the rules one by one: (position of the first, end of the last, count)."""
    found = []
    for position, size in batches:
        if found:
            begin, end, count = found[-1]
            is_small = size < extents.ALONE_SIZE and (count > 1 or end - begin < extents.ALONE_SIZE)
            is_near = position <= end + extents.GAP_SIZE_MAX
            if is_small and is_near and position + size <= begin + extents.RUN_SIZE_MAX:
                found[-1] = (begin, position + size, count + 1)
                continue
        found.append((position, position + size, 1))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_batches_share_an_extent_up_to_each_limit(seed):
    chance = random.Random(seed)
    alone, gap, most = extents.ALONE_SIZE, extents.GAP_SIZE_MAX, extents.RUN_SIZE_MAX
    batches, position, begin = [], 0, 0
    for _ in range(300):
        position += chance.choice((0, 0, 1, gap - 1, gap, gap + 1))
        size = chance.choice((100, 200, alone - 1, alone, alone + 1))
        left = begin + most - position  # as if all since `begin` had shared one
        if 70 < left <= alone:
            size = left + chance.choice((-1, 0, 1))
        if left <= 70 or chance.random() < 0.02:
            begin = position
        batches.append((position, size))
        position += size
    one = Extents(lambda: None)
    for position, size in batches:
        one.add(7, position, size, 2)
    rows = [*EXTENT.iter_unpack(b"".join(one.rows(0, 0)))]
    expected = runs_of(batches)
    assert [row[3:] for row in rows] == [(7, begin, end) for begin, end, _ in expected]
    for (_, length, *_), (begin, end, count) in zip(rows, expected, strict=True):
        assert length == (SEVERAL if count > 1 else end - begin - 12)
    assert (one.count, one.record_count) == (len(rows), 2 * len(batches))
