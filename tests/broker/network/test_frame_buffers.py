"""The memory of large requests is used again, a little of it."""

from stablelog.broker.network.frame_buffers import KEPT_COUNT, KEPT_SIZE, FrameBuffers


def test_a_frame_has_the_size_that_was_asked_for():
    frames = FrameBuffers()
    for size in (1, KEPT_SIZE, KEPT_SIZE + 1):
        frame = frames.take_frame(size)
        assert len(frame) == size
        assert not frame.readonly
        frames.keep_frame(frame.toreadonly())


def test_the_memory_of_a_frame_is_used_again_when_it_was_given_back_and_not_before():
    frames = FrameBuffers()
    first, second = frames.take_frame(100), frames.take_frame(200)
    assert first.obj is not second.obj
    frames.keep_frame(first.toreadonly())
    assert frames.take_frame(300).obj is first.obj
    assert frames.take_frame(400).obj not in (first.obj, second.obj)


def test_what_is_larger_than_clients_send_by_default_is_not_kept():
    frames = FrameBuffers()
    frames.keep_frame(frames.take_frame(KEPT_SIZE + 1))
    assert len(frames.take_frame(1).obj) == KEPT_SIZE


def test_no_more_than_a_few_are_kept():
    frames = FrameBuffers()
    for frame in [frames.take_frame(1) for _ in range(KEPT_COUNT + 2)]:
        frames.keep_frame(frame)
    kept = {id(frames.take_frame(1).obj) for _ in range(KEPT_COUNT)}
    assert len(kept) == KEPT_COUNT
    assert len(frames) == 0


def test_what_is_no_frame_is_not_kept():
    frames = FrameBuffers()
    frames.keep_frame(memoryview(bytes(KEPT_SIZE)))
    assert len(frames) == 0
