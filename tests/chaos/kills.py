"""Run of many `kill -9` of the broker under writers and readers of every kind of topic.

    python -m tests.chaos.kills --kills 1000 --seed 7
    python -m tests.chaos.kills --kills 1000 --seed 7 --round 3     repeat one round
    python -m tests.chaos.kills --kills 100 --round-kills 10 --mutant aborts_are_not_indexed_again

A run consists of rounds, each on a new directory with settings of its own. In a round, writers, readers and deleters work while
the broker is killed at any moment, while it starts, and right after it has started. After a round everything is read again and
compared with what the writers were told and the readers saw (`tests.chaos.verdict`). The seed determines what is written, the
settings of each round and the times between kills. Which request a kill meets also depends on the machine.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.commit_order.verify import verify_view
from stablelog.data_directory.names import partition_directories
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import RefusedError, UnavailableError
from stablelog.log.verify import verify_directory
from stablelog.ops.verify import verify_data_directory
from stablelog.testing.history import Fate
from tests.chaos.janitor import Deleter, TopicChanger, administered, everything
from tests.chaos.readers import ByteReader, CommittedReader, CutReader, CutWatcher, Watcher
from tests.chaos.verdict import (
    Found,
    check_compacted,
    check_cuts,
    check_deleted,
    check_places,
    check_transformed,
)
from tests.chaos.victim import Victim
from tests.chaos.writers import (
    PATIENCE_S,
    QUIET,
    Committer,
    ConfluentWriter,
    IdempotentWriter,
    JointWriter,
    NativeWriter,
    Transformer,
    patiently_asked,
)
from tests.clients.reading import read_to_end
from tests.waiting import until

ROUND_KILLS = 50
COMMIT_ORDER = {"stablelog.order": "commit"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "10000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
RETAINED = {"retention.bytes": "40000", "segment.bytes": "10000"}
TOPICS = {  # partitions, settings
    "plain": (2, {}),
    "source": (2, {}),
    "derived": (2, {}),
    "trimmed": (2, {}),
    "retained": (1, RETAINED),
    "compacted": (2, COMPACTED),
    "witness": (1, {}),
    "ordered": (2, COMMIT_ORDER),
    "ordered-too": (1, COMMIT_ORDER),
    "ordered-trimmed": (2, COMMIT_ORDER),
    "ordered-retained": (1, COMMIT_ORDER | RETAINED),
    "grouped": (2, COMMIT_ORDER | {"stablelog.group": "g"}),
    "grouped-plain": (1, {"stablelog.group": "g"}),
}
CUT_TOPICS = (("ordered", "ordered-too"), ("grouped",))
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
}
DRAWN_SETTINGS = {
    "log.segment.bytes": ("20000", "100000", "1000000"),
    "stablelog.snapshot.bytes": ("5000", "20000", "1000000"),
    "stablelog.flush": ("fsync", "os"),
}


def places_of(*topics):
    """(topic, partition) of all partitions."""
    return [(topic, partition) for topic in topics for partition in range(TOPICS[topic][0])]


@dataclass
class Report:
    """Result of a round.

    Attributes:
        kills: by the moment of the kill.
        counts: of transactions, records and looks.
        findings: violations, one text each.
    """

    kills: Counter = field(default_factory=Counter)
    counts: Counter = field(default_factory=Counter)
    findings: list = field(default_factory=list)

    def add(self, other):
        self.kills += other.kills
        self.counts += other.counts
        self.findings += other.findings


class Round:
    """One directory, its broker, and the workers of that broker.

    Args:
        seed: of all that is drawn.
        directory: where the data goes.
        kills: how many.
        mutant: as in `Victim`.
        tell: called with each line of progress.

    Attributes:
        address: the broker's.
        stopping: set when all workers are to stop.
    """

    def __init__(self, seed, directory, kills, mutant="", tell=lambda _text: None):
        self.seed, self.kills, self.tell = seed, kills, tell
        self.chance = random.Random(f"{seed} kills")
        drawn = {name: self.chance.choice(values) for name, values in DRAWN_SETTINGS.items()}
        self.victim = Victim(directory / "data", SETTINGS | drawn, mutant)
        self.address = self.victim.bootstrap
        self.stopping = threading.Event()
        self.report = Report()

    def run(self):
        """The whole round. Returns the report."""
        try:
            self.victim.start()
            self.make_topics()
            self.begin_work()
            self.kill_again_and_again()
            self.end_work()
            self.look()
            self.victim.stop()
            self.report.findings += prove(self.victim.data)
        except (AssertionError, UnavailableError, RefusedError) as failure:
            self.report.findings.append(f"{type(failure).__name__}: {failure}")
        finally:
            self.stopping.set()
            self.victim.close()
        self.report.findings += self.victim.faults()
        return self.report

    def make_topics(self):
        admin = AdminClient({"bootstrap.servers": self.address, **QUIET})
        for name, (partitions, config) in TOPICS.items():
            administered(lambda: admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name])  # noqa: B023

    def begin_work(self):
        shared = places_of(
            "plain", "ordered", "ordered-too", "trimmed", "ordered-trimmed", "retained", "ordered-retained"
        )
        keys = [b"key-%d" % number for number in range(6)]
        witness = ("witness", 0)
        self.keyed = [
            ConfluentWriter(
                f"k{n}",
                self,
                places_of("compacted"),
                keys=[b"k%d-" % n + key for key in keys],
                witness=witness,
            )
            for n in range(2)
        ]
        self.transformer = Transformer("x", self, places_of("source"), ("derived", 0))
        self.writers = [
            ConfluentWriter("c0", self, shared),
            ConfluentWriter("c1", self, places_of("plain", "ordered")),
            ConfluentWriter("cg", self, places_of("grouped", "grouped-plain"), prefix="g/"),
            NativeWriter("n0", self, places_of("ordered", "ordered-too", "plain")),
            NativeWriter("ng", self, places_of("grouped", "grouped-plain"), group="g"),
            JointWriter("j0", self, places_of("ordered", "plain")),
            IdempotentWriter("i0", self, places_of("source")),
            IdempotentWriter(
                "i1", self, places_of("trimmed", "ordered-trimmed", "retained", "plain", "ordered")
            ),
            self.transformer,
            *self.keyed,
        ]
        places = places_of(*TOPICS)
        steady = [place for place in places if place not in places_of("compacted")]
        ordered = [place for place in places if "stablelog.order" in TOPICS[place[0]][1]]
        views = [(*place, "read_uncommitted") for place in steady]
        views += [(*place, "read_committed") for place in ordered]
        self.cuts = [CutReader(f"cut-{topics[0]}", self, topics) for topics in CUT_TOPICS]
        self.reader = CommittedReader("reader", self, places)
        self.bytes = ByteReader("bytes", self, views)
        self.watcher = Watcher("watcher", self, places)
        self.deleter = Deleter("deleter", self, places_of("trimmed", "ordered-trimmed"))
        others = [Committer("committer", self, ("plain", 0)), TopicChanger("changer", self), self.deleter]
        others += [CutWatcher(f"watcher of {one.name}", self, one) for one in self.cuts]
        self.workers = [*self.writers, self.reader, self.bytes, self.watcher, *self.cuts, *others]
        for worker in self.workers:
            worker.start()

    # -- kills -------------------------------------------------------------------------------------------------

    def kill_again_and_again(self):
        left = self.kills
        while left:
            how = self.chance.choices(("at work", "at the start", "twice", "stop"), (60, 18, 18, 4))[0]
            self.stopping.wait(self.chance.uniform(0.05, 1.5))  # the load itself, not a wait for something
            if self.chance.random() < 0.35:
                self.wait_for_progress()
            if how == "stop":
                self.victim.stop()
            else:
                left -= self.kill("at work")
                if how == "at the start" and left:
                    self.victim.spawn()
                    time.sleep(self.chance.uniform(0, 0.6))
                    left -= self.kill(how)
                elif how == "twice" and left:
                    self.victim.start()
                    time.sleep(self.chance.uniform(0, 0.1))
                    left -= self.kill(how)
            self.victim.start()
            self.tell(f"{self.kills - left} of {self.kills} kills, {self.commit_count()} commits")
            self.check_workers()

    def kill(self, how):
        self.victim.kill()
        self.report.kills[how] += 1
        return 1

    def check_workers(self):
        failures = [worker.failure for worker in self.workers if worker.failure]
        assert not failures, "\n".join(failures)

    def wait_for_progress(self):
        """Wait until each worker has done one more step. Without it, nothing would be committed on a busy machine."""
        before = {worker: worker.steps for worker in self.workers}

        def all_went_on():
            self.check_workers()
            return all(worker.steps > steps for worker, steps in before.items())

        def waiting():
            return "\n".join(one.where() for one in self.workers if one.steps == before[one])

        until(all_went_on, waiting, patience_s=PATIENCE_S)

    def commit_count(self):
        return sum(
            attempt.fate is Fate.COMMITTED for writer in self.writers for attempt in writer.attempts.copy()
        )

    # -- after the kills --------------------------------------------------------------------------------------

    def end_work(self):
        self.wait_for_progress()
        self.stopping.set()
        for worker in self.workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive(), f"{worker.name} does not end"
            self.report.findings += worker.findings
        self.check_workers()

    def look(self):
        """Read everything again, and compare it with what was told and seen."""
        places = places_of(*TOPICS)
        with BlockingCluster(self.address, deadline_s=PATIENCE_S) as cluster:
            self.wait_until_all_is_decided(cluster)
            starts = {
                place: one.offset
                for place, one in cluster.list_offsets(dict.fromkeys(places, EARLIEST)).items()
            }
            found = Found(
                {place: self.read(place) for place in places},
                {place: everything(cluster, place) for place in places},
                starts,
                frozenset(places_of("compacted")),
                frozenset(place for place in places if "stablelog.order" in TOPICS[place[0]][1]),
                self.reader.seen,
                self.watcher.watermarks,
            )
        attempts = [attempt for writer in self.writers for attempt in writer.attempts]
        findings = self.report.findings
        findings += check_places(attempts, found)
        findings += check_deleted(attempts, found, self.deleter.deleted)
        keyed = [attempt for writer in self.keyed for attempt in writer.attempts]
        findings += check_compacted(keyed, found)
        source = places_of("source")
        findings += check_transformed(found, source, "derived", self.committed(Transformer.GROUP, source))
        with stablelog.connect(self.address, deadline=PATIENCE_S) as client:
            for reader in self.cuts:
                by_cut = list(client.read(reader.topics, cut=True, wait=0))
                findings += check_cuts(attempts, reader.topics, by_cut, [reader.seen])
        before = len(self.bytes.findings)
        self.bytes.read_again()
        findings += self.bytes.findings[before:]
        findings += self.check_joint_offsets()
        self.count(attempts, found)

    def wait_until_all_is_decided(self, cluster):
        """Wait until abandoned transactions have timed out and every marker is written."""
        ordinary = [place for place in places_of(*TOPICS) if "stablelog.order" not in TOPICS[place[0]][1]]

        def is_decided():
            latest = dict.fromkeys(ordinary, LATEST)
            stable, high = (
                cluster.list_offsets(latest, one) for one in ("read_committed", "read_uncommitted")
            )
            cuts = [describe_cut(cluster, topics) for topics in CUT_TOPICS]
            return stable == high and all(cut.commit_sequence == cut.last_commit_sequence for cut in cuts)

        until(is_decided, "a transaction is left undecided, or a commit that no cut comes to")

    def read(self, place):
        """(offset, key, value) of what librdkafka's read-committed consumer gets."""
        settings = {"group.id": "final", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer = Consumer(
            {"bootstrap.servers": self.address, "enable.partition.eof": True, **settings, **QUIET}
        )
        found = [(one.offset(), one.key(), one.value()) for one in read_to_end(consumer, *place)]
        consumer.close()
        return found

    def committed(self, group, places):
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, **QUIET})
        found = patiently_asked(consumer, places)
        consumer.close()
        return found

    def check_joint_offsets(self):
        """The offset that each joint commit sets is the number of the last one that was committed."""
        for writer in self.writers:
            if isinstance(writer, JointWriter):
                place = writer.places[0]
                told = max(
                    (n for n, one in enumerate(writer.attempts, 1) if one.fate is Fate.COMMITTED), default=0
                )
                asked = max(
                    (n for n, one in enumerate(writer.attempts, 1) if one.fate is not Fate.ABORTED), default=0
                )
                found = self.committed(JointWriter.GROUP, [place])[place]
                if not told <= found <= asked:
                    yield f"{JointWriter.GROUP}: joint commit {told} was told, {asked} asked for, and {found} is there"

    def count(self, attempts, found):
        counts = self.report.counts
        counts["transactions"] += sum(attempt.asked_s is not None for attempt in attempts)
        for fate in Fate:
            counts[fate.value] += sum(one.fate is fate and one.asked_s is not None for one in attempts)
        counts["acknowledged records"] += sum(len(one.appended) + len(one.placed) for one in attempts)
        counts["committed records"] += sum(map(len, found.committed.values()))
        counts["read live"] += sum(map(len, self.reader.seen.values()))
        counts["transactions read by cut"] += sum(len(reader.seen) for reader in self.cuts)
        counts["batches compared"] += sum(map(len, self.bytes.digests.values()))
        counts["watermarks"] += sum(map(len, self.watcher.watermarks.values()))
        there = {value for place in found.compacted for _, _, value in found.everything[place]}
        counts["records compacted"] += sum(
            place in found.compacted and value not in there
            for writer in self.keyed
            for one in writer.attempts
            for value, (place, _) in one.appended.items()
        )
        counts["records deleted"] += sum(found.starts.values())
        counts["topics made and deleted"] += sum(getattr(worker, "made", 0) for worker in self.workers)


def prove(directory):
    """What `stablelog verify` finds in a stopped broker's directory."""
    disk = LocalDisk()
    findings = list(verify_data_directory(disk, directory))
    for path in partition_directories(disk, directory):
        findings += [*verify_directory(disk, path), *verify_view(disk, path)]
    return [f"verify: {finding.path}: {finding.message}" for finding in findings]


def run(kills, seed, *, mutant="", only_round=None, round_kills=ROUND_KILLS, tell=print):
    """Run all rounds, or one of them. Returns the report; the data of a round that found something stays."""
    whole = Report()
    began = time.monotonic()
    for number, first in enumerate(range(0, kills, round_kills)):
        if only_round is not None and number != only_round:
            continue
        directory = Path(tempfile.mkdtemp(prefix=f"kills-{seed}-{number}-"))
        size = min(round_kills, kills - first)
        one = Round(f"{seed}-{number}", directory, size, mutant).run()
        whole.add(one)
        tell(
            f"{time.monotonic() - began:6.0f} s  round {number}: {one.kills.total()} kills, "
            f"{one.counts['committed']} commits, {len(one.findings)} findings"
        )
        if one.findings:
            for finding in one.findings[:20]:
                tell(f"  {finding}"[:2000])
            tell(
                f"  the data is in {directory}; again: python -m tests.chaos.kills --kills {kills} --seed {seed} --round {number}"
            )
            if mutant:
                shutil.rmtree(directory, ignore_errors=True)
                break
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return whole


def main():
    """Run what the command line asks for; exit code 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=ROUND_KILLS)
    parser.add_argument("--seed", type=int, help="drawn, and printed, if none is given")
    parser.add_argument("--round", type=int, dest="only_round", help="this round only")
    parser.add_argument("--round-kills", type=int, default=ROUND_KILLS)
    parser.add_argument(
        "--mutant", default="", help="a fault of tests/chaos/mutants.py that the broker is to have"
    )
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    began = time.monotonic()
    print(f"seed {seed}", flush=True)
    report = run(
        asked.kills,
        seed,
        mutant=asked.mutant,
        only_round=asked.only_round,
        round_kills=asked.round_kills,
        tell=lambda text: print(text, flush=True),
    )
    kills = ", ".join(f"{count} {how}" for how, count in report.kills.items())
    print(
        f"seed {seed}: {report.kills.total()} kills ({kills}) in {(time.monotonic() - began) / 60:.1f} minutes"
    )
    print(", ".join(f"{count} {name}" for name, count in report.counts.items()))
    print(
        f"{len(report.findings)} findings: {'something is wrong' if report.findings else 'nothing lost, repeated or torn'}"
    )
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
