"""The time index, against a list that is looked through."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.log.indexes.time_index import NO_TIMESTAMP, TimeIndex

BASE = 1000


@pytest.mark.extended
@given(
    some.lists(some.tuples(some.integers(-5, 50), some.integers(1, 5)), max_size=20), some.integers(-7, 55)
)
def test_the_time_index_tells_an_offset_before_the_first_batch_that_reaches_a_time(batches, timestamp):
    made, rows, offset = TimeIndex(BASE), [], BASE
    for time_ms, count in batches:
        offset += count
        made.append_if_later(time_ms, offset)
        if time_ms > max([NO_TIMESTAMP, *(known for known, _ in rows)]):
            rows.append((time_ms, offset))
    read = TimeIndex(BASE, bytes(made.content()) + bytes(24))
    for index in (made, read):
        assert [index[place] for place in range(len(index))] == rows
        assert index.last == (rows[-1] if rows else (NO_TIMESTAMP, BASE))
        earlier = [at for known, at in rows if known < timestamp]
        assert index.offset_before(timestamp) == (earlier[-1] if earlier else None)
        for place in (-1, len(rows)):
            with pytest.raises(IndexError):
                index[place]
    later = (rows[-1][0] if rows else 0) + 1
    read.append_if_later(later, offset + 1)
    assert [read[place] for place in range(len(read))] == [*rows, (later, offset + 1)]
