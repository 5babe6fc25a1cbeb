"""A buffer comes back once nobody looks at it, and never before."""

from hypothesis import given
from hypothesis import strategies as st

from stablelog.client.buffers import SIZE_MIN, BufferPool

SIZE = 4 * SIZE_MIN


def test_a_buffer_that_nobody_looks_at_is_given_out_again():
    buffers = BufferPool(10 * SIZE)
    first = buffers.take_buffer(SIZE)
    known = id(first)
    view = memoryview(first)[5:7]
    del first
    assert id(buffers.take_buffer(SIZE)) != known  # the view still looks at it
    del view
    again = buffers.take_buffer(SIZE * 3 // 4)
    assert (id(again), len(again)) == (known, SIZE * 3 // 4)
    del again
    assert id(buffers.take_buffer(SIZE)) == known


def test_what_is_kept_is_bounded():
    buffers = BufferPool(2 * SIZE)
    for size in range(SIZE, 20 * SIZE, SIZE):
        assert len(buffers.take_buffer(size)) == size
    assert sum(map(len, buffers.kept)) <= 20 * SIZE
    assert len(buffers.kept) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(SIZE_MIN // 2, SIZE)), max_size=30))
def test_no_two_users_ever_share_a_buffer(steps):
    buffers, held = BufferPool(2 * SIZE), {}
    for user, size in steps:
        held.pop(user, None)
        held[user] = buffers.take_buffer(size)
        assert len(held[user]) == size
        held[user][0] = user
        assert all(buffer[0] == each for each, buffer in held.items())
