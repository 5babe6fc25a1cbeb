"""Reads that begin in the remote tier of a log and go on in its local segments."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import Slice
from stablelog.log.remote_read import read_remote
from tests.log.timeline import NOW_MS, write

ABORTED = AbortedTxn(9, 1, 3, 4)


def batch(base_offset, count=2):
    return encode_batch([Record(0, NOW_MS, None, b"")] * count, base_offset=base_offset)


class Remote:
    """A remote tier that returns this read, and these aborted transactions.

    Attributes:
        asked: the range of the search for aborted transactions; None if there was none.
    """

    end_offset = 4

    def __init__(self, found, aborted=(), *, is_complete=True):
        self._found, self._aborted, self._is_complete, self.asked = found, list(aborted), is_complete, None

    def read(self, start, limit, size_max, *, at_least_one):
        return self._found

    def aborted_in(self, start, end):
        self.asked = start, end
        return self._aborted, self._is_complete


def read(remote, segments=None, *, start=1, committed=True):
    return read_remote(
        remote, segments, start, 100, 1000, local_start=4, committed=committed, at_least_one=True
    )


def test_a_reader_gets_the_batches_of_the_store():
    found = read(Remote(Slice([batch(0)], 1, 2, None)))
    assert (found.start_offset, found.end_offset, found.aborted) == (1, 2, ())


def test_aborted_transactions_are_searched_for_from_the_first_record_that_the_reader_gets():
    remote = Remote(Slice([batch(0, 4)], 1, 4, None), [ABORTED])
    assert read(remote).aborted == (ABORTED,)
    assert remote.asked == (1, 4)
    remote = Remote(Slice([batch(2)], 1, 4, None))
    read(remote)
    assert remote.asked == (2, 4), "compaction has removed what was before"


def test_a_header_in_two_buffers_is_read_as_one():
    whole = batch(2)
    remote = Remote(Slice([whole[:30], whole[30:]], 1, 4, None))
    read(remote)
    assert remote.asked == (2, 4)


def test_an_uncommitted_reader_needs_no_aborted_transactions():
    remote = Remote(Slice([batch(0)], 1, 2, None))
    assert read(remote, committed=False).aborted is None
    assert remote.asked is None


@pytest.mark.parametrize("is_complete", [True, False])
def test_if_the_search_is_not_complete_it_goes_on_in_the_local_segments(is_complete, monkeypatch):
    local, asked = object(), []

    def find_aborted(segments, start, end):
        asked.append((segments, start, end))
        return [AbortedTxn(8, 2, 9, 10)], True

    monkeypatch.setattr("stablelog.log.remote_read.find_aborted", find_aborted)
    found = read(Remote(Slice([batch(0, 4)], 1, 4, None), [ABORTED], is_complete=is_complete), local)
    assert asked == ([] if is_complete else [(local, 4, 4)])
    assert len(found.aborted) == 1 + (not is_complete)


def test_a_read_that_finds_nothing_more_in_the_store_goes_on_in_the_local_log():
    log = write("- - - - - -")
    found = read(Remote(Slice([], 1, 4, None)), log.partition.log.segments)
    assert (found.start_offset, found.end_offset) == (1, 6)
    assert [one.base_offset for _, one in headers_in(b"".join(found.buffers))] == [4, 5]


def test_a_read_without_room_is_empty_and_asks_for_no_index():
    remote = Remote(Slice([], 1, 1, None))
    found = read(remote)
    assert (found.buffers, found.end_offset, found.aborted) == ([], 1, ())
    assert remote.asked is None
