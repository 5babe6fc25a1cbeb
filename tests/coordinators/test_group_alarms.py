from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups.alarms import COMPACT_SIZE_MIN, Alarm, Alarms


def nothing() -> None:
    """An action that nobody looks at."""


def test_the_earliest_alarm_comes_first_and_only_when_it_is_due() -> None:
    alarms = Alarms()
    late, early = Alarm(nothing), Alarm(nothing)
    alarms.set(late, 20)
    alarms.set(early, 10)

    assert alarms.next_deadline_ms() == 10
    assert alarms.take_due(9) is None
    assert alarms.take_due(10) is early
    assert alarms.take_due(10) is None
    assert alarms.take_due(99) is late
    assert alarms.next_deadline_ms() is None


def test_an_alarm_can_be_put_off_brought_forward_and_cancelled() -> None:
    alarms = Alarms()
    alarm = Alarm(nothing)
    alarms.set(alarm, 10)
    alarms.set(alarm, 30)
    assert alarms.next_deadline_ms() == 30
    alarms.set(alarm, 5)
    assert alarms.next_deadline_ms() == 5
    alarms.cancel(alarm)
    assert alarms.next_deadline_ms() is None
    alarms.set(alarm, 7)
    assert alarms.take_due(7) is alarm
    assert alarms.take_due(99) is None


def test_heartbeats_do_not_fill_the_heap() -> None:
    alarms = Alarms()
    alarm = Alarm(nothing)
    for now_ms in range(10_000):
        alarms.set(alarm, now_ms + 45_000)
    assert len(alarms._heap) == 1


def test_cancelled_alarms_do_not_fill_the_heap() -> None:
    alarms = Alarms()
    for now_ms in range(10_000):
        alarm = Alarm(nothing)
        alarms.set(alarm, now_ms + 1_800_000)
        alarms.cancel(alarm)
    assert len(alarms._heap) <= COMPACT_SIZE_MIN + 1


ACTS = st.tuples(st.sampled_from(["set", "cancel", "take"]), st.integers(0, 90), st.integers(0, 50))


@given(st.lists(ACTS, max_size=300))
def test_alarms_agree_with_a_dictionary_of_deadlines(acts: list[tuple[str, int, int]]) -> None:
    alarms = Alarms()
    every = [Alarm(nothing) for _ in range(91)]
    deadlines: dict[Alarm, int] = {}
    for act, which, time_ms in acts:
        alarm = every[which]
        if act == "set":
            alarms.set(alarm, time_ms)
            deadlines[alarm] = time_ms
        elif act == "cancel":
            alarms.cancel(alarm)
            deadlines.pop(alarm, None)
        else:
            earliest_ms = min(deadlines.values(), default=None)
            taken = alarms.take_due(time_ms)
            if earliest_ms is None or earliest_ms > time_ms:
                assert taken is None
            else:
                assert taken is not None
                assert deadlines.pop(taken) == earliest_ms
        assert alarms.next_deadline_ms() == min(deadlines.values(), default=None)
