"""Deadlines: the right key at the right time, in memory that follows the keys."""

from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.deadline_queue import COMPACT_SIZE_MIN, CORRECTED_AT_ONCE, DeadlineQueue


def due(deadlines: DeadlineQueue[str], now_ms: int) -> list[str]:
    return list(deadlines.pop_due(now_ms, 10_000))


def test_what_is_due_comes_out_once_and_in_order() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for name, at_ms in (("c", 30), ("a", 10), ("b", 20)):
        deadlines.set(name, at_ms)
    assert deadlines.next_ms() == 10
    assert due(deadlines, 9) == []
    assert deadlines.is_due(10)
    assert due(deadlines, 20) == ["a", "b"]
    assert due(deadlines, 20) == []
    assert due(deadlines, 30) == ["c"]
    assert deadlines.next_ms() is None
    assert not deadlines.is_due(99)


def test_keys_with_one_deadline_come_in_the_order_in_which_they_were_added() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for name in "bca":
        deadlines.set(name, 5)
    assert due(deadlines, 5) == ["b", "c", "a"]


def test_one_look_takes_out_only_so_many() -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    for key in range(100):
        deadlines.set(key, 0)
    assert len(list(deadlines.pop_due(0, 30))) == 30
    assert len(list(deadlines.pop_due(0, 100))) == 70


def test_a_deadline_can_be_put_off_brought_forward_and_cancelled() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("a", 10)
    deadlines.set("a", 30)
    assert (deadlines.next_ms(), deadlines.get("a")) == (30, 30)
    deadlines.set("a", 5)
    assert deadlines.next_ms() == 5
    deadlines.cancel("a")
    deadlines.cancel("unknown")
    assert (deadlines.next_ms(), deadlines.get("a")) == (None, None)
    deadlines.set("a", 7)
    assert due(deadlines, 99) == ["a"]


def test_many_cancelled_deadlines_are_dropped_a_few_at_a_time() -> None:
    """A joint commit cancels thousands of deadlines, and the next look at them is not to hold the event loop."""
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    count = 3 * CORRECTED_AT_ONCE
    for key in range(count):
        deadlines.set(key, 0)
    deadlines.set(-1, 5)
    for key in range(count):
        deadlines.cancel(key)
    assert due(deadlines, 9) == []
    assert len(deadlines) >= count - 2 * CORRECTED_AT_ONCE, "all were dropped at once"
    found, looks = [], 0
    while not found:
        assert deadlines.is_due(9), "somebody would not ask again"
        found = due(deadlines, 9)
        looks += 1
    assert (found, looks < 5) == ([-1], True)
    assert not deadlines.is_due(9)
    assert deadlines.next_ms() is None


def test_heartbeats_do_not_fill_the_heap() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for now_ms in range(10_000):
        deadlines.set("a", now_ms + 45_000)
    assert len(deadlines) == 1


def test_cancelled_deadlines_do_not_fill_the_heap() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("kept", 500_000)
    for number in range(10_000):
        deadlines.set(f"{number}", 1_000_000 + number)
        deadlines.cancel(f"{number}")
    assert len(deadlines) <= COMPACT_SIZE_MIN + 3
    assert due(deadlines, 2_000_000) == ["kept"]


def test_memory_follows_the_keys_and_not_their_transactions() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for at_ms in range(60, 100_000):
        deadlines.set("a", at_ms + 60)
        deadlines.cancel("a")
        if at_ms % 60 == 0:
            assert due(deadlines, at_ms) == []
    assert len(deadlines) <= 2


ACTS = st.tuples(st.sampled_from(["set", "cancel", "take"]), st.integers(0, 90), st.integers(0, 50))


@given(st.lists(ACTS, max_size=300))
def test_deadlines_agree_with_a_dictionary(acts: list[tuple[str, int, int]]) -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    model: dict[int, int] = {}
    for act, key, time_ms in acts:
        if act == "set":
            deadlines.set(key, time_ms)
            model[key] = time_ms
        elif act == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            earliest_ms = min(model.values(), default=None)
            taken = next(deadlines.pop_due(time_ms, 1), None)
            if earliest_ms is None or earliest_ms > time_ms:
                assert taken is None
            else:
                assert taken is not None
                assert model.pop(taken) == earliest_ms
        assert deadlines.next_ms() == min(model.values(), default=None)
