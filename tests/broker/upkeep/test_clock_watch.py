"""The watch over the wall clock: a step is one line of the log, slewing is none."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from stablelog.broker.directory.broker_time import BROKER_TIME_FILE, BrokerTime
from stablelog.broker.upkeep.clock_watch import RECORD_EVERY, ClockWatch
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk

DATA = Path("/data")


class World:
    def __init__(self, clock=None):
        self.disk, self.clock = SimDisk(), clock or SimClock()
        self.disk.make_dir(DATA)
        self.time = BrokerTime(self.clock, self.disk, DATA)
        self.watch = ClockWatch(self.clock, self.time)

    def look(self, *, count=1):
        for _ in range(count):
            self.clock.advance(1000)
            asyncio.run(self.watch.check_clock())

    def recorded(self):
        try:
            return self.disk.read_bytes(DATA / BROKER_TIME_FILE).decode()
        except FileNotFoundError:
            return None


@pytest.mark.parametrize(
    ("step_ms", "words"), [(10_800_000, "forward by 10800.0 s"), (-500, "back by 0.5 s")]
)
def test_a_step_is_logged_once_and_recorded(step_ms, words, caplog):
    world = World()
    world.look()
    world.clock.set_wall_clock(step_ms)
    world.look(count=3)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"the machine's clock was set {words}"
    ]
    now_ms = 1_700_000_002_000
    assert world.recorded() == f"0\n{now_ms}\n{now_ms + step_ms}\n"


def test_slewing_is_no_step(caplog):
    world = World()
    for _ in range(50):
        world.clock.set_wall_clock(1)
        world.look()
    assert not caplog.records
    assert world.recorded() is None


def test_the_time_is_recorded_once_a_minute():
    world = World()
    world.look(count=RECORD_EVERY - 1)
    assert world.recorded() is None
    world.look()
    assert world.recorded() == "0\n1700000060000\n1700000060000\n"


def test_a_stop_between_the_two_clocks_is_no_step(caplog):
    class Stopping(SimClock):
        stops = False

        def wall_ms(self):
            found = super().wall_ms()
            if self.stops:
                self.advance(60_000)
            return found

    world = World(Stopping())
    world.clock.stops = True
    world.look(count=2)
    world.clock.stops = False
    world.look()
    assert not caplog.records


def test_a_time_that_cannot_be_recorded_is_logged(caplog):
    world = World()
    world.disk.fault = lambda what, path: errno.EIO if what == "writing" else None
    world.time.record()
    assert "the broker's time (its clock for durations) cannot be recorded" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_clock_does_nothing_gets_older_than_it_is(seed):
    """Late starts, clocks that are set right in time or not at all, stops and power failures, in any order.

    Broker time advances by at most the time that has passed, and never goes back by more than a minute.
    """
    chance = random.Random(seed)
    disk, right_ms, years_ms = SimDisk(), 1_700_000_000_000, 300_000_000_000
    disk.make_dir(DATA)
    reached_ms, ahead_ms = 0, None
    for _ in range(8):
        late_ms = 0 if ahead_ms is None else chance.choice((0, 3_600_000, years_ms))
        clock = SimClock(right_ms - late_ms)
        time = BrokerTime(clock, disk, DATA)
        time.resume()
        if ahead_ms is None:
            clock.set_wall_clock(chance.choice((0, 10_800_000, -10_800_000)))
            ahead_ms, right_ms = clock.now_ms() - clock.wall_ms(), clock.wall_ms()
        assert reached_ms - 1000 * (RECORD_EVERY + 1) <= clock.now_ms() <= right_ms + ahead_ms
        watch = ClockWatch(clock, time)
        time.record()
        begun_ms, look_count = right_ms, chance.randrange(2 * RECORD_EVERY)
        right_ms += 1000 * look_count

        async def run(clock=clock, watch=watch, begun_ms=begun_ms, look_count=look_count):
            for number in range(1, look_count + 1):
                clock.advance(1000)
                if chance.random() < 0.01:
                    clock.set_wall_clock(begun_ms + 1000 * number - clock.wall_ms())
                await watch.check_clock()

        asyncio.run(run())
        if chance.random() < 0.5:
            time.record()
        else:
            disk = disk.crash(chance)
        reached_ms = clock.now_ms()
        right_ms += chance.choice((1000, 3_600_000, 86_400_000))
