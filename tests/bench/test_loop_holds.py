"""The loads that hold the event loop run here in miniature; how long it is held is the benchmark's to say."""

import pytest

from bench import loop_holds
from bench.contestants import OURS
from bench.report import Section

pytestmark = pytest.mark.extended


@pytest.mark.parametrize(
    ("load", "row_count"),
    [
        (loop_holds.records, 2),
        (loop_holds.producers, 4),
        (loop_holds.ids, 1),
        (loop_holds.children, 3),
        pytest.param(loop_holds.segments, 3, marks=pytest.mark.night),
        (loop_holds.partitions, 4),
        pytest.param(loop_holds.topics, 4, marks=pytest.mark.night),
    ],
)
def test_each_load_tells_the_longest_hold(tmp_path, load, row_count):
    section = Section("holds", beside=loop_holds.BY_THE_CLOCK)
    load(tmp_path / "data", 1000, section)
    assert len(section.rows) == row_count
    assert all(row.median(place) >= 0 for row in section.rows for place in (OURS, section.beside))


def test_a_callback_that_holds_the_loop_is_seen(tmp_path):
    with loop_holds.loop_watch.serve(tmp_path / "data") as watch:
        loop_holds.create(watch, "wide", 1, {})
        holds = watch.during(lambda: loop_holds.create(watch, "many", 2_000, {}))
    assert holds, "2,000 partitions take no millisecond"
    assert all(hold.wall_ms > 1 for hold in holds)
