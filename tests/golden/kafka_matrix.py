"""The full matrix of transactions that Apache Kafka may leave, against the real Kafka.

    python -m tests.golden.kafka_matrix [--kafka 4.1.2 4.2.1] [--only WORD...] [--back] [--write]

First stablelog opens Kafka's directories, then Kafka opens partitions of stablelog's (`--back`: only that).
It needs Java 17 and Maven. Each failing cell is printed with its parameters; the last lines are counts. `--only` takes
the cells in whose name all the words are. `--write` writes the directories that `make test` opens, for a part of the
cells in which every three values of three dimensions occur together.
"""

import argparse
import itertools
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from peers import apache_kafka
from tests.golden.archives import loaded, read_archive, write_archive
from tests.golden.cells import (
    KILLED,
    OPEN,
    PREPARED_COMMIT,
    STOPPED,
    VERSIONS,
    Cell,
    all_cells,
    covering,
)
from tests.golden.checks import LINE_SIZE_MAX, Failures, check
from tests.golden.kafka_opens_ours import run_back
from tests.golden.kafka_writer import write_directory
from tests.golden.prepared import prepared_copy

STATE_PARTITIONS, FEW_STATE_PARTITIONS = 50, 4  # of `__transaction_state`; few in what is kept
KEPT_STRENGTH = 3  # so many values occur together in what is kept
BACK_STATES = (OPEN, PREPARED_COMMIT)  # of ours nothing is prepared: the second is committed


class Progress:
    """One line on a terminal, or one line each time where it is none."""

    def __init__(self, what):
        self._what = what
        self._began = time.monotonic()

    def __call__(self, doing):
        """Say what is being done."""
        line = f"{time.monotonic() - self._began:6.0f} s  {self._what}: {doing}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{line}")
        elif " of " not in doing:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def tell(self, line):
        """Print a line that stays."""
        sys.stderr.write("\r\033[K" if sys.stderr.isatty() else "")
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def open_kafkas(cells: list[Cell], folder: Path, failures: Failures, progress: Progress) -> None:
    """Have Kafka write a directory with these cells, of one version and end, and stablelog open it."""
    data, seen, now_ms = _written(cells, folder, progress, state_partitions=STATE_PARTITIONS)
    progress("opening with stablelog")
    check(loaded(data), seen, now_ms, failures)


def keep(cells: list[Cell], folder: Path, failures: Failures, progress: Progress) -> None:
    """Write one of the directories that `make test` opens, and open it."""
    data, seen, now_ms = _written(cells, folder, progress, state_partitions=FEW_STATE_PARTITIONS)
    path = write_archive(data, cells, seen, now_ms)
    progress.tell(f"{path}: {path.stat().st_size} bytes")
    check(*read_archive(path), failures)


def _written(cells, folder, progress, *, state_partitions):
    seen = write_directory(folder, cells, state_partitions=state_partitions, progress=progress)
    now_ms = int(time.time() * 1000)
    progress("preparing")
    data = prepared_copy(folder / "data", folder / "prepared", cells)
    shutil.rmtree(folder / "data")
    return data, seen, now_ms


def main(arguments=None) -> int:
    """Run the matrix. Returns 0 if all held, 1 if a cell failed, 2 if Kafka cannot be run."""
    given = _parse(arguments)
    cells = [cell for cell in all_cells(tuple(given.kafka)) if _is_chosen(cell, given.only)]
    if given.write:
        steps = [("kept", keep, covering(cells, KEPT_STRENGTH))]
    else:
        steps = [("Kafka opens ours", run_back, [cell for cell in cells if cell.state in BACK_STATES])]
        if not given.back:
            steps.insert(0, ("stablelog opens Kafka's", open_kafkas, cells))
    logging.disable()
    began = time.monotonic()
    ran, failed = 0, 0
    for (word, step, all_of_it), version, end in itertools.product(steps, given.kafka, (KILLED, STOPPED)):
        chosen = [cell for cell in all_of_it if (cell.version, cell.end) == (version, end)]
        if not chosen:
            continue
        progress = Progress(f"{word}, {version}, {end}, {len(chosen)} cells")
        failures = Failures(progress.tell)
        with tempfile.TemporaryDirectory(prefix="matrix-") as temporary:
            try:
                step(chosen, Path(temporary), failures, progress)
            except apache_kafka.NotAvailableError as missing:
                progress.tell(f"Kafka {version} cannot be run: {missing}")
                return 2
        ran, failed = ran + len(chosen), failed + len(failures.by_cell)
        progress.tell(f"{word}, {version}, {end}: {len(chosen)} cells, {len(failures.by_cell)} failed")
        for cell, lines in failures.by_cell.items():
            progress.tell(f"FAILED {cell}: {len(lines)} findings, the first: {lines[0][:LINE_SIZE_MAX]}")
    sys.stdout.write(f"{ran} cells, {failed} failed, in {time.monotonic() - began:.0f} s\n")
    return min(failed, 1)


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.kafka_matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kafka", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD")
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(arguments)


def _is_chosen(cell: Cell, words) -> bool:
    """Whether all the words stand in the cell's name; one that stands for several parts of it has dashes."""
    return all(f"-{word}-" in f"-{str(cell).replace(' ', '-')}-" for word in words)


if __name__ == "__main__":
    sys.exit(main())
