"""One history: writers, deletions, crashes and readers by cut, all from one seed.

`python -m tests.cuts.history --seeds 0:10000` runs many and prints what they were.
"""

import argparse
import asyncio
import os
import random
import struct
import sys
import time
from collections import Counter
from types import SimpleNamespace

from kio.schema.errors import ErrorCode

from stablelog.batch.header import read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.broker.apis import delete_records, describe_cut
from stablelog.broker.durability import journal
from stablelog.errors import StablelogError
from stablelog.log.partition import Isolation
from stablelog.wire.extension.cut import DescribeCutRequest
from tests.cuts.model import Model
from tests.cuts.mutants import MUTANTS, applied
from tests.cuts.sim import CrashingDisk, SimBroker, SimLoop
from tests.cuts.writers import (
    GROUPS,
    Calls,
    GaveUpError,
    JointWriter,
    PlainWriter,
    Writer,
    client_of,
    targets_of,
)

LIFE_S = 0.35


class History:
    """All that comes from one seed."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.model = Model()
        self.disk = CrashingDisk()
        self.loop = SimLoop()
        self.value = 0
        self.counts = Counter()
        self.failures = []
        self.last_cuts = {}  # by group, (R, offsets) of the reader that goes from cut to cut
        self.groups = self.chance.choice((["", "other"], [""]))
        writers = self.chance.randint(2, 4)
        self.writers = [
            Writer(self, n, group=self.groups[n % len(self.groups)], version=self.chance.choice((3, 3, 5)))
            for n in range(writers)
        ]
        self.writers += [
            JointWriter(self, n, group=self.chance.choice(self.groups))
            for n in range(self.chance.choice((0, 1, 1)))
        ]
        self.writers += [PlainWriter(self) for _ in range(self.chance.choice((0, 1)))]
        self.deletes = self.chance.random() < 0.5
        self.topic_configs = {
            "stablelog.order": "commit",
            "segment.bytes": str(self.chance.choice((1024, 1500, 4000, 1 << 20))),
            "file.delete.delay.ms": "0",
        }
        if self.deletes:
            self.topic_configs["retention.bytes"] = "3000"

    def batch(self, count, producer, sequence):
        """A batch of values that no other has: (its CRC, its bytes)."""
        self.value += count
        size = self.chance.choice((0, 0, 0, 200, 700))
        batch = encode_batch(
            [Record(0, 0, None, b"%d" % (self.value - at) + bytes(size)) for at in range(count)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=producer[0] >= 0,
        )
        return read_header(batch).crc, batch

    # -- lives -------------------------------------------------------------------------------------------------

    def run(self):
        """Live, crash, and live again; at the end everything settles."""
        asyncio.set_event_loop(None)
        try:
            for _ in range(self.chance.randint(1, 3)):
                self._live(self._life)
                self._crash()
            self._live(self._last_life)
        finally:
            self.loop.close()
        if self.failures:
            raise self.failures[0]
        self.counts["histories"] += 1
        self.counts["cuts"] += self.model.cut_count
        self.counts["transactions"] += len(self.model.txns)
        self.counts["committed"] += sum(txn.acked for txn in self.model.txns)
        self.counts["committed without an answer"] += sum(
            bool(txn.found) and not txn.acked for txn in self.model.txns
        )
        return self.counts

    def _live(self, life):
        """Run until it ends or the machine stops; nobody outlives it."""
        loop = self.loop
        self.broker = None
        self.living = True
        self.disk.on_crash = self._stop
        loop.set_exception_handler(self._note_failure)
        main = loop.create_task(life())
        main.add_done_callback(lambda _main: self._stop())
        loop.run_forever()
        self.living = False
        if main.done() and not self.disk.stopped and main.exception() is not None:
            self.failures.append(main.exception())
        self.disk.stopped = True
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        for handle in loop._scheduled:
            handle.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop._ready.clear()
        if self.failures:
            raise self.failures[0]

    def _note_failure(self, _loop, context):
        failure = context.get("exception")
        if failure is not None and not self.disk.stopped:  # what comes after the crash, nobody has seen
            self.failures.append(failure)
            self._stop()

    def _stop(self):
        if self.living:
            self.loop.stop()

    def _start(self):
        """A task for each who has something to do with the broker; whoever fails ends the history."""
        self.broker = SimBroker(self.loop, self.disk, self.chance)
        for group in self.groups:
            for name, count in GROUPS[group].items():
                if self.broker.topics.get(name) is None:
                    of_group = {"stablelog.group": group} if group else {}
                    self.broker.topic_files.create(name, count, self.topic_configs | of_group)

    def _task(self, coroutine):
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._task_done)

    def _task_done(self, task):
        if not task.cancelled() and task.exception() is not None:
            self._note_failure(self.loop, {"exception": task.exception()})

    async def _life(self):
        if self.chance.random() < 0.6:
            self.disk.crash_at = (
                self.disk.steps + self.chance.choice((60, 400, 1500)) * self.chance.randint(1, 100) // 100 + 1
            )
        self._start()
        calls = Calls(self.broker, self.chance)
        self._task(self._open_rest())
        for writer in self.writers:
            self._task(writer.run(calls))
        self._task(self._keep_house())
        self._task(self._read_cuts())
        await asyncio.sleep(LIFE_S * self.chance.random())

    async def _last_life(self):
        self.disk.crash_at = None
        self._start()
        await self._open_rest()
        calls = Calls(self.broker, self.chance)
        for writer in self.writers:
            if isinstance(writer, Writer):
                await asyncio.sleep(0)
                try:
                    await writer._settle_last(calls)
                except GaveUpError:
                    self.counts["refused after a crash"] += 1
        await self._settled()
        for group in self.groups:
            answer = await self._cut(group)
            assert answer.error_code is ErrorCode.none, answer.error_message
            assert answer.commit_sequence == answer.last_commit_sequence, "R comes to the last commit"
            assert answer.holders == ()
            self._take(group, answer)
        self._check_views()
        self.model.check_end()
        self._rebuild_indexes()

    def _crash(self):
        """What the next start finds."""
        if self.broker is not None:
            for target, partition in self._partitions().items():
                partition.availability.is_writing = (
                    False  # the machine stopped in an append: what was readable is looked at all the same
                )
                self.model.learn(target, partition)
        kind = self.chance.choice(("killed", "power", "power"))
        self.counts[kind] += 1
        self.disk = self.disk.killed() if kind == "killed" else self.disk.crash(self.chance)
        if self.chance.random() < 0.3:
            self._lose_indexes()

    def _lose_indexes(self):
        """Commit indexes are removed or damaged, any of them."""
        self.counts["indexes lost"] += 1
        for path in list(self.disk.files()):
            if ".commit" in path.name and self.chance.random() < 0.5:
                content = self.disk.content(path)
                if content and self.chance.random() < 0.3:
                    content[self.chance.randrange(len(content))] ^= 1
                else:
                    self.disk.lose(path)

    def _rebuild_indexes(self):
        """All positions are as they were when every index is made anew from the log."""
        for target, partition in self._partitions().items():
            partition.close(clean=False)
            for name in self.disk.list_dir(partition.directory):
                if ".commit" in name:
                    self.disk.remove(partition.directory / name)
            topic = self.broker.topics.get(target[0])
            del self.broker.partitions.of_topic(topic)[target[1]]
            anew = self.broker.open_one(topic, target[1])
            self.model.reopened(target, anew)
            self.model.check_view(target, anew, self.chance)

    # -- beside the writers ------------------------------------------------------------------------------------

    def _partitions(self, group=None):
        """All that are open, or those of a group."""
        return {
            (topic.name, index): partition
            for topic in self.broker.topics
            if any(topic.name in GROUPS[name] for name in ([group] if group is not None else self.groups))
            for index, partition in self.broker.partitions.of_topic(topic).items()
        }

    async def _open_rest(self):
        """Partitions are recovered one by one, in any order and slowly: their markers wait."""
        closed = self.broker.closed_partitions()
        for target, partition in self._partitions().items():
            self.model.learn(target, partition)
        self.chance.shuffle(closed)
        for topic, index in closed:
            await asyncio.sleep(self.chance.choice((0, 0, 0.002, 0.05)))
            partition = self.broker.open_one(topic, index)
            self.model.reopened((topic.name, index), partition)
            self.model.check_view((topic.name, index), partition, self.chance)
            self.broker.partition_repair.partition_opened(partition)

    async def _settled(self):
        """Until everything is durable, and every transaction has its end."""
        flush = self.broker.flush
        for _ in range(4):
            waits = [
                flush.durable_future(partition, partition.end_offset) for partition in self.broker.partitions
            ]
            await asyncio.gather(*(wait for wait in waits if wait is not None))
            await asyncio.sleep(0.01)
            self._tick()

    def _tick(self):
        for transactions in self.broker.transaction_groups():
            transactions.apply(transactions.coordinator.abort_overdue(self.broker.now_ms()))
            transactions.apply(transactions.coordinator.forget_expired(self.broker.now_ms()))

    async def _keep_house(self):
        chance, broker = self.chance, self.broker
        while True:
            await asyncio.sleep(chance.random() * 0.06)
            self._tick()
            if chance.random() < 0.3:
                for transactions in broker.transaction_groups():
                    await broker.maintenance.trim(
                        transactions.journal, transactions.coordinator.table.live_state
                    )
            if self.deletes and chance.random() < 0.5:
                await self._delete()
            if chance.random() < 0.1:
                chance.choice(list(broker.partitions)).roll(broker.now_ms())

    async def _delete(self):
        partitions = self._partitions()
        if not partitions:
            return
        target = self.chance.choice(list(partitions))
        partition = partitions[target]
        self.model.learn(target, partition)
        if self.chance.random() < 0.5:
            self.counts["deletions"] += 1
            start = partition.visible_start(Isolation.READ_COMMITTED)
            offset = self.chance.randint(start, max(start, partition.high_watermark))
            await delete_records.handle(
                self.broker,
                SimpleNamespace(
                    topics=[
                        SimpleNamespace(
                            name=target[0],
                            partitions=[SimpleNamespace(partition_index=target[1], offset=offset)],
                        )
                    ]
                ),
                client_of(0),
            )
        else:
            self.counts["segments deleted"] += partition.deletion.apply_retention(self.broker.now_ms())
            partition.deletion.remove_deleted(self.broker.now_ms())
            self.broker.topic_files.checkpoints.log_starts.write_if_changed()
        self.model.check_view(target, partition, self.chance)

    async def _cut(self, group, commit_sequence=-1, topics=None):
        return await describe_cut.handle(
            self.broker,
            DescribeCutRequest(
                group=group, commit_sequence=commit_sequence, topics=tuple(topics or GROUPS[group])
            ),
            client_of(0),
        )

    async def _read_cuts(self):
        """Readers that go from cut to cut, one in each group, and now and then ask for one that is past."""
        while True:
            await asyncio.sleep(self.chance.random() * 0.04)
            for group in self.groups:
                await self._look(group)
            if self.chance.random() < 0.2:
                self._check_views()

    async def _look(self, group):
        number = -1
        if (
            self.chance.random() < 0.3
        ):  # by number: one that was told before, or one that may be resolved by now
            told = self.last_cuts[group][0] if group in self.last_cuts else 0
            number = self.chance.randint(0, self.chance.choice((told, self.broker.durable_sequence(group))))
        topics = None if self.chance.random() < 0.7 else [self.chance.choice(list(GROUPS[group]))]
        answer = await self._cut(group, number, topics)
        if answer.error_code is not ErrorCode.none:
            is_waiting = self.broker.closed_partitions() or number > self.model.counted[group]
            assert is_waiting, answer.error_message
            return
        held = [holder for holder in answer.holders if holder.commit_sequence <= answer.commit_sequence]
        assert not held, f"R={answer.commit_sequence}, held by {held}"
        if number < 0:
            self._take(group, answer)
        elif number <= self.model.counted[group]:
            self.model.check_past_cut(group, number, _offsets(answer), self._partitions(group))
        else:
            self.model.check_cut(group, number, _offsets(answer), self._partitions(group))

    def _take(self, group, answer):
        """A cut at the R of now: check it, and read from the last one to it."""
        model, offsets, partitions = self.model, _offsets(answer), self._partitions(group)
        sequence = answer.commit_sequence
        model.check_cut(group, sequence, offsets, partitions)
        decided = self.broker.durable_sequence(group)
        assert bool(answer.holders) == (sequence < decided), (
            f"R={sequence} of {decided}, held by {answer.holders}"
        )
        others = {holder.topic for holder in answer.holders} - set(GROUPS[group])
        assert not others, f"R={sequence} of group {group!r} waits for {others}"
        before = self.last_cuts.get(group, (0, dict.fromkeys(offsets, 0)))
        if len(offsets) < len(targets_of(group)):
            return
        self.last_cuts[group] = sequence, offsets
        starts = {t: p.visible_start(Isolation.READ_COMMITTED) for t, p in partitions.items()}
        if any(before[1][target] < starts[target] for target in offsets):
            self.counts["readers overtaken by deletion"] += 1
            return
        self.counts["slices"] += 1
        model.check_between(before, self.last_cuts[group], partitions, self.chance)

    def _check_views(self):
        for target, partition in self._partitions().items():
            self.model.check_view(target, partition, self.chance)


def _offsets(answer):
    return {(t.name, p.partition_index): p.offset for t in answer.topics for p in t.partitions}


def run(seed):
    """One history. Raises what it finds."""
    size_min, journal.CHECKPOINT_SIZE_MIN = journal.CHECKPOINT_SIZE_MIN, 3000
    try:
        return History(seed).run()
    except BaseException as failure:
        failure.add_note(f"history {seed}: python -m tests.cuts.history --seeds {seed}:{seed + 1}")
        raise
    finally:
        journal.CHECKPOINT_SIZE_MIN = size_min


def run_many(seeds):
    """Run them, and print what they were. Returns whether one failed."""
    counts, failed = Counter(), []
    began, began_cpu = time.perf_counter(), time.process_time()
    for seed in seeds:
        try:
            counts += run(seed)
        except Exception as failure:
            failed.append(seed)
            print(f"seed {seed}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
            if len(seeds) == 1:
                raise
        if seed % 100 == 99:
            print(f"... to seed {seed}", flush=True)
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(
        f"seeds {seeds[0]} to {seeds[-1]}: {len(failed)} failed {failed[:20]}; {took:.0f} s, {cpu:.0f} s of CPU, "
        f"{len(seeds) / cpu:.1f} histories a CPU second\n"
        + ", ".join(f"{count} {what}" for what, count in counts.most_common())
    )
    return bool(failed)


def hunt(names, seeds):
    """Make each fault in turn, until a history finds it. Returns whether one was not found."""
    missed = False
    for mutant in MUTANTS:
        if mutant.__name__ not in names:
            continue
        with applied(mutant):
            found = next((found for seed in seeds if (found := _finds(seed))), None)
        print(f"{mutant.__name__}: {found or 'NOT FOUND'}", flush=True)
        missed |= found is None
    return missed


def _finds(seed):
    try:
        run(seed)
    except (AssertionError, StablelogError, OSError, struct.error) as failure:
        return f"found by seed {seed}: {type(failure).__name__}: {str(failure)[:100]}"
    return None


def main():
    """Run many, or hunt for mutants."""
    if (
        os.environ.get("PYTHONHASHSEED") != "0"
    ):  # the order of a set of partitions says which is written first
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.cuts.history", *sys.argv[1:]])
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    parser.add_argument("--mutants", nargs="*", help="names of tests/cuts/mutants.py")
    arguments = parser.parse_args()
    seeds = range(*map(int, arguments.seeds.split(":")))
    return hunt(arguments.mutants, seeds) if arguments.mutants else run_many(seeds)


if __name__ == "__main__":
    sys.exit(main())
