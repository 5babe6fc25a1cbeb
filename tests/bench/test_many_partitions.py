"""Starts and stops with many partitions run here in miniature; how long they take is the benchmark's to say."""

import sys

import pytest

from bench import many_partitions
from bench.contestants import OURS

pytestmark = pytest.mark.extended


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the descriptors of a process")
def test_it_tells_how_long_starts_and_stops_take(tmp_path):
    told = []
    (section,) = many_partitions.run(1, 500, told.append)
    figures = {row.what: row.median(OURS) for row in section.rows}
    assert len(figures) == 13, figures
    assert all(figure is not None and figure >= 0 for figure in figures.values())
    assert sum(what.endswith("processor s") for what in figures) == 5
    assert figures["descriptors of an idle partition"] < 2 + 1, (
        "beside 20 partitions, a few descriptors of clients count"
    )
    assert told
