"""Both native clients through kills, stops and a network that does harm, with consume-transform-produce in the mix.

python -m tests.chaos.client_rounds --face threads|asyncio [--seed FIRST] [--rounds N] [--keep DIR]

In each round, processes write transactions to a topic (client_writer.py), and members of a group copy the topic (the
program of docs/reference/client.md). All requests go through two proxies: one loses, duplicates, delays and fails requests, and one
cuts connections after any byte. Meanwhile the broker is killed and stopped, writers and copiers are killed and stopped,
and copiers join and leave. Then the harm ends, the writers end, and the oracle compares what each writer was told with what
a reader of committed records sees:

- A transaction that was committed is there once, each record at the position of its future. One that was aborted is not
  there. One whose writer was killed before it was told is there as a whole or not at all.
- The copy has each committed record once. The records of a key are in order.
- No process has raised an error that a program does not expect.

A round depends on its seed and on the time that things take. A round that was not right keeps its files in DIR. To go on
after an interruption, begin with the seed behind the last line.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import stablelog
from stablelog.testing.fault_proxy import FaultProxy
from tests.chaos.byte_proxy import ByteProxy
from tests.chaos.client_writer import KEYS
from tests.client.transactions import visible
from tests.waiting import until

PARTITIONS, SESSION_S = 3, 1.5
PATIENCE_S = 180
STEPS = 15
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": int(1000 * SESSION_S),
    "group.initial.rebalance.delay.ms": 0,
}
APIS = (
    *(
        "Metadata",
        "FindCoordinator",
        "InitProducerId",
        "Produce",
        "Produce",
        "CommitJoint",
        "CommitJoint",
        "EndTxn",
    ),
    *("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "TxnOffsetCommit", "Fetch", "OffsetFetch"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupHeartbeat", "ListOffsets", "DescribeCommits"),
)
RETRIABLE = {
    "Produce": "NOT_LEADER_OR_FOLLOWER",
    "Fetch": "NOT_LEADER_OR_FOLLOWER",
    "ListOffsets": "NOT_LEADER_OR_FOLLOWER",
    "InitProducerId": "COORDINATOR_LOAD_IN_PROGRESS",
    "EndTxn": "CONCURRENT_TRANSACTIONS",
    "TxnOffsetCommit": "COORDINATOR_LOAD_IN_PROGRESS",
    "OffsetFetch": "COORDINATOR_LOAD_IN_PROGRESS",
    "ConsumerGroupHeartbeat": "COORDINATOR_LOAD_IN_PROGRESS",
}


class Processes:
    """The processes of one kind.

    Attributes:
        running: those that were not killed.
        logs: the standard output and error of each.
    """

    def __init__(self, directory, kind, words):
        self._directory, self._kind, self._words = directory, kind, words
        self.running, self.logs = [], []

    def start(self):
        name = f"{self._kind}{len(self.logs)}"
        path = self._directory / f"{name}.out"
        with path.open("wb") as log:
            words = [sys.executable, "-m", *self._words(name)]
            self.running.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log))
        self.logs.append(path)

    def kill(self, process):
        self.running.remove(process)
        process.kill()
        process.wait()
        process.stdin.close()

    def kill_all(self):
        for process in list(self.running):
            self.kill(process)

    def end(self):
        """End the processes in order."""
        for process in self.running:
            process.stdin.close()
        for process in self.running:
            process.wait(PATIENCE_S)


class Round:
    """One round: a broker, its proxies, writers and copiers."""

    def __init__(self, face, seed, directory, steps):
        self.chance = random.Random(f"round {seed} {face}")
        self.directory, self.steps = directory, steps
        self.order = self.chance.choice(("offset", "commit"))
        self.source, self.target = f"{self.order}-source", f"{self.order}-target"
        self.counts = Counter()
        self.findings = []
        self.faults = FaultProxy()
        self.bytes = ByteProxy(self.faults.port, seed)
        self.broker = stablelog.serve(
            directory / "data",
            settings=SETTINGS | {"advertised.listeners": f"PLAINTEXT://{self.bytes.bootstrap}"},
        )
        to = self.bytes.bootstrap
        self.writers = Processes(
            directory,
            "writer",
            lambda name: (
                "tests.chaos.client_writer",
                to,
                face,
                self.source,
                name,
                f"{seed}",
                self.notes_of(name),
            ),
        )
        self.copiers = Processes(
            directory,
            "copier",
            lambda _: ("tests.client.copier", to, self.source, self.target, "group", face),
        )

    def notes_of(self, name):
        return f"{self.directory / name}.json"

    def run(self):
        try:
            with self.broker:
                self.faults.target_port = self.broker.port
                self.begin()
                self.harm()
                self.heal()
                self.judge()
        finally:
            self.writers.kill_all()
            self.copiers.kill_all()
            self.bytes.close()
            self.faults.close()

    def begin(self):
        with stablelog.connect(f"127.0.0.1:{self.broker.port}", deadline=60) as client:
            for topic in (self.source, self.target):
                order = {"stablelog.order": self.order}
                client.admin.topics.create(topic, partitions=PARTITIONS, configs=order)
        for kind in (self.writers, self.copiers):
            kind.start()
            kind.start()
        until(
            lambda: seen(f"127.0.0.1:{self.broker.port}", self.target),
            "a record is copied",
            patience_s=PATIENCE_S,
            pause_s=0.1,
        )

    def harm(self):
        self.bytes.harm()
        for _ in range(self.steps):
            if self.chance.random() < 0.7:
                self.request_fault()
            time.sleep(self.chance.uniform(0.05, 0.5))
            kinds = ("nothing", "kill broker", "stop broker", "kill writer", "kill copier", "stop copier")
            kind = self.chance.choices((*kinds, "other copiers", "cut"), (4, 2, 2, 1, 1, 1, 1, 1))[0]
            self.counts[kind] += 1
            self.disturb(kind)

    def request_fault(self):
        api, faults = self.chance.choice(APIS), self.faults.faults
        count = self.chance.randint(1, 3)
        kind = self.chance.choice(("drop", "lose", "duplicate", "delay", "fail"))
        if kind == "delay":
            faults.delay(api, self.chance.uniform(0, 1), count=count)
        elif kind == "duplicate":
            faults.duplicate(api, count=count)
        elif kind == "fail" and api in RETRIABLE:
            faults.fail(api, RETRIABLE[api], count=count)
        else:
            faults.drop(api, count=count, is_delivered=kind == "drop")

    def disturb(self, kind):
        if kind == "kill broker":
            self.broker.kill()
            self.broker.start()
        elif kind == "stop broker":
            self.stop(self.broker.pid, self.chance.uniform(0.1, 1.5))
        elif kind == "kill writer":
            self.replace(self.writers)
        elif kind == "kill copier":
            self.replace(self.copiers)
        elif kind == "stop copier":  # perhaps until the group has replaced it
            self.stop(self.chance.choice(self.copiers.running).pid, SESSION_S * self.chance.uniform(0.2, 1.5))
        elif kind == "other copiers" and len(self.copiers.running) < 3:
            self.copiers.start()
        elif kind == "other copiers":
            self.copiers.kill(self.copiers.running[0])
        elif kind == "cut":
            self.faults.disconnect()

    def replace(self, processes):
        processes.kill(self.chance.choice(processes.running))
        processes.start()

    def stop(self, process_id, seconds):
        os.kill(process_id, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process_id, signal.SIGCONT)

    def heal(self):
        """End the harm, and let the writers end in order."""
        self.bytes.heal()
        self.faults.faults.clear()
        self.faults.disconnect()
        self.writers.end()

    def judge(self):
        notes = [
            (path.stem, json.loads(line))
            for path in sorted(self.directory.glob("writer*.json"))
            for line in path.open("rb")
        ]
        for name, note in notes:
            self.counts.update(doubts="doubt" in note, cancelled="cancelled" in note)
            if "finding" in note:
                self.findings.append(f"{name}: {note['finding']}")
        port = f"127.0.0.1:{self.broker.port}"

        def is_copied():
            return len(seen(port, self.target)) >= len(seen(port, self.source))

        with stablelog.connect(port, deadline=PATIENCE_S) as client:
            until(
                lambda: self.copiers_live() and not open_transactions(client) and is_copied(),
                lambda: (
                    f"the transactions {open_transactions(client)} are open, or the copy has "
                    f"{len(seen(port, self.target))} of {len(seen(port, self.source))} records"
                ),
                patience_s=PATIENCE_S,
                pause_s=0.2,
            )
        written, copied = seen(port, self.source), seen(port, self.target)
        told = outcomes(notes)
        self.counts.update(transactions=len(told), records=len(written))
        self.counts.update(committed=sum(one.end == "committed" for one in told))
        self.findings += wrong_outcomes(told, written)
        self.findings += wrong_copy(written, copied)
        for path in self.copiers.logs:
            self.judge_copier(path.read_text())

    def copiers_live(self):
        """Start a copier again that has ended because no broker answered in time; `judge_copier` judges each end."""
        for process in list(self.copiers.running):
            if process.poll() is not None:
                self.copiers.kill(process)
                self.copiers.start()
        return True

    def judge_copier(self, said):
        self.counts["readers that went back"] += said.count("goes back")
        if "Traceback" in said:
            self.counts["copiers ended"] += 1
            if not said.splitlines()[-1].startswith("stablelog.errors.UnavailableError"):
                self.findings.append(said)


def seen(bootstrap, topic):
    """What a reader of committed records sees: {position: value}."""
    return {(*at,): value.decode() for at, value in visible(bootstrap, topic, deadline_s=PATIENCE_S).items()}


def open_transactions(client):
    states = ("Ongoing", "PrepareCommit", "PrepareAbort")
    return [one for one in client.admin.transactions.list() if one.state in states]


@dataclass
class Told:
    """What a writer was told of a transaction.

    Attributes:
        name: the writer, and the number of the transaction.
        values: its records.
        end: committed, aborted, or None if the writer was killed before.
        positions: of the records, in their order.
    """

    name: str
    values: list
    end: str | None = None
    positions: list = field(default_factory=list)


def outcomes(notes):
    found = {}
    for writer, note in notes:
        if "values" in note:
            name = f"{writer}, transaction {note['txn']}"
            found[writer, note["txn"]] = Told(name, note["values"])
        elif "end" in note:
            told = found[writer, note["txn"]]
            told.end, told.positions = note["end"], [(*one,) for one in note.get("positions", ())]
    return list(found.values())


def wrong_outcomes(told, written):
    """What a reader sees otherwise than the writers were told."""
    counts = Counter(written.values())
    for one in told:
        there = [counts[value] for value in one.values]
        right = {"committed": {1}, "aborted": {0}}.get(one.end)
        if len(set(there)) > 1 or (set(there) != right if right else there[0] > 1):
            yield f"{one.name} is {one.end or 'not told'}, and its records are there {there} times"
        for at, value in zip(one.positions, one.values, strict=bool(one.positions)):
            if at[2] >= 0 and written.get(at) != value:
                yield f"{one.name}: the future of {value} has {at}, where {written.get(at)} is"
    unknown = set(counts) - {value for one in told for value in one.values}
    if unknown:
        yield f"nobody has written {sorted(unknown)}"


def wrong_copy(written, copied):
    """What is wrong in the copy."""
    source, target = Counter(written.values()), Counter(copied.values())
    if source != target:
        yield f"the copy lacks {dict(source - target)}, and has too much {dict(target - source)}"
    for topic, records in (("the source", written), ("the copy", copied)):
        last = {}
        for at, value in sorted(records.items()):
            writer, _, number = value.rpartition(".")
            key = writer, int(number) % KEYS
            if int(number) <= last.get(key, (-1,))[0]:
                yield f"{topic}: {value} at {at} is behind {last[key]}"
            last[key] = int(number), at


def run_round(face, seed, keep, steps):
    """Run a round. Returns its counts and what was wrong."""
    directory = Path(tempfile.mkdtemp(prefix=f"round-{face}-{seed}-", dir=keep))
    one = Round(face, seed, directory, steps)
    try:
        one.run()
    except (AssertionError, stablelog.StablelogError, subprocess.TimeoutExpired) as error:
        one.findings.append(f"{type(error).__name__}: {error}")
    if one.findings:
        (directory / "findings").write_text("\n".join(one.findings))
    else:
        shutil.rmtree(directory)
    one.counts.update(one.bytes.counts)
    return one.counts, one.findings


def main():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--face", choices=("threads", "asyncio"), required=True)
    options.add_argument("--seed", type=int, default=0, help="of the first round")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--steps", type=int, default=STEPS, help="in which harm is done, in each round")
    options.add_argument("--keep", type=Path, help="a directory for the files of rounds that were not right")
    given = options.parse_args()
    total, wrong = Counter(), []
    for seed in range(given.seed, given.seed + given.rounds):
        began_s = time.monotonic()
        counts, findings = run_round(given.face, seed, given.keep, given.steps)
        total += counts
        wrong += [seed] if findings else []
        took = f"{time.monotonic() - began_s:.0f} s"
        print(
            f"{given.face} seed {seed}: {'WRONG' if findings else 'right'}, {took}, {dict(counts)}",
            *findings,
            sep="\n  ",
        )
        sys.stdout.flush()
    print(f"{given.face}: {given.rounds} rounds, wrong: {wrong}, {dict(total)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
