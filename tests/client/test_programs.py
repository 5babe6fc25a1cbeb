"""Random programs of transactions, through lost requests, lost answers and kills, against what a list would say.

`STABLELOG_PROGRAMS=50` runs fifty for each face. A seed says what a program does; what is lost meanwhile also depends
on which thread comes first.
"""

import os
import random
import threading
from collections import defaultdict

import pytest

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.core.outcomes import Committed
from stablelog.errors import OutcomeUnknownError, RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.faces import FACES
from tests.client.faults import Proxy
from tests.client.transactions import create, flush, settled, visible, writing_of
from tests.scale import seeds
from tests.waiting import until

PROGRAMS = int(os.environ.get("STABLELOG_PROGRAMS", "3"))
PRODUCE, INIT_PRODUCER_ID = 0, 22
LOSSY = (PRODUCE, INIT_PRODUCER_ID, ApiKey.COMMIT_JOINT, ApiKey.ABORT_JOINT, ApiKey.DESCRIBE_COMMITS)
STEPS, OPEN_MAX, KILLS = 60, 3, 2


class Weather:
    """What happens to requests and answers, and to the broker in between."""

    def __init__(self, broker, seed):
        self._broker = broker
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._kills = KILLS
        self.is_calm = False

    def lose(self, key, _count):
        with self._lock:
            if self.is_calm or key not in LOSSY:
                return None
            drawn = self._random.random()
            if drawn < 0.03:
                self._kill()
                return "request"
            return "request" if drawn < 0.07 else "answer" if drawn < 0.12 else None

    def spoil(self, key, answer):
        """The broker has done it, and is gone before it can say so."""
        with self._lock:
            if (
                not self.is_calm
                and key in LOSSY
                and self._random.random() < (0.1 if key == ApiKey.COMMIT_JOINT else 0.01)
            ):
                self._kill()
                raise OSError("killed")
        return answer

    def _kill(self):
        if self._kills:
            self._kills -= 1
            self._broker.kill()
            self._broker.start()


class Model:
    """What was written, by whom, and what became of it."""

    def __init__(self):
        self.values = {}  # name of a transaction -> values in the order of their writing
        self.futures = {}
        self.committed = {}  # commit sequence -> name

    def end(self, name, done):
        """What is known once a transaction has ended."""
        futures = self.futures[name]
        if futures:
            assert settled(futures, 30) == (done is not None)
        if done is None:
            for future in futures:
                assert isinstance(future.exception(), RefusedError | UnavailableError)
        elif done == Committed(-1, None, None):
            assert futures == []
        else:
            assert done.commit_sequence not in self.committed
            self.committed[done.commit_sequence] = name
            assert (done.first, done.last) == (futures[0].result(), futures[-1].result())

    def positions(self):
        """{position: value} of all that is committed."""
        return {
            future.result(): value
            for name in self.committed.values()
            for future, value in zip(self.futures[name], self.values[name], strict=True)
        }


def end(txn, commit):
    """Commit or abort, asked until it is known. Returns what was committed, if it was."""
    while True:
        try:
            if commit:
                return txn.commit()
            txn.abort()
        except OutcomeUnknownError:
            continue
        except RefusedError:
            try:
                return txn.commit()  # it had been committed when it was to be aborted
            except RefusedError:
                return None
        else:
            return None


def run(client, broker, topics, group, chance, model):
    """A program of so many steps. Returns what is still open."""
    opened = {}
    for number in range(STEPS):
        step = chance.choices(("begin", "write", "send", "commit", "abort", "fence"), (4, 12, 2, 3, 1, 0.3))[
            0
        ]
        if step == "begin" or not opened:
            if len(opened) < OPEN_MAX:
                name = f"t{number}"
                opened[name] = client.transaction(group=group, timeout=120)
                model.values[name], model.futures[name] = [], []
            continue
        name = chance.choice(list(opened))
        txn = opened[name]
        try:
            if step == "write":
                value = b"%s-%d" % (name.encode(), number)
                where = {"partition": chance.randrange(2)} if chance.random() < 0.5 else {}
                model.futures[name].append(
                    txn.write(chance.choice(topics), value, key=chance.choice((None, "k")), **where)
                )
                model.values[name].append(value)
            elif step == "send":
                flush(txn)
            elif step == "fence" and writing_of(txn).producer is not None:
                with BlockingCluster(broker.bootstrap) as cluster:
                    BlockingProducer(cluster, writing_of(txn).transactional_id).begin()
        except (RefusedError, UnavailableError):
            with pytest.raises((RefusedError, UnavailableError)):
                txn.commit()
            print(f"{name}: {writing_of(txn).failure}")
            model.end(name, None)
            del opened[name]
            continue
        if step in ("commit", "abort"):
            done = end(txn, step == "commit")
            if done is not None:
                assert txn.commit() == done
            model.end(name, done)
            del opened[name]
    return opened


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve() as broker:
        yield broker


@pytest.mark.sampled(2)
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
@pytest.mark.parametrize("seed", seeds(PROGRAMS))
def test_whatever_happens_each_transaction_is_there_whole_or_not_at_all(broker, face, seed):
    group = f"group-{seed}" if seed % 2 else ""
    in_commit_order, ordinary = (
        create(broker.bootstrap, order, group=group) for order in ("commit", "offset")
    )
    chance, model, weather = random.Random(seed), Model(), Weather(broker, seed)
    with (
        Proxy((broker.host, broker.port), weather.lose, weather.spoil) as proxy,
        face.through(proxy, broker) as client,
    ):
        left = run(client, broker, (in_commit_order, ordinary), group, chance, model)
        weather.is_calm = True
        for name, txn in left.items():
            model.end(name, end(txn, chance.random() < 0.5))
        positions = model.positions()
        assert visible(broker.bootstrap, in_commit_order, ordinary, deadline_s=150) == positions
        last = max(model.committed, default=0)
        with BlockingCluster(broker.bootstrap) as cluster:
            until(
                lambda: describe_cut(cluster, [in_commit_order]).commit_sequence >= last,
                "the last commit is in no cut",
            )
        expected = {
            sequence: sorted(p for f in model.futures[name] if (p := f.result()).topic == in_commit_order)
            for sequence, name in model.committed.items()
        }
        read = {
            one.commit_sequence: [record[:3] for record in one.records]
            for one in client.read(in_commit_order, cut=True, wait=0)
        }
    assert read == {sequence: found for sequence, found in sorted(expected.items()) if found}
    assert_in_commit_order(model, in_commit_order)


def assert_in_commit_order(model, topic):
    """In each partition transactions stand in the order of their commits, and records in that of their writing."""
    by_partition = defaultdict(list)
    for _, name in sorted(model.committed.items()):
        for future in model.futures[name]:
            by_partition[future.result()[:2]].append(future.result().offset)
    for (name, _), offsets in by_partition.items():
        if name == topic:
            assert offsets == sorted(offsets)
