"""A reader of transactions over a broker in memory: each transaction comes once, whole and in order."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.long_poll import SEVERAL_LEADERS_WAIT_S
from stablelog.client.core.read_position import ReadPosition
from stablelog.client.core.steps import Emit
from stablelog.client.core.transaction_reader import ReaderSelection, TransactionReader
from stablelog.client.core.transaction_stream import PAUSE_MAX_S
from tests.client.model_broker import ADDRESS, PARTITIONS, TOPIC, ModelBroker, ModelShell, reading
from tests.scale import examples

WAIT_S = 40.0  # longer than the events of a test take
by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])
ROUNDING_S = 0.0011  # a wait is rounded up to whole milliseconds


def reader(cluster, *, cut, after=0, wait_s=WAIT_S):
    return reading(cluster, ReaderSelection((TOPIC,), cut, after, wait_s, None))


def values(given):
    """What was read, by (commit sequence, partition)."""
    found = {}
    for _, transaction in given:
        for record in transaction.records:
            found.setdefault((transaction.commit_sequence, record.partition), []).append(record.value)
    return found


KINDS = st.sampled_from(["commit", "commit", "late", "outside"])
EVENTS = st.lists(
    st.tuples(st.floats(0, 2.5), KINDS, st.sets(st.integers(0, PARTITIONS - 1), min_size=1)), max_size=12
)
FATES = st.dictionaries(st.integers(0, 60), st.sampled_from(["request", "answer", "late"]), max_size=5)


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@example([(0.5, "outside", {0}), (0.5, "commit", {0, 1})], True, {}, 1)
@example([(0.5, "late", {0}), (0.5, "commit", {1})], True, {}, 1)
@example([(0.0, "commit", {0}), (1.0, "commit", {1})], False, {8: "answer"}, 2)
@given(EVENTS, st.booleans(), FATES, st.sampled_from([1, 1, 2]))
def test_every_transaction_comes_once_whole_and_as_soon_as_it_can(events, cut, fates, leader_count):
    """Also if requests or responses are lost, and if records outside transactions come in between."""
    broker, numbers = ModelBroker(leader_count), itertools.count()
    shell = ModelShell(broker, lambda _key: fates.get(next(numbers)))
    written, readable_at, at = {}, {}, 0.0

    def happen(kind, partitions, value):
        if kind == "outside":
            for partition in partitions:
                broker.write_outside(partition, [value])
            return
        sequence = broker.commit({one: [value, value] for one in partitions}, resolved=kind != "late")
        written.update({(sequence, one): [value, value] for one in partitions})
        readable_at[sequence] = shell.now
        if kind == "late":
            shell.planned.append((shell.now + 0.3, lambda: resolve(sequence)))
            shell.planned.sort(key=lambda one: one[0])

    def resolve(sequence):
        broker.unresolved.discard(sequence)
        for one in readable_at:
            if cut and one >= sequence and one < min(broker.unresolved, default=one + 1):
                readable_at[one] = shell.now

    for number, (delay, kind, partitions) in enumerate(events):
        at += delay
        value = b"%d" % number
        shell.planned.append((at, lambda k=kind, p=partitions, v=value: happen(k, p, v)))
    shell.run(reader(Cluster(ADDRESS), cut=cut))
    assert values(shell.given) == written
    order = [(one.commit_sequence, one.records[0].partition) for _, one in shell.given]
    for partition in range(PARTITIONS):
        assert (part := [sequence for sequence, index in order if index == partition]) == sorted(part)
    if cut:
        assert [sequence for sequence, _ in order] == sorted(readable_at)
    slack = SEVERAL_LEADERS_WAIT_S * 2 if leader_count > 1 else 0
    slack += PAUSE_MAX_S if cut and any(kind == "late" for _, kind, _ in events) else 0
    if not fates:
        for given_at, one in shell.given:
            assert given_at <= readable_at[one.commit_sequence] + slack + ROUNDING_S
        last = max((given_at for given_at, _ in shell.given), default=0)
        assert last + WAIT_S <= shell.now <= last + WAIT_S + slack + ROUNDING_S * WAIT_S


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sets(st.integers(0, PARTITIONS - 1), min_size=1)),
        st.tuples(st.just("late"), st.sets(st.integers(0, PARTITIONS - 1), min_size=1)),
        st.tuples(st.just("resolve"), st.none()),
        st.tuples(st.just("outside"), st.sets(st.integers(0, PARTITIONS - 1), min_size=1)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=30,
)


@by
@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_a_program_that_ends_anywhere_gets_every_transaction_once(cut, steps):
    broker = ModelBroker()
    shell, core, reading, text, got, wanted = ModelShell(broker), None, None, 0, [], []

    def begin():
        after = ReadPosition.parse(text) if text else 0
        core = TransactionReader(ReaderSelection((TOPIC,), cut, after, 0, None))
        return core, core.read_steps(Cluster(ADDRESS))

    def read():
        nonlocal core, reading, text
        if core is None:
            core, reading = begin()
        given = given_by(shell, reading)
        if given.transaction is not None:
            got.extend(rows([given.transaction]))
        core.deliver_item(given)
        text = str(core.position)
        return given.transaction is not None

    for number, (kind, what) in enumerate(steps):
        if kind in ("commit", "late"):
            value = b"%d" % number
            before = dict(broker.visible)
            broker.commit({one: [value, value] for one in what}, resolved=kind == "commit")
            wanted += [(*place, found) for place, found in broker.visible.items() if place not in before]
        elif kind == "resolve":
            broker.unresolved.clear()
        elif kind == "outside":
            for partition in what:
                broker.write_outside(partition, [b"outside"])
        elif kind == "crash":
            core = None
        else:
            for _ in range(what):
                read()
    broker.unresolved.clear()
    core = None
    while read():
        pass
    assert sorted(got) == sorted(wanted)


def given_by(shell, steps):
    """Run the steps of a reader until they give an item."""
    answer, failure = None, None
    while True:
        effect = steps.send(answer) if failure is None else steps.throw(failure)
        answer = failure = None
        if isinstance(effect, Emit):
            return effect.item
        try:
            answer = shell.perform(effect)
        except OSError as error:
            failure = error


def rows(transactions):
    """What a program has got: (topic, partition, offset, value) of each record, in order."""
    return [(*record[:3], record.value) for one in transactions for record in one.records]
