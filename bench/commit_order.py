"""What does commit order cost, and what does it give? See `commit_fetch`, `commit_cuts` and `commit_open`."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import stablelog
from bench import commit_cuts, commit_fetch, commit_open
from bench.interleaved import ORDINARY, Shape, served
from bench.limits import Limits
from bench.report import Section

WRITERS = (10, 100)
BATCHES = 10  # in a transaction
LARGE = (16, 1_000, 48_000_000)  # records in a batch, bytes of each, bytes of all
SMALL = (1, 1_000, 8_000_000)
LONG_MB = 1_100


def shapes(size_divisor: int) -> tuple[Shape, ...]:
    """Large batches and small ones, from few writers and from many."""
    return tuple(
        Shape(writers, BATCHES, records, record_size, size // size_divisor)
        for records, record_size, size in (LARGE, SMALL)
        for writers in WRITERS
    )


def load() -> str:
    """How busy the machine is."""
    return f"load average {os.getloadavg()[0]:.0f}"


def run(
    run_count: int,
    divisor: int,
    best: Limits,
    tell: Callable[[str], None],
) -> list[Section]:
    """Measure all of it.

    Args:
        run_count: runs that are counted.
        divisor: of every count and size.
        best: what the machine does at best.
        tell: is told what is being measured.
    """
    fetch = Section(
        "Read-committed fetch of a commit-ordered topic, beside the same in an ordinary one", beside=ORDINARY
    )
    read = Section("Bytes read from disk for each that is handed out, in commit order", beside=ORDINARY)
    index = Section("The commit index of one partition", beside="")
    cuts = Section("Cuts", beside="")
    visible = Section("What an open transaction does to others, in commit order", beside=ORDINARY)
    long = Section("A long transaction, in commit order", beside=ORDINARY)
    all_shapes = shapes(divisor)
    with tempfile.TemporaryDirectory(prefix="commit-order-") as directory:
        data = Path(directory) / "data"
        tell("commit order: transactions of many writers")
        with served(data, all_shapes) as broker:
            tell(f"commit order: fetches, {load()}")
            commit_fetch.measure_fetch(broker, all_shapes, run_count, best, fetch)
            tell(f"commit order: bytes from disk, {load()}")
            commit_fetch.measure_reading(broker, all_shapes, run_count, read)
        commit_fetch.measure_index(data, all_shapes, index)
    with stablelog.serve() as broker:
        tell(f"commit order: open transactions, {load()}")
        commit_open.measure_open(broker, max(300 // divisor, 20), best, visible)
        tell(f"commit order: a long transaction, {load()}")
        commit_open.measure_long(broker, LONG_MB // divisor, long)
    with stablelog.serve() as broker:
        tell(f"commit order: cuts, {load()}")
        commit_cuts.measure_answers(broker, max(300 // divisor, 20), best, cuts)
        commit_cuts.measure_lag(broker, max(8 / divisor, 1), best, cuts)
    return [fetch, read, index, visible, long, cuts]
