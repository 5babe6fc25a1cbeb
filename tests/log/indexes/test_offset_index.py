"""The offset index, against a list that is looked through."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.log.indexes.offset_index import OffsetIndex

BASE = 1000
steps = some.lists(some.tuples(some.integers(1, 5), some.integers(1, 200)), max_size=20)


def grown(pairs, first=(0, 0)):
    """Rows whose fields both grow."""
    rows, last = [], first
    for one, other in pairs:
        last = last[0] + one, last[1] + other
        rows.append(last)
    return rows


@given(steps, some.integers(-2, 110), some.integers(-2, 4100), some.integers(0, 3))
def test_the_offset_index_finds_the_last_entry_that_is_not_past_a_target(pairs, offset, position, spare):
    rows, made = grown(pairs), OffsetIndex(BASE)
    for relative, at in rows:
        made.append(BASE + relative, at)
    # Kafka preallocates the file; a read index goes on where the file's entries end.
    read = OffsetIndex(BASE, bytes(made.content()) + bytes(8 * spare))
    for index in (made, read):
        assert [index[place] for place in range(len(index))] == [(BASE + one, at) for one, at in rows]
        before = [at for relative, at in rows if BASE + relative <= BASE + offset]
        assert index.position_before(BASE + offset) == (before or [0])[-1]
        assert index.position_at_or_before(position) == max([0, *(at for _, at in rows if at <= position)])
        for place in (-1, len(rows)):
            with pytest.raises(IndexError):
                index[place]
    last = rows[-1] if rows else (0, 0)
    read.append(BASE + last[0] + 1, last[1] + 1)
    assert len(read) == len(rows) + 1
    assert read[len(rows)] == (BASE + last[0] + 1, last[1] + 1)
    made.append(BASE + last[0] + 1, last[1] + 1)
    assert bytes(read.content()) == bytes(made.content())
