"""Histories of a commit-ordered partition that seeds have drawn: all that it said is kept, and has to stay.

`test_view` proves that each record is read at its position. These files prove that nothing else has changed: the
bytes of each index file and each answer, what is asked of the disk, each lookup, cut and start. Sizes are small, so that
every limit is met. `REWRITE=1` writes what came instead of comparing; the diff is for reading. After the words of a line
stands a digest of what they do not say. `python -m tests.commit_order.test_drawn_histories` draws the files anew.
"""

import dataclasses
import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from stablelog.commit_order import (
    extent_lookup,
    extents,
    fetch_assembler,
    index_builder,
    last_commit,
    row_file,
    stored_view,
    view,
)
from stablelog.commit_order.copy_buffers import CopyBuffers
from stablelog.commit_order.last_commit import last_commit_sequence
from stablelog.commit_order.verify import verify_view
from stablelog.errors import StablelogError
from stablelog.log.model import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.time_lookup import look_up_newest, look_up_time
from stablelog.testing.sim_disk import SimFile
from tests.commit_order import test_view
from tests.commit_order.committed_log import DIRECTORY, NOW_MS, VIEW_FILES, Files, Log, set_long_count

DRAWN = Path(__file__).parent / "drawn"
SEEDS = range(10)
COMMANDS = 240
SMALL = (
    (extents, {"COPY_SIZE": 64, "ALONE_SIZE": 300, "GAP_SIZE_MAX": 200, "SHARED_SIZE_MAX": 900}),
    (row_file, {"TAIL_SIZE": 200}),
    (view, {"SEQUENTIAL_READERS_MAX": 3}),
    (stored_view, {"STEP_COUNT_MAX": 3}),
    (index_builder, {"INDEXES_OPEN": 2}),
    (fetch_assembler, {"SMALL_LENGTH_MAX": 500, "COPIED_SIZE_MAX": 2000, "PAGE_SIZE": 256}),
    (extent_lookup, {"ENTRIES_AT_ONCE": 4, "FIRST_AT_ONCE": 2, "LEAST_AT_ONCE": 2, "MOST_AT_ONCE": 5}),
    (last_commit, {"STEP_SIZE": 300}),
)


def make_small(patch):
    """Have every limit of the views met by a few records."""
    set_long_count(patch, 4)
    patch.setattr(fetch_assembler, "COPY_BUFFERS", CopyBuffers())
    for module, limits in SMALL:
        for name, limit in limits.items():
            patch.setattr(module, name, limit)


def digest(*contents):
    """A word for everything that is given."""
    return "#" + hashlib.sha256(repr(contents).encode()).hexdigest()[:6]


class History:
    """A log, and what is asked of its view. The commands are methods."""

    def __init__(self, patch):
        make_small(patch)
        self.log = Log()
        self.opened = Files(patch)
        self.asked = []
        self.files = {}
        for called in ("will_need", "read", "view"):
            self.note(patch, called, getattr(SimFile, called))

    def note(self, patch, called, method):
        """Remember each call of a method of files."""

        def noted(file, *range_):
            self.asked.append((called, self.opened.paths[file].name, range_))
            return method(file, *range_)

        patch.setattr(SimFile, called, noted)

    def begin(self, segment_bytes, index_interval_bytes):
        self.log = Log(
            segment_bytes=int(segment_bytes),
            index_interval_bytes=int(index_interval_bytes),
            file_delete_delay_ms=0,
        )

    def write(self, producer, count, size):
        self.log.append(int(producer), int(count), int(size))

    def plain(self, count):
        self.log.plain(int(count))

    def many(self, count):
        for _ in range(int(count)):
            self.log.plain()
            self.log.now_ms += 1

    def damage(self, place):
        """`damage 3`: the scrub has found a batch damaged; `damage -` : it was made whole."""
        segments = self.log.partition.segments()
        if place == "-":
            for segment in segments:
                segment.proof.damaged_batches = []
            return
        segment = segments[int(place) % len(segments)]
        batches = list(segment.walk(0))
        if batches:
            position, header = batches[int(place) % len(batches)]
            segment.add_damaged_batch(DamagedBatch(position, header.size, header.base_offset))

    def end(self, producer, outcome):
        self.log.end(int(producer), commit=outcome == "commit")

    def wait(self, ms):
        self.log.now_ms += int(ms)

    def leader(self, epoch):
        self.log.partition.leader_epoch = int(epoch)

    def sync(self):
        self.log.sync()
        return self.shown()

    def roll(self):
        self.log.partition.roll(self.log.now_ms)

    def restart(self, how):
        self.log.sync()
        leader_epoch = self.log.partition.leader_epoch
        self.log.partition.close(clean=how != "unclean")
        if how == "without-indexes":
            for name in [name for name in self.log.disk.list_dir(DIRECTORY) if ".commit" in name]:
                self.log.disk.remove(DIRECTORY / name)
        self.asked.clear()
        assert not self.opened.open_with(*VIEW_FILES), "a closed partition has no file open"
        last = f"{last_commit_sequence(self.log.disk, DIRECTORY)} {digest(self.asked)}"
        seen = []
        self.log.partition = self.log.open(clean=how != "unclean", progress=lambda *done: seen.append(done))
        self.log.partition.leader_epoch = leader_epoch
        return f"{self.shown()} last commit {last} progress {seen}"

    def fail(self, *calls):
        """`fail opening writing late`, `fail`: which calls of view files find no room from now on."""

        def fault(called, path):
            is_made = called == "opening" and not self.log.disk.exists(path)
            is_changed = called in calls and called != "opening"
            return (
                errno.ENOSPC
                if path.suffix in VIEW_FILES and called in calls and (is_made or is_changed)
                else None
            )

        self.log.disk.fault = fault if calls else None
        self.log.disk.fails_late = "late" in calls

    def delete(self, before):
        self.log.sync()
        return f"{self.log.partition.deletion.delete_records(int(before))} {self.shown()}"

    def retain(self, size):
        self.log.sync()
        partition = self.log.partition
        partition.config = dataclasses.replace(self.log.config, retention_bytes=int(size))
        partition.deletion.apply_retention(self.log.now_ms)
        partition.deletion.remove_deleted(self.log.now_ms)
        partition.config = self.log.config
        return self.shown()

    def read(self, start, size_max, *flags):
        self.asked.clear()
        found = self.log.partition.read(
            int(start), int(size_max), Isolation.READ_COMMITTED, at_least_one="none" not in flags
        )
        data = b"".join(found.buffers)
        pieces = [len(piece) for piece in found.buffers]
        told = digest(data, pieces, self.asked)
        return f"[{found.start_offset}, {found.end_offset}) {len(data)} bytes, asked {len(self.asked)} {told}"

    def uncommitted(self, start, size_max):
        found = self.log.partition.read(int(start), int(size_max), Isolation.READ_UNCOMMITTED)
        return f"[{found.start_offset}, {found.end_offset}) {digest(b''.join(found.buffers))}"

    def truncate(self, end):
        self.log.sync()
        self.log.partition.replication.truncate_to(int(end))
        test_view.History.forget_from(self, self.log.partition.end_offset)
        return self.shown()

    def time(self, ms):
        partition = self.log.partition
        told = []
        for isolation in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED):
            count = len(list(look_up_time(partition, NOW_MS + int(ms), isolation)))
            found = run_lookup(look_up_time(partition, NOW_MS + int(ms), isolation))
            newest = run_lookup(look_up_newest(partition, isolation))
            told.append(f"{found} in {count} steps, newest {newest}")
        return "; ".join(told)

    def cut(self, sequence):
        view = self.log.partition.view
        return f"{view.offset_after(int(sequence))}, removed {view.removed_sequence()}, torn {view.torn_sequence()}"

    def transactions(self, start, count, *flags):
        found = self.log.partition.view.transactions(int(start), int(count), with_outside="outside" in flags)
        return " ".join(
            f"{one.start}-{one.end}/{one.commit_sequence}/{one.time_ms - NOW_MS}" for one in found
        )

    def whole(self, position):
        return str(self.log.partition.view.whole_from(int(position)))

    def verify(self):
        found = list(verify_view(self.log.disk, DIRECTORY))
        return f"{[(one.path.name, one.message) for one in found]}"

    def shown(self):
        """Where the view stands, and which of its files have changed."""
        partition, view = self.log.partition, self.log.partition.view
        files = {
            name: digest(self.log.disk.read_bytes(DIRECTORY / name))
            for name in sorted(self.log.disk.list_dir(DIRECTORY))
            if Path(name).suffix in VIEW_FILES
        }
        changed = {name for name, _ in files.items() ^ self.files.items()}
        self.files = files
        counts = sorted(view.open_record_counts().items())
        return (
            f"view [{view.start_offset}, {view.end_offset}) latest {view.latest_sequence} needs {view.first_needed_offset()}, "
            f"log [{partition.start_offset}, {partition.end_offset}), {len(view.indexes)} indexes, {len(self.opened.open_with(*VIEW_FILES))} files, "
            f"failed {view.failure is not None}, open {counts}, files {len(changed)} {digest(sorted(files.items()))}"
        )

    def told(self, command):
        """What comes of a command."""
        verb, *words = command.split()
        try:
            said = getattr(self, verb)(*words)
        except StablelogError as error:
            said = f"{type(error).__name__}"
        return [said] if said else []


class Drawing:
    """Chooses what happens next."""

    def __init__(self, seed, history):
        self.chance = random.Random(seed)
        self.history = history
        self.seed = seed

    def first(self):
        return f"begin {(900, 2500, 6000, 1 << 20)[self.seed % 4]} {(200, 4096, 4096)[self.seed % 3]}"

    def exact_sizes(self, position):
        """Bytes of the batches from a position on, and one more and less."""
        try:
            found = self.history.log.partition.read(
                position, self.chance.choice((1, 900, 4000)), Isolation.READ_COMMITTED
            )
        except StablelogError:
            return []
        return [found.size + more for more in (0, 0, 0, -1, 1)]

    def next(self):
        chance, log = self.chance, self.history.log
        view, end = log.partition.view, log.partition.end_offset
        start = view.start_offset
        producer = chance.randint(1, 4)
        position = chance.randint(start, max(view.end_offset, start))
        some = [row[0] for row in log.written if start <= row[0] < view.end_offset]
        if some and chance.random() < 0.7:
            position = chance.choice(some) + chance.choice((0, 0, 0, -1, 1))
        sizes = [1, 77, 100, 300, 700, 1500, 4000, 1 << 20, *self.exact_sizes(position)]
        choices = [
            (
                30,
                lambda: (
                    f"write {producer} {chance.choice((1, 1, 2, 3))} {chance.choice((0, 0, 100, 220, 600))}"
                ),
            ),
            (6, lambda: f"plain {chance.choice((1, 1, 3))}"),
            (9, lambda: f"end {producer} {chance.choice(('commit', 'commit', 'commit', 'abort'))}"),
            (4, lambda: f"wait {chance.choice((1, 10, 500, -3))}"),
            (2, lambda: f"many {chance.choice((5, 9, 17))}"),
            (1, lambda: f"damage {chance.randrange(99)}"),
            (
                0.7 if any(one.proof.damaged_batches for one in log.partition.segments()) else 0,
                lambda: "damage -",
            ),
            (16, lambda: "sync"),
            (1.5, lambda: "roll"),
            (0.5, lambda: f"leader {log.partition.leader_epoch + 1}"),
            (1.2, lambda: f"restart {chance.choice(('clean', 'unclean', 'without-indexes'))}"),
            (
                0.8,
                lambda: (
                    f"fail {chance.choice(('opening', 'writing', 'truncating', 'removing', 'writing late', 'writing truncating late'))}"
                ),
            ),
            (2 if log.disk.fault else 0, lambda: "fail"),
            (0.8, lambda: f"delete {chance.randint(start, max(log.partition.high_watermark, start))}"),
            (0.5, lambda: f"retain {int(log.partition.size * chance.random())}"),
            (
                1,
                lambda: (
                    f"uncommitted {chance.randint(log.partition.start_offset, end)} {chance.choice(sizes)}"
                ),
            ),
            (0.4, lambda: f"truncate {chance.randint(max(start - 5, log.partition.start_offset), end)}"),
            (14, lambda: f"read {position} {chance.choice(sizes)}{' none' * (chance.random() < 0.2)}"),
            (
                4,
                lambda: (
                    f"time {chance.choice([-1, 0, 1, *(row[3] - NOW_MS + more for row in log.written for more in (0, 1))])}"
                ),
            ),
            (3, lambda: f"cut {chance.randint(-1, log.commit_sequence + 1)}"),
            (
                3,
                lambda: (
                    f"transactions {position} {chance.choice((1, 2, 5, 50))}{chance.choice(('', ' outside'))}"
                ),
            ),
            (2, lambda: f"whole {position}"),
            (1, lambda: "verify"),
            (0.2, lambda: f"read {end + chance.choice((0, 1))} 100"),
        ]
        known = [one for _, one in choices]
        return chance.choices(known, [weight for weight, _ in choices])[0]()


def came(commands):
    """Commands with what comes of them now."""
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        history = History(patch)
        for command in commands:
            lines += [f"> {command}", *history.told(command)]
        lines += [
            *history.told("fail"),
            *history.told("damage -"),
            *history.told("restart clean"),
            *history.told("verify"),
        ]
        log = history.log
        start = log.partition.visible_start(Isolation.READ_COMMITTED)
        assert log.read_all(start, 1 << 20) == log.expected()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(DRAWN.glob("*.txt")), ids=lambda path: path.stem)
def test_all_that_was_said_is_said_again(path):
    text = path.read_text()
    said = came([line[2:] for line in text.splitlines() if line.startswith("> ")])
    if os.environ.get("REWRITE"):
        path.write_text(said)
    assert said.splitlines() == text.splitlines()


def test_there_are_histories():
    assert len(list(DRAWN.glob("*.txt"))) >= 8


def main():
    """Draw every history anew."""
    DRAWN.mkdir(exist_ok=True)
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            history = History(patch)
            drawing = Drawing(seed, history)
            commands = [drawing.first()]
            history.told(commands[0])
            while len(commands) < COMMANDS:
                command = drawing.next()
                commands.append(command)
                history.told(command)
        (DRAWN / f"{seed}.txt").write_text(came(commands))


if __name__ == "__main__":
    main()
