"""The log lines about the progress of a long pass of copies, in simulated time."""

import logging

import pytest

from stablelog.testing.sim_objects import SimObjects, StoreFaults
from tests.broker.tiering.desk import run_in_store_time
from tests.broker.tiering.world import World

SEGMENT_COUNT = 20


def lines_of_a_pass(caplog, request_s):
    """The lines of a pass that copies segments of 1 MB, if each request takes so long. The copy of a segment is two."""
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    objects.between = lambda _call, _key: objects.sleep(request_s)
    world = World(objects, words=())
    for _ in range(SEGMENT_COUNT):
        world.append(9, transactional=False, size=1_000_000)
        world.partition.roll(world.now_ms)
        world.sync()
    caplog.clear()
    caplog.set_level(logging.INFO)
    run_in_store_time(objects, world.copier.copy_all([world.partition]))
    assert world.copier.uploads.count == SEGMENT_COUNT
    return [line for line in caplog.messages if "segments are copied" in line]


def test_a_long_pass_tells_its_progress_each_half_minute_and_its_end(caplog):
    """The take-over and the publication of 16 segments are requests, too."""
    assert lines_of_a_pass(caplog, 2.5) == [
        "the copy to the object store goes on: 5 of 20 segments are copied, 5 of 20 MB, at 0 MB/s",
        "the copy to the object store goes on: 11 of 20 segments are copied, 11 of 20 MB, at 0 MB/s",
        "the copy to the object store goes on: 17 of 20 segments are copied, 17 of 20 MB, at 0 MB/s",
        "the copy to the object store has ended: 20 of 20 segments are copied, 20 of 20 MB, at 0 MB/s",
    ]


def test_the_rate_is_that_of_the_whole_pass(caplog, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.progress.PROGRESS_S", 3.0)
    first, *_, last = lines_of_a_pass(caplog, 0.125)
    assert (
        first == "the copy to the object store goes on: 11 of 20 segments are copied, 11 of 20 MB, at 3 MB/s"
    )
    assert (
        last == "the copy to the object store has ended: 20 of 20 segments are copied, 20 of 20 MB, at 3 MB/s"
    )


@pytest.mark.parametrize("request_s", [0, 0.5])
def test_a_short_pass_tells_nothing(caplog, request_s):
    assert lines_of_a_pass(caplog, request_s) == []
