"""Iteration over the batch headers of a log file, and the search for a batch by offset or position."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.batch.header import HEADER, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError
from stablelog.log.search.batches import seek, walk


class Log:
    """A log file in memory, which is read in pieces of a size."""

    def __init__(self, content, piece_size=1 << 20, *, is_growing=False):
        self.content, self.size = content, len(content)
        self._piece_size, self._is_growing = piece_size, is_growing

    def piece(self, position, size):
        return self.content[position : position + max(min(size, self._piece_size), HEADER.size)]

    def no_batch_at(self, position, error):
        return DamageError(f"no batch at {position}: {error}")

    def torn_at(self, position):
        return None if self._is_growing else DamageError(f"torn at {position}")


def batch(base_offset, count=1, size=0):
    return encode_batch([Record(0, 0, None, bytes(size))] * count, base_offset=base_offset)


@pytest.fixture(scope="module")
def content():
    """Batches of the offsets 0 to 1, 2, 5 to 7 and 10: compaction has left gaps."""
    return batch(0, 2) + batch(2, size=200) + batch(5, 3) + batch(10)


PIECES = [61, 70, 200, 1 << 20]


@pytest.mark.parametrize("piece_size", PIECES)
def test_every_batch_is_visited_however_the_file_is_read(content, piece_size):
    known = list(headers_in(content))
    assert list(walk(Log(content, piece_size), 0)) == known
    assert list(walk(Log(content, piece_size), known[2][0])) == known[2:]
    assert list(walk(Log(content, piece_size), len(content))) == []


@pytest.mark.parametrize("piece_size", PIECES)
@pytest.mark.parametrize(
    ("offset", "base"), [(0, 0), (1, 0), (2, 2), (3, 5), (7, 5), (8, 10), (10, 10), (11, None)]
)
def test_the_first_batch_that_reaches_an_offset_is_found(content, piece_size, offset, base):
    found = seek(Log(content, piece_size), 0, offset=offset)
    if base is None:
        assert found is None
        return
    position, header = next((at, one) for at, one in headers_in(content) if one.base_offset == base)
    assert found == (position, header.size, base, header.last_offset)


@given(some.integers(0, 700))
def test_the_first_batch_that_ends_behind_a_position_is_found(end):
    content = batch(0, 2) + batch(2, size=200) + batch(5, 3) + batch(10)
    found = seek(Log(content), 0, offset=99, end=end)
    behind = [at for at, header in headers_in(content) if at + header.size > end]
    assert (found and found.position) == next(iter(behind), None)


@pytest.mark.parametrize("cut", [1, 30, 50])
def test_a_last_batch_that_does_not_end_within_the_file_is_torn_unless_the_file_is_being_written(
    content, cut
):
    torn_at = [at for at, _ in headers_in(content)][-1]
    for is_growing in (False, True):
        log = Log(content[:-cut], is_growing=is_growing)
        if is_growing:
            assert seek(log, 0, offset=10) is None
        else:
            with pytest.raises(DamageError, match=f"torn at {torn_at}"):
                seek(log, 0, offset=10)


def test_a_walk_ends_at_a_header_that_is_torn(content):
    count = len(list(headers_in(content)))
    assert len(list(walk(Log(content[:-40], is_growing=True), 0))) == count - 1
    with pytest.raises(DamageError, match="torn at"):
        list(walk(Log(content[:-40]), 0))


def test_the_last_batch_of_a_walk_may_end_behind_the_file(content):
    """Its header is whole: the caller decides whether the rest is missing."""
    assert len(list(walk(Log(content[:-1]), 0))) == len(list(headers_in(content)))


def changed(content, position, new):
    return content[:position] + new + content[position + len(new) :]


@pytest.mark.parametrize(
    ("at", "new"),
    [(8, bytes(4)), (8, b"\xff\xff\xff\xf0"), (23, b"\xff\xff\xff\xff"), (16, b"\1")],
    ids=["size 0", "size below 0", "offsets fall", "magic"],
)
def test_bytes_that_are_no_batch_are_refused_by_their_position(content, at, new):
    second = [at for at, _ in headers_in(content)][1]
    with pytest.raises(DamageError, match=f"no batch at {second}"):
        seek(Log(changed(content, second + at, new)), 0, offset=2)
    if at != 23:  # a walk leaves the offsets to its caller
        with pytest.raises(DamageError, match=f"no batch at {second}"):
            list(walk(Log(changed(content, second + at, new)), 0))


def test_batches_before_the_one_that_is_searched_for_are_not_checked_for_their_magic(content):
    assert seek(Log(changed(content, 16, b"\1")), 0, offset=2).base_offset == 2
