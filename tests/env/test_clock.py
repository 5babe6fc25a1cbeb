"""The contract of a clock, for the machine's and the simulated one."""

import time
from dataclasses import dataclass

import pytest

from stablelog.env.clock import SystemClock
from stablelog.testing.sim_clock import SimClock

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass
class Machine:
    """The clocks of a machine, in ms."""

    wall_ms: int = NOW_MS
    running_ms: int = 5 * HOUR_MS  # CLOCK_MONOTONIC of Linux
    suspended_ms: int = 0

    def read_ns(self, clock_id):
        ms = {
            time.CLOCK_REALTIME: self.wall_ms,
            time.CLOCK_MONOTONIC: self.running_ms,
            BOOTTIME: self.running_ms + self.suspended_ms,
        }[clock_id]
        return ms * 1_000_000

    def run(self, ms):
        self.wall_ms += ms
        self.running_ms += ms

    def suspend(self, ms):
        self.wall_ms += ms
        self.suspended_ms += ms

    def set_wall_clock(self, ms):
        self.wall_ms += ms


def system():
    machine = Machine()
    return SystemClock(machine.read_ns), machine.run, machine.set_wall_clock


def simulated():
    clock = SimClock(NOW_MS)
    return clock, clock.advance, clock.set_wall_clock


@pytest.fixture(params=[system, simulated], ids=lambda make: make.__name__)
def contract(request):
    return request.param()


def test_a_clock_tells_the_time_and_moves_on_with_it(contract):
    clock, run, _set_wall_clock = contract
    assert clock.now_ms() == clock.wall_ms() == NOW_MS
    for ms in (1, 0, HOUR_MS):
        before = clock.now_ms()
        run(ms)
        assert clock.now_ms() == clock.wall_ms() == before + ms


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_of_the_wall_clock_is_no_step_of_broker_time(contract, step_ms):
    clock, run, set_wall_clock = contract
    run(1000)
    set_wall_clock(step_ms)
    assert (clock.now_ms(), clock.wall_ms()) == (NOW_MS + 1000, NOW_MS + 1000 + step_ms)
    run(1)
    assert (clock.now_ms(), clock.wall_ms()) == (NOW_MS + 1001, NOW_MS + 1001 + step_ms)


@pytest.mark.parametrize("shift_ms", [HOUR_MS, -HOUR_MS])
def test_broker_time_goes_on_from_the_time_that_it_is_given(contract, shift_ms):
    clock, run, _set_wall_clock = contract
    clock.continue_at(NOW_MS + shift_ms)
    run(5)
    assert (clock.now_ms(), clock.wall_ms()) == (NOW_MS + shift_ms + 5, NOW_MS + 5)


def test_the_simulated_clock_cannot_be_advanced_by_a_negative_time():
    clock = SimClock(NOW_MS)
    with pytest.raises(ValueError, match="cannot move back"):
        clock.advance(-1)
    assert clock.now_ms() == clock.wall_ms() == NOW_MS


@pytest.mark.skipif(
    BOOTTIME is None, reason="without CLOCK_BOOTTIME the monotonic clock goes on, as on macOS"
)
def test_the_machines_clock_moves_on_while_it_is_suspended():
    machine = Machine()
    clock = SystemClock(machine.read_ns)
    machine.suspend(2 * HOUR_MS)
    assert clock.now_ms() == machine.wall_ms


def test_the_machines_clock_is_the_wall_clock_at_its_start():
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    assert before <= now <= time.time_ns() // 1_000_000 + 1
