"""The memory of large requests is used again, a little of it."""

from stablelog.broker.network.frames import KEPT_COUNT, KEPT_SIZE, Frames


def test_a_frame_has_the_size_that_was_asked_for():
    frames = Frames()
    for size in (1, KEPT_SIZE, KEPT_SIZE + 1):
        frame = frames.open(size)
        assert len(frame) == size
        assert not frame.readonly
        frames.give_back(frame.toreadonly())


def test_the_memory_of_a_frame_is_used_again_when_it_was_given_back_and_not_before():
    frames = Frames()
    first, second = frames.open(100), frames.open(200)
    assert first.obj is not second.obj
    frames.give_back(first.toreadonly())
    assert frames.open(300).obj is first.obj
    assert frames.open(400).obj not in (first.obj, second.obj)


def test_what_is_larger_than_clients_send_by_default_is_not_kept():
    frames = Frames()
    frames.give_back(frames.open(KEPT_SIZE + 1))
    assert len(frames.open(1).obj) == KEPT_SIZE


def test_no_more_than_a_few_are_kept():
    frames = Frames()
    for frame in [frames.open(1) for _ in range(KEPT_COUNT + 2)]:
        frames.give_back(frame)
    kept = {id(frames.open(1).obj) for _ in range(KEPT_COUNT)}
    assert len(kept) == KEPT_COUNT
    assert len(frames) == 0


def test_what_is_no_frame_is_not_kept():
    frames = Frames()
    frames.give_back(memoryview(bytes(KEPT_SIZE)))
    assert len(frames) == 0
