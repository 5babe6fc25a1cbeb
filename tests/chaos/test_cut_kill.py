"""The broker killed with -9 under transactions over two commit-ordered topics: readers by cut see each whole, once, in order.

STABLELOG_KILLS says how often. The simulated histories of `tests/cuts` know more ways to fail; this is the real thing.
"""

import os
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from tests.chaos.confluent import patiently, producer_of
from tests.scale import randomness
from tests.waiting import until

KILLS = int(os.environ.get("STABLELOG_KILLS", "4"))
TOPICS, PARTITIONS = ("orders", "payments"), 2
PATIENCE_S = 240  # a broker that is killed again and again on a busy machine answers late


class Writer(threading.Thread):
    """Writes transactions over both topics. A value says whose record it is, of which transaction, and of how many."""

    def __init__(self, name, address, stopping):
        super().__init__(name=name, daemon=True)
        self.address, self.stopping = address, stopping
        self.chance = randomness(name)
        self.count = 0
        self.asked, self.committed, self.refused = set(), {}, set()
        self.failure = None

    def run(self):
        try:
            self.work()
        except BaseException as failure:
            self.failure = failure

    def next(self):
        """The next transaction: its name, and (topic, partition, value) of its records."""
        txn = f"{self.name}.{self.count}"
        self.count += 1
        places = [
            (TOPICS[n % 2], self.chance.randrange(PARTITIONS)) for n in range(self.chance.randint(2, 9))
        ]
        records = [(*at, f"{txn}.{n}.{len(places)}".encode()) for n, at in enumerate(places)]
        return txn, records, self.chance.random() < 0.2

    @property
    def ended(self):
        return len(self.committed) + len(self.refused)


class NativeWriter(Writer):
    """By the native client: the futures say where the records are."""

    def work(self):
        with stablelog.connect(self.address) as client:
            while not self.stopping.is_set():
                self.attempt(client, *self.next())

    def attempt(self, client, txn, records, is_dropped):
        open_one = client.transaction(timeout=20)
        try:
            futures = [
                open_one.write(topic, value, partition=partition) for topic, partition, value in records
            ]
            if is_dropped:
                self.refused.add(txn)
                open_one.abort()
                return
        except StablelogError:
            self.refused.add(txn)
            return
        self.asked.add(txn)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                done = open_one.commit()
            except RefusedError:
                self.refused.add(txn)
                assert all(future.exception(0) is not None for future in futures)
                return
            except UnavailableError:
                assert time.monotonic() < deadline, f"{txn}: nobody says whether it is committed"
            else:
                positions = [tuple(future.result(0))[:3] for future in futures]
                self.committed[txn] = (done.commit_sequence, positions)
                return


class ConfluentWriter(Writer):
    """By librdkafka, which knows of none of this."""

    def producer(self):
        return producer_of(self.address, self.name, timeout_ms=20_000)

    def work(self):
        producer = self.producer()
        while not self.stopping.is_set():
            txn, records, is_dropped = self.next()
            try:
                producer.begin_transaction()
                for topic, partition, value in records:
                    producer.produce(topic, value, partition=partition)
                producer.flush(30)
                if is_dropped:
                    self.refused.add(txn)
                    producer.abort_transaction(30)
                    continue
                self.asked.add(txn)
                patiently(producer.commit_transaction)
                self.committed[txn] = None
            except KafkaException as error:
                if txn not in self.asked or error.args[0].txn_requires_abort():
                    self.refused.add(txn)
                producer = self.producer()  # its successor: what is undecided is aborted


class Reader(threading.Thread):
    """Reads both topics from cut to cut, all along; after a failure it goes on behind the last transaction."""

    def __init__(self, address, stopping):
        super().__init__(daemon=True)
        self.address, self.stopping = address, stopping
        self.seen = []
        self.failures = Counter()

    def run(self):
        while not self.stopping.is_set():
            after = self.seen[-1].commit_sequence if self.seen else 0
            try:
                with stablelog.connect(self.address) as client:
                    for txn in client.read(TOPICS, cut=True, after=after, wait=1):
                        self.seen.append(txn)
                        if self.stopping.is_set():
                            return
            except UnavailableError as failure:
                self.failures[type(failure).__name__] += 1


@pytest.mark.extended
@pytest.mark.timeout(2 * PATIENCE_S + 180 + 12 * KILLS)
def test_kills_tear_no_transaction_at_any_cut(tmp_path):
    chance = randomness(KILLS)
    stopping = threading.Event()
    with stablelog.serve(
        tmp_path / "data", log_segment_bytes=50_000, stablelog_snapshot_bytes=20_000
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        made = admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, config={"stablelog.order": "commit"}) for name in TOPICS]
        )
        for future in made.values():
            future.result(30)
        writers = [NativeWriter(f"n{n}", broker.bootstrap, stopping) for n in range(2)]
        writers += [ConfluentWriter(f"c{n}", broker.bootstrap, stopping) for n in range(2)]
        readers = [Reader(broker.bootstrap, stopping) for _ in range(2)]
        for thread in (*writers, *readers):
            thread.start()
        for kill in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.0))  # the load itself, not a wait for something to happen
            if kill % 2:
                _wait_for_progress(writers)
            broker.kill()
            broker.start()
        _wait_for_progress(writers)
        stopping.set()
        for thread in (*writers, *readers):
            thread.join(150)
            assert not thread.is_alive()
        assert [writer.failure for writer in writers if writer.failure] == []
        with BlockingCluster(broker.bootstrap) as cluster:
            until(
                lambda: _is_resolved(describe_cut(cluster, TOPICS)), "a commit is left that no cut comes to"
            )
        with stablelog.connect(broker.bootstrap) as client:
            everything = list(client.read(TOPICS, cut=True, wait=0))
    _check(writers, everything)
    for reader in readers:
        assert reader.seen == everything[: len(reader.seen)], "what was read live is what is there"
    print(
        f"{KILLS} kills: {sum(writer.count for writer in writers)} transactions, {len(everything)} committed, "
        f"{sum(len(writer.committed) for writer in writers)} of them acknowledged, "
        f"{[len(reader.seen) for reader in readers]} read live"
    )
    assert len(everything) > KILLS // 3


def _check(writers, everything):
    """Whole, once, in order, and what was acknowledged is there at the positions that were told."""
    sequences = [txn.commit_sequence for txn in everything]
    assert sequences == sorted(set(sequences)), "each commit once, in the order of the commits"
    found = {}
    for txn in everything:
        names = {record.value.rsplit(b".", 2)[0].decode() for record in txn.records}
        assert len(names) == 1, f"one commit holds {names}"
        (name,) = names
        assert name not in found, f"{name} was committed twice"
        numbers = sorted(int(record.value.split(b".")[2]) for record in txn.records)
        count = int(txn.records[0].value.split(b".")[3])
        assert numbers == list(range(count)), f"{name} is torn or repeated: {numbers} of {count}"
        found[name] = txn
    for writer in writers:
        mine = {name for name in found if name.split(".")[0] == writer.name}
        assert mine <= writer.asked, "committed, and nobody asked"
        assert mine.isdisjoint(writer.refused), "committed, and its writer was told that it is not"
        assert set(writer.committed) <= mine, "acknowledged and lost"
        for name, told in writer.committed.items():
            if told is not None:
                txn = found[name]
                by_number = {int(record.value.split(b".")[2]): record for record in txn.records}
                places = [(r.topic, r.partition, r.offset) for _, r in sorted(by_number.items())]
                assert told == (txn.commit_sequence, places), f"{name} is not where its futures say"


def _is_resolved(cut):
    """Whether it comes to the last commit that was decided."""
    return cut.commit_sequence == cut.last_commit_sequence


def _wait_for_progress(writers):
    """Until each writer has ended one more transaction, on a machine that may be busy."""
    ended = [writer.ended for writer in writers]

    def all_went_on():
        assert [writer.failure for writer in writers if writer.failure] == []
        return all(writer.ended > before for writer, before in zip(writers, ended, strict=True))

    until(all_went_on, "not everybody writes", patience_s=PATIENCE_S)
