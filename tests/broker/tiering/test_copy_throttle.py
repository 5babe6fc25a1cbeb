"""The throttle, with a clock that only its own sleeps move."""

import pytest

from stablelog.broker.tiering.copy_throttle import SLEEP_S_MAX, CopyThrottle, run_at_half_speed
from stablelog.errors import UnavailableError


class Clock:
    """Time that passes while the throttle sleeps."""

    def __init__(self):
        self.now_s = 1000.0
        self.sleeps = []

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


def throttle(clock, rate):
    return CopyThrottle(rate, now_s=lambda: clock.now_s, sleep=clock.sleep)


@pytest.mark.parametrize(
    ("rate", "size", "count"), [(100, 10, 50), (1, 7, 3), (10**9, 10**9, 4), (1000, 1, 10)]
)
def test_bytes_pass_at_the_rate_and_the_first_ones_at_once(clock, rate, size, count):
    limit, begun_s = throttle(clock, lambda: rate), clock.now_s
    limit.wait_for_bytes(size)
    assert clock.now_s == begun_s
    for number in range(1, count):
        limit.wait_for_bytes(size)
        assert clock.now_s - begun_s == pytest.approx(number * size / rate)


def test_time_without_copies_is_not_saved_up(clock):
    limit = throttle(clock, lambda: 100)
    limit.wait_for_bytes(100)
    clock.now_s += 3600
    limit.wait_for_bytes(100)
    begun_s = clock.now_s
    limit.wait_for_bytes(100)
    assert clock.now_s - begun_s == pytest.approx(1)


def test_a_new_rate_holds_from_the_next_bytes_on(clock):
    rates = [100]
    limit = throttle(clock, lambda: rates[0])
    limit.wait_for_bytes(100)
    rates[0] = 1000
    limit.wait_for_bytes(100)
    begun_s = clock.now_s
    limit.wait_for_bytes(100)
    assert clock.now_s - begun_s == pytest.approx(0.1)


def test_a_cancelled_thread_does_not_wait(clock):
    limit = throttle(clock, lambda: 1)
    limit.wait_for_bytes(10**6)
    cancelled = iter([False, False, True])
    limit.wait_for_bytes(10**6, lambda: next(cancelled))
    assert clock.sleeps == [SLEEP_S_MAX, SLEEP_S_MAX]


def steps(done, count=3):
    for number in range(count):
        done.append(number)
        yield
    return "result"


def test_steps_that_run_slowly_have_the_result_of_the_last_one():
    done = []
    assert run_at_half_speed(steps(done), lambda: False) == "result"
    assert done == [0, 1, 2]


def test_steps_end_when_they_are_cancelled():
    done = []
    with pytest.raises(UnavailableError, match="cancelled"):
        run_at_half_speed(steps(done), lambda: len(done) == 2)
    assert done == [0, 1]
