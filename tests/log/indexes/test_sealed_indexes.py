"""A sealed segment's files are checked against its summary before they are used."""

from dataclasses import replace

import pytest
from crc32c import crc32c

from stablelog.errors import DamageError
from stablelog.log.files.names import INDEX, LOG, TIMEINDEX, TXNINDEX, SegmentName
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.sealed_indexes import are_files_of, load_indexes, load_txn_index
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

BASE = 100
path_of = SegmentName.of(DIRECTORY, BASE).path
ABORTED = AbortedTxn(1, 100, 105, 106)


@pytest.fixture
def contents():
    offsets, times, txns = OffsetIndex(BASE), TimeIndex(BASE), TransactionIndex()
    offsets.append(103, 500)
    times.append_if_later(1000, 103)
    txns.append(ABORTED)
    return {
        suffix: bytes(one.content())
        for suffix, one in ((INDEX, offsets), (TIMEINDEX, times), (TXNINDEX, txns))
    }


@pytest.fixture
def summary(contents):
    fields = {}
    for name, suffix in (("index", INDEX), ("timeindex", TIMEINDEX), ("txnindex", TXNINDEX)):
        fields |= {f"{name}_size": len(contents[suffix]), f"{name}_crc": crc32c(contents[suffix])}
    return Summary(BASE, 110, log_size=1000, **fields)


@pytest.fixture
def disk(contents):
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for suffix, content in (*contents.items(), (LOG, bytes(1000))):
        disk.write_atomic(path_of(suffix), content)
    return disk


def changed(disk, suffix):
    content = bytearray(disk.read_bytes(path_of(suffix)))
    content[-1] ^= 1
    disk.damage(path_of(suffix), bytes(content))


def shortened(disk, suffix):
    disk.damage(path_of(suffix), disk.read_bytes(path_of(suffix))[:-1])


def lost(disk, suffix):
    disk.lose(path_of(suffix))


def test_the_files_of_the_summary_pass_and_their_indexes_are_read(disk, summary):
    assert are_files_of(disk, path_of, summary)
    offsets, times = load_indexes(disk, path_of, summary)
    assert (offsets[0], times[0]) == ((103, 500), (1000, 103))
    assert load_txn_index(disk, path_of, summary)[0] == ABORTED


@pytest.mark.parametrize("suffix", [LOG, INDEX, TIMEINDEX, TXNINDEX])
@pytest.mark.parametrize("fault", [shortened, lost])
def test_a_start_finds_a_file_that_is_missing_or_has_another_size(disk, summary, suffix, fault):
    fault(disk, suffix)
    assert not are_files_of(disk, path_of, summary)


@pytest.mark.parametrize(
    ("suffix", "is_checked"), [(LOG, False), (INDEX, False), (TIMEINDEX, False), (TXNINDEX, True)]
)
def test_a_start_reads_only_the_transaction_index(disk, summary, suffix, is_checked):
    """The other indexes are checked when they are first used, and the log file by its proof."""
    changed(disk, suffix)
    assert are_files_of(disk, path_of, summary) is not is_checked


@pytest.mark.parametrize("suffix", [INDEX, TIMEINDEX])
@pytest.mark.parametrize("fault", [changed, shortened, lost])
def test_an_index_that_does_not_match_is_not_loaded(disk, summary, suffix, fault):
    fault(disk, suffix)
    assert load_indexes(disk, path_of, summary) is None


@pytest.mark.parametrize("fault", [changed, shortened, lost])
def test_without_its_transaction_index_it_is_unknown_what_was_aborted(disk, summary, fault):
    fault(disk, TXNINDEX)
    with pytest.raises(
        DamageError, match=rf"^{path_of(TXNINDEX)} is damaged\. Restart the broker, which then rebuilds"
    ):
        load_txn_index(disk, path_of, summary)


@pytest.mark.parametrize("content", [None, b""])
def test_a_segment_without_aborts_needs_no_transaction_index(disk, summary, content):
    without = replace(summary, txnindex_size=0, txnindex_crc=0)
    disk.lose(path_of(TXNINDEX))
    if content is not None:
        disk.write_atomic(path_of(TXNINDEX), content)
    assert are_files_of(disk, path_of, without)
    assert len(load_txn_index(disk, path_of, without)) == 0


def test_entries_that_the_summary_does_not_have_are_found(disk, summary):
    assert not are_files_of(disk, path_of, replace(summary, txnindex_size=0, txnindex_crc=0))
