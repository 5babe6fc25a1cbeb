"""One history of a commit-ordered partition and its retention, all from one seed.

Transactions of any length, prepared ones among them, overlap, end and are left open; records stand between them. Retention by
size and by time, DeleteRecords, copies to an object store, local retention, restarts, power losses and lost indexes come
between. Then a reader begins at every position of the view: its fetch goes on with the next commit that is left, or ends at the
end of the view. Fetch by fetch, each reader therefore gets every later commit, and its lag becomes 0.

`python -m tests.commit_order.retention_history --seeds 0:10000` runs many and prints what they were.
"""

import argparse
import dataclasses
import random
import sys
import time
from collections import Counter

import pytest

from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.model import Isolation
from tests.commit_order import test_view
from tests.commit_order.committed_log import Log
from tests.commit_order.test_tiered_commit_order import TieredLog

STEPS = 60
LONG = 5  # the producer whose transactions are prepared, and seldom end
SIZES = (0, 0, 0, 100, 700)
READS = (1, 300, 2_000, 1 << 20)


class History:
    """What comes from one seed.

    Args:
        seed: the seed.
        has_tiers: whether some seeds have a remote tier.
    """

    def __init__(self, seed, *, has_tiers=True):
        self.chance = chance = random.Random(seed)
        self.counts = Counter()
        self.is_tiered = chance.random() < 0.3 and has_tiers
        self.counts["tiered histories"] += self.is_tiered
        limits = {}
        if chance.random() < 0.6:
            limits["retention_bytes"] = chance.choice((0, 800, 2_000, 5_000))
        if chance.random() < 0.5:
            limits["retention_ms"] = chance.choice((0, 20, 100))
        make = TieredLog if self.is_tiered else Log
        self.log = make(
            segment_bytes=chance.choice((300, 700, 2_000)),
            file_delete_delay_ms=chance.choice((0, 50)),
            index_interval_bytes=chance.choice((1, 4_096)),
            **limits,
        )
        self.start = 0  # of the view, at the last look
        self.deleted_to = 0  # DeleteRecords has moved the start up to here

    def run(self):
        """Do all steps. Raises AssertionError if a reader or the log is not as it should be."""
        steps = (
            (30, self.write),
            (14, self.end),
            (4, self.plain),
            (8, self.wait),
            (6, self.retain),
            (1.5, self.delete),
            (2, self.roll),
            (1.5, self.restart),
            (1, self.lose_power),
            (0.5, self.lose_indexes),
            (4 if self.is_tiered else 0, self.copy),
            (1 if self.is_tiered else 0, self.delete_remote),
            (0 if self.is_tiered else 0.5, self.trim),
        )
        works, weights = [work for _, work in steps], [weight for weight, _ in steps]
        for work in self.chance.choices(works, weights, k=STEPS):
            self.counts[work.__name__] += 1
            work()
        self.retain()
        for producer in sorted(self.log.open_records):
            self.log.end(producer, commit=self.chance.random() < 0.8)
        self.retain()
        self.check()
        return self.counts

    # -- steps -------------------------------------------------------------------------------------------------

    def write(self):
        producer = self.chance.choice((1, 2, 3, LONG))
        self.log.append(producer, self.chance.choice((1, 1, 2, 4)), self.chance.choice(SIZES))

    def end(self):
        open_ones = sorted(self.log.open_records.keys() - ({LONG} if self.chance.random() < 0.7 else set()))
        if open_ones:
            self.log.end(self.chance.choice(open_ones), commit=self.chance.random() < 0.8)

    def plain(self):
        self.log.plain(self.chance.choice((1, 3)))

    def wait(self):
        self.log.now_ms += self.chance.choice((1, 10, 40))

    def roll(self):
        self.log.partition.roll(self.log.now_ms)

    def retain(self):
        if self.chance.random() < 0.8:
            self.log.sync()
        before = self.visible()
        self.counts["segments"] += self.answer(
            lambda: self.log.partition.deletion.apply_retention(self.log.now_ms)
        )
        self.log.partition.deletion.remove_deleted(self.log.now_ms)
        self.check_limits(before)
        self.check()

    def delete(self):
        self.log.sync()
        partition = self.log.partition
        start = partition.visible_start(Isolation.READ_COMMITTED)
        before = self.chance.randint(start, max(partition.high_watermark, start))
        self.deleted_to = self.answer(lambda: partition.deletion.delete_records(before))
        assert self.deleted_to >= before
        self.check()

    def restart(self):
        self.log.sync()
        self.log.reopen(clean=self.chance.random() < 0.5)
        self.check()

    def lose_power(self):
        """Nothing that is durable is lost; of the rest, any part."""
        durable = self.log.partition.high_watermark
        self.log.disk = self.log.disk.crash(self.chance)
        self.log.partition = self.log.open(clean=False)
        assert self.log.partition.high_watermark >= durable
        test_view.History.forget_from(self, self.log.partition.end_offset)
        self.check()

    def lose_indexes(self):
        self.log.sync()
        self.log.lose_indexes()
        self.check()

    def copy(self):
        """Copy what can be copied, and keep none, some or all of it on the local disk."""
        self.log.sync()
        self.log.copy()
        left = self.chance.choice((0, 0, 1_000, -1))
        config = dataclasses.replace(
            self.log.partition.config, local_retention_ms=-1, local_retention_bytes=left
        )
        self.log.partition.config = config
        if self.chance.random() < 0.3:
            self.log.loaded.known.clear()
        self.check()

    def delete_remote(self):
        self.log.sync()
        self.answer(self.log.partition.deletion.delete_remote)
        self.deleted_to = max(self.deleted_to, self.log.partition.view.start_offset)
        self.check()

    def trim(self):
        """Delete segments as a restore may leave them out: transactions that were committed are torn."""
        self.log.sync()
        first_open = min((rows[0][0] for rows in self.log.open_records.values()), default=1 << 62)
        bases = [one.base_offset for one in self.log.partition.segments()]
        count = sum(base <= first_open for base in bases)
        if count > 1:
            self.log.tear_transactions(self.chance.randrange(1, count))
        self.check()

    def answer(self, call):
        """What a call returns, when all that it needs is loaded."""
        return self.log.loading(call) if self.is_tiered else call()

    # -- checks ------------------------------------------------------------------------------------------------

    def visible(self):
        """All that a reader of the view can get: (position, payload, first offset, time, commit sequence) of each."""
        start = self.log.partition.visible_start(Isolation.READ_COMMITTED)
        durable = self.log.partition.high_watermark
        return [
            row
            for row in sorted(self.log.written)
            if start <= row[0] < durable and (row[4] < 0 or row[2] >= self.log.torn_before)
        ]

    def check_limits(self, before):
        """A pass of retention removes what the limits exceed, and nothing else."""
        partition, view = self.log.partition, self.log.partition.view
        config = partition.config
        left = {row[0] for row in self.visible()}
        gone = [row for row in before if row[0] not in left]
        if config.retention_bytes < 0 and config.retention_ms < 0:
            assert not gone
        if config.retention_bytes < 0:
            assert all(row[3] < self.log.now_ms - config.retention_ms for row in gone)
        if config.retention_ms < 0 and gone and not self.is_tiered:
            kept = sum(one.size for one in partition.segments() if one.base_offset >= view.start_offset)
            assert kept >= config.retention_bytes
        if not self.is_tiered and partition.high_watermark == partition.end_offset:
            needed = [view.start_offset, *(rows[0][0] for rows in self.log.open_records.values())]
            needed += [max(row[2], self.log.log_start) for row in self.log.written if row[0] >= self.start]
            first, *others = partition.segments()
            is_held = not others or not first.durable
            assert is_held or first.end_offset > min(needed), "the first segment is needed by nothing"

    def check(self):
        """A fetch from every position of the view goes on with the next record that is left, up to the end."""
        partition = self.log.partition
        start, end = partition.visible_start(Isolation.READ_COMMITTED), partition.last_stable_offset
        assert start >= self.start, "the start of the view moved back"
        assert start >= self.deleted_to
        self.start = start
        rows = [(row[0], row[1]) for row in self.visible()]
        assert not rows or rows[-1][0] < end
        place = 0
        for position in range(start, end + 1):
            while place < len(rows) and rows[place][0] < position:
                place += 1
            self.check_fetch(position, end, rows[place:])
        if start:
            self.check_refused(start - 1)
        self.check_removed()
        self.counts["fetches"] += end + 1 - start

    def check_fetch(self, position, end, left):
        records, headers = self.fetched(position, self.chance.choice(READS))
        if position == end:
            assert not headers, "there is nothing at the end"
            return
        assert headers, f"a fetch at {position} is empty, before the end {end}"
        reached = headers[-1].next_offset
        assert headers[0].next_offset > position, "the first batch holds the position, or is a later one"
        assert reached <= end
        expected = [row for row in left[: len(records) + 1] if row[0] < reached]
        assert [row for row in records if row[0] >= position] == expected, f"at {position}"

    def fetched(self, position, size_max):
        """(position, payload) of the records of a fetch, and the headers of its batches."""
        return self.log.fetched(position, size_max)

    def check_refused(self, position):
        with pytest.raises(OffsetOutOfRangeError, match=f"the positions {self.start} to "):
            self.log.read(position, 1)

    def check_removed(self):
        """A reader of cuts is told of every commit that is gone, and of none that is left."""
        durable = self.log.partition.high_watermark
        commits = {row[4] for row in self.log.written if row[4] >= 0 and row[0] < durable}
        gone = max(commits - {row[4] for row in self.visible()}, default=-1)
        left = min((sequence for sequence in commits if sequence > gone), default=None)
        removed = self.answer(self.log.partition.view.removed_sequence)
        if removed is None:
            assert left is None
            return
        assert removed >= gone
        assert left is None or removed < left


def run(seed):
    """One history. Raises what it finds."""
    try:
        return History(seed).run()
    except BaseException as failure:
        failure.add_note(
            f"history {seed}: python -m tests.commit_order.retention_history --seeds {seed}:{seed + 1}"
        )
        raise


def run_many(seeds):
    """Run them, and print what they were. Returns the seeds of those that failed."""
    counts, failed = Counter(), []
    began = time.process_time()
    for seed in seeds:
        try:
            counts += run(seed)
        except Exception as failure:
            failed.append(seed)
            print(f"seed {seed}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
            if len(seeds) == 1:
                raise
    took = time.process_time() - began
    told = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    print(f"seeds {seeds[0]} to {seeds[-1]}: {len(failed)} failed {failed[:20]}; {took:.0f} s of CPU; {told}")
    return failed


def main():
    """Run many."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    seeds = range(*map(int, parser.parse_args().seeds.split(":")))
    return bool(run_many(seeds))


if __name__ == "__main__":
    sys.exit(main())
