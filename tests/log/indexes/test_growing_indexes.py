"""The indexes of the growing segment: complete in memory, and in their files as far as these could be written."""

import errno
from dataclasses import replace

import pytest
from crc32c import crc32c

from stablelog.batch.header import read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DiskError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import INDEX, INDEX_SUFFIXES, TIMEINDEX, TXNINDEX, SegmentName
from stablelog.log.indexes.growing_indexes import GrowingIndexes
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

BASE = 100
path_of = SegmentName.of(DIRECTORY, BASE).path


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    return disk


@pytest.fixture
def indexes(disk):
    return GrowingIndexes(disk, path_of, BASE)


def add(indexes, number, *, is_aborted=False):
    """Add the entries of a batch of 10 offsets."""
    last = BASE + 10 * number + 9
    indexes.offsets.append(last, 1000 * number + 1)
    indexes.times.append_if_later(5000 + number, last)
    if is_aborted:
        indexes.txns.append(AbortedTxn(1, BASE, last, BASE))
        indexes.write_new_aborted()


def held(disk, suffix):
    return disk.read_bytes(path_of(suffix)) if disk.exists(path_of(suffix)) else None


def known(indexes):
    return [bytes(one) for one in indexes.contents()]


def test_entries_are_written_on_demand_and_only_those_that_the_files_lack(disk, indexes):
    add(indexes, 1)
    assert not disk.list_dir(DIRECTORY)
    indexes.write_files()
    add(indexes, 2)
    indexes.write_files()
    assert [held(disk, suffix) for suffix in INDEX_SUFFIXES[:2]] == known(indexes)[:2]


def test_the_transaction_index_has_a_file_only_after_an_abort_and_then_at_once(disk, indexes):
    add(indexes, 1)
    indexes.write_files()
    assert held(disk, TXNINDEX) is None
    add(indexes, 2, is_aborted=True)
    assert held(disk, TXNINDEX) == known(indexes)[2]


def test_files_that_were_written_are_to_be_synced_once(disk, indexes):
    add(indexes, 1, is_aborted=True)
    indexes.write_files()
    assert len(indexes.take_dirty_files()) == 3
    assert indexes.take_dirty_files() == []
    indexes.write_files()
    assert indexes.take_dirty_files() == [], "nothing was added"
    add(indexes, 2)
    indexes.write_files()
    assert len(indexes.take_dirty_files()) == 2


def test_new_names_are_known_until_the_directory_is_synced(indexes):
    assert not indexes.names_changed
    add(indexes, 1)
    indexes.write_files()
    assert indexes.names_changed
    indexes.names_changed = False
    add(indexes, 2)
    indexes.write_files()
    assert not indexes.names_changed


@pytest.mark.parametrize("is_late", [False, True], ids=["nothing written", "half written"])
def test_an_abort_that_cannot_be_written_is_written_by_the_next_try(disk, indexes, is_late):
    disk.fault = lambda called, path: errno.EIO if called == "writing" and path.suffix == TXNINDEX else None
    add(indexes, 1, is_aborted=True)
    with pytest.raises(DiskError):
        indexes.write_aborted()
    disk.fault = None
    if is_late:
        disk.write_atomic(path_of(TXNINDEX), known(indexes)[2][:10])
        indexes.close_files()
    indexes.write_aborted()
    assert held(disk, TXNINDEX) == known(indexes)[2]


def test_a_write_that_leaves_a_part_of_its_bytes_is_repaired_by_the_next_one(disk, indexes):
    add(indexes, 1)
    disk.fails_late = True
    disk.fail_at = disk.steps + 2
    with pytest.raises(DiskError):
        indexes.write_files()
    disk.fails_late, disk.fail_at = False, None
    add(indexes, 2)
    indexes.write_files()
    assert [held(disk, suffix) for suffix in INDEX_SUFFIXES[:2]] == known(indexes)[:2]
    indexes.close()
    assert not disk.open_files


@pytest.mark.parametrize("content", [bytes(64), b"rubbish"], ids=["preallocated", "of another log"])
def test_bytes_of_a_file_that_are_not_of_the_index_are_replaced(disk, indexes, content):
    disk.write_atomic(path_of(INDEX), content)
    add(indexes, 1)
    indexes.write_files()
    assert held(disk, INDEX) == known(indexes)[0]


def test_a_file_that_has_the_first_entries_goes_on(disk, indexes):
    add(indexes, 1)
    disk.write_atomic(path_of(INDEX), known(indexes)[0])
    add(indexes, 2)
    indexes.write_files()
    assert held(disk, INDEX) == known(indexes)[0]


def test_files_that_were_closed_are_opened_again_and_are_to_be_synced(disk, indexes):
    add(indexes, 1)
    indexes.write_files()
    indexes.close_files()
    assert not disk.open_files
    assert indexes.take_dirty_files() == []
    indexes.write_files()
    assert len(indexes.take_dirty_files()) == 2, "it is unknown whether an earlier write was synced"


def test_indexes_begin_as_a_summary_says_while_they_grow(indexes):
    add(indexes, 1)
    contents = known(indexes)
    progress = Summary(
        BASE,
        120,
        index_size=len(contents[0]),
        index_crc=crc32c(contents[0]),
        timeindex_size=len(contents[1]),
        timeindex_crc=crc32c(contents[1]),
    )
    add(indexes, 2)
    assert indexes.begin_with(progress)
    assert not indexes.begin_with(replace(progress, index_crc=1))
    assert not indexes.begin_with(replace(progress, index_size=1000))


# -- files that the last broker has left -----------------------------------------------------------------------------


def header(number, timestamp):
    """The header of a batch of 10 offsets."""
    records = [Record(0, timestamp, None, b"")] * 10
    return read_header(encode_batch(records, base_offset=BASE + 10 * number))


def adopt(disk, indexes, tail=(), latest=(-1, BASE), *, are_synced=True):
    listing = Listing(disk, DIRECTORY)
    batches = None if tail is None else lambda: [(0, one) for one in tail]
    return indexes.adopt_files(listing, batches, latest, are_synced=are_synced)


@pytest.fixture
def left(disk, indexes):
    """The same indexes as those whose files the last broker has left."""
    for number in (1, 2):
        add(indexes, number, is_aborted=number == 2)
    indexes.write_files()
    contents = known(indexes)
    indexes.close()
    return GrowingIndexes(disk, path_of, BASE, contents)


def test_files_that_match_need_no_repair_and_lack_nothing(disk, left):
    assert adopt(disk, left)
    assert left.are_files_complete
    assert not left.names_changed


def test_files_of_a_killed_broker_may_have_names_that_are_not_synced(disk, left):
    assert adopt(disk, left, are_synced=False)
    assert left.names_changed
    assert not left.are_files_complete


def test_a_file_may_lack_the_last_entries_of_offsets(disk, left):
    disk.damage(path_of(INDEX), disk.read_bytes(path_of(INDEX))[:8])
    assert adopt(disk, left)
    assert not left.are_files_complete
    left.write_files()
    assert held(disk, INDEX) == known(left)[0]


def test_the_transaction_index_must_be_complete(disk, left):
    disk.lose(path_of(TXNINDEX))
    assert not adopt(disk, left)


def test_other_bytes_in_the_offset_index_need_a_repair(disk, left):
    disk.damage(path_of(INDEX), bytes(8))
    assert not adopt(disk, left)


def with_time(disk, timestamp, offset):
    """Add an entry to the file of the time index, as a close of the partition does."""
    entry = timestamp.to_bytes(8) + (offset - BASE).to_bytes(4)
    disk.damage(path_of(TIMEINDEX), disk.read_bytes(path_of(TIMEINDEX)) + entry)


def test_an_entry_of_a_close_is_used_if_the_log_has_its_batch(disk, left):
    with_time(disk, 6000, BASE + 39)
    assert adopt(disk, left, tail=[header(3, 6000)], latest=(5002, BASE + 29))
    assert left.times.last == (6000, BASE + 39)


@pytest.mark.parametrize(
    "tail",
    [[header(3, 5999)], [header(4, 6000)], [], None],
    ids=["other time", "other offset", "no batch", "too many"],
)
def test_an_entry_that_the_log_does_not_confirm_needs_a_repair(disk, left, tail):
    with_time(disk, 6000, BASE + 39)
    assert not adopt(disk, left, tail=tail, latest=(5002, BASE + 29))


def test_a_torn_entry_in_the_time_index_needs_a_repair(disk, left):
    disk.damage(path_of(TIMEINDEX), disk.read_bytes(path_of(TIMEINDEX)) + b"\1\2\3")
    assert not adopt(disk, left, tail=[])
