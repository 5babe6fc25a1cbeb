"""Data directories of earlier code, opened with today's: everything is told as it was told then, and can be gone on with."""

import copy
import json
from bisect import bisect_left
from collections import defaultdict
from datetime import timedelta

import pytest
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9 import request as v9

from stablelog.batch.records import Record, encode_batch
from stablelog.cli import verify as verify_command
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.errors import OffsetOutOfRangeError
from stablelog.wire.messages import message_class
from tests.golden.generation import NAMES, generations, versions_in
from tests.golden.generation_load import BUSY
from tests.golden.generation_look import (
    ISOLATIONS,
    ROWS_KEPT_MAX,
    bounds,
    cuts,
    fetched,
    fetched_to_end,
    group_offsets,
    look,
    row,
    shortened,
    transaction_states,
    transactions,
)
from tests.golden.generation_writers import LONG_MS, NOW_MS, Confluent, init_two_phase, value
from tests.golden.serving import BrokerAt
from tests.java.load import TIMEOUT_S, settings
from tests.java.load import producer as plain_producer
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")
END_TXN, FIRST_DIALECT, SECOND_DIALECT = 26, 3, 5  # the API, and its versions
TEST_ONLY = ("acknowledged", "written_ms")


def each_directory(*by_day):
    """Run a test on each directory of each generation: on these of the newest by day, on all by night."""
    newest = generations()[-1].number
    return pytest.mark.parametrize(
        ("generation", "name"),
        [
            pytest.param(
                generation,
                name,
                id=f"{name}-{generation.number}",
                marks=[] if generation.number == newest and name in by_day else [pytest.mark.night],
            )
            for generation in generations()
            for name in NAMES
        ],
    )


@pytest.fixture
def broker_on(tmp_path):
    """Unpacks a directory and starts a broker on it, at the time at which it was written, or later."""
    begun = []

    def begin(generation, name, later_ms=0):
        data = generation.unpack(name, tmp_path)
        begun.append(BrokerAt(data, generation.expected(name)["written_ms"] + later_ms))
        begun[0].start()
        return begun[0], data

    yield begin
    for broker in begun:
        broker.stop()
        assert not broker.faults.lines


@pytest.fixture
def verified(capsys):
    """Fails if `stablelog verify` finds anything."""

    def verify(data):
        try:
            verify_command.verify(data, as_json=True)
        except SystemExit:
            pytest.fail(f"stablelog verify: {capsys.readouterr().out}")
        assert json.loads(capsys.readouterr().out) == []

    return verify


# -- what is told --------------------------------------------------------------------------------------------------


def partitions_of(told):
    """(topic, index, what was told of it) of each partition."""
    for topic, about in told["topics"].items():
        for index, seen in enumerate(about["partitions"]):
            yield topic, index, seen


def compare(found, told, at=""):
    """Fail with where two answers differ first, and how."""
    if isinstance(told, dict) and isinstance(found, dict):
        both = f"{at}: {sorted(told.keys() - found.keys())} is missing, {sorted(found.keys() - told.keys())} is new"
        assert found.keys() == told.keys(), both
        for key, held in told.items():
            compare(found[key], held, f"{at}/{key}")
    elif isinstance(told, list) and isinstance(found, list) and told and isinstance(told[0], list):
        for place, (one, other) in enumerate(zip(found, told, strict=False)):
            assert one == other, f"{at}: at {place} {one} is found, {other} was told"
        more = [*found[len(told) :], *told[len(found) :]]
        assert not more, (
            f"{at}: {len(found)} are found, {len(told)} were told; the first one more is {more[0]}"
        )
    else:
        assert found == told, f"{at}: {found!r} is found, {told!r} was told"


def compare_everywhere(bootstrap, told, step=1):
    """From every offset, or every so many, a reader of either isolation gets the rest of what was told."""
    with BlockingCluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        for topic, index, seen in partitions_of(told):
            bounds_told = {bound: seen[bound] for bound in ("start", "end")}
            compare(bounds(cluster, topic, index), bounds_told, f"{topic}-{index}")
            for name, isolation in ISOLATIONS.items():
                rows, begin = seen[name], seen["start"][name]
                if isinstance(rows, dict):
                    rows = fetched_to_end(cluster, topic, index, begin, isolation)
                    compare(shortened(rows), seen[name], f"{topic}-{index}/{name}")
                for outside in (begin - 1, seen["end"]["all"] + 1):
                    with pytest.raises(OffsetOutOfRangeError):
                        cluster.fetch(topic, index, outside, isolation=isolation, wait_ms=0)
                offsets = [row[0] for row in rows]
                stride = step if len(rows) <= ROWS_KEPT_MAX else 97
                for start in range(begin, seen["end"][name] + 1, stride):
                    wanted = rows[bisect_left(offsets, start) :]
                    at = f"{topic}-{index}/{name} from {start}"
                    found = fetched_to_end(cluster, topic, index, start, isolation, seen["end"][name])
                    compare(found, wanted, at)
                    first, end = fetched(cluster, topic, index, start, isolation, size_max=1)
                    compare(first, wanted[: len(first)], f"{at}, a batch")
                    assert end > start or not wanted, f"{at}: a fetch brings nothing"


def compare_with_told(broker, told):
    """Everything that `look` sees."""
    found = look(broker.bootstrap, told["written_ms"])
    told = {name: held for name, held in told.items() if name not in TEST_ONLY}
    compare(found, told)


@pytest.mark.extended
@each_directory("killed")
def test_it_tells_what_it_told(generation, name, broker_on, verified):
    """Everything, at both isolations and from every offset; and again after a restart."""
    told = generation.expected(name)
    broker, data = broker_on(generation, name)
    compare_everywhere(broker.bootstrap, told)
    compare_with_told(broker, told)
    broker.stop()
    verified(data)
    broker.start()
    compare_with_told(broker, told)


@pytest.mark.extended
@each_directory(*NAMES)
def test_a_month_later_only_what_is_prepared_is_open(generation, name, broker_on):
    """Timeouts are kept on disk. A transaction in two phases has none."""
    broker, _ = broker_on(generation, name, later_ms=2 * LONG_MS)

    prepared = ["prepared", "prepared-too", "stock/prepared"]
    with SocketConnection(broker.bootstrap, timeout_s=TIMEOUT_S) as connection:

        def still_open():
            states = transaction_states(connection)
            return sorted(who for who, state in states.items() if state == "Ongoing")

        until(lambda: still_open() == prepared, lambda: f"open are {still_open()}, not {prepared}")


# -- what was told, by itself ----------------------------------------------------------------------------------------


def said(row):
    """(fate, who, number) as a record's value says; outside transactions if it says nothing."""
    fate, who, number, *_ = (row[3] or "plain nobody 0").split(" ")
    return fate, who, int(number)


def transaction_of(row):
    """What a record was committed with: its transaction, or the version of a joint commit that this was a part of."""
    fate, who, number = said(row)
    if "joint:" in who:
        return who.rsplit(":", 2)[0]
    return None if fate == "plain" else (who, number)


@each_directory(*NAMES)
def test_what_was_told_is_right(generation, name, tmp_path, verified):
    """Values say what has become of them: no reader was told of an aborted one, and a cut holds whole transactions."""
    told = generation.expected(name)
    data = generation.unpack(name, tmp_path)
    assert versions_in(data) == generation.manifest["directories"][name]["versions"]
    if name == "stopped":
        verified(data)
    for topic, index, seen in partitions_of(told):
        if isinstance(seen["committed"], list):
            fates = {said(row)[0] for row in seen["committed"]}
            assert fates <= {"plain", "commit", "busy"}, (topic, index)
    check_cuts(told)
    if name == "killed":
        committed = {transaction_of(row) for topic in BUSY for row in rows_of(told, topic)}
        assert {f"{who} {number}" for who, number in committed} >= set(told["acknowledged"])


def rows_of(told, topic):
    return [row for seen in told["topics"][topic]["partitions"] for row in seen["committed"]]


def check_cuts(told):
    """Between two cuts that follow each other there is one transaction, and it is nowhere else."""
    for group, cut in told["cuts"].items():
        assert cut["resolved"] == cut["decided"], group
        parts = [
            (topic, index, seen)
            for topic, index, seen in partitions_of(told)
            if topic in cut["topics"] and isinstance(seen["committed"], list)
        ]
        places = {
            (topic, index): place
            for place, (topic, index) in enumerate(
                sorted((t, i) for t in cut["topics"] for i in range(len(told["topics"][t]["partitions"])))
            )
        }
        cuts_of = defaultdict(set)
        for topic, index, seen in parts:
            ends = [offsets[places[topic, index]] for _, *offsets in cut["offsets"]]
            assert ends == sorted(ends)
            for one in seen["committed"]:
                if transaction_of(one) is not None and one[0] >= ends[0]:
                    cuts_of[transaction_of(one)].add(sum(end <= one[0] for end in ends))
        numbers = [next(iter(found)) for found in cuts_of.values()]
        assert all(len(found) == 1 for found in cuts_of.values()), (
            f"a transaction stands in two cuts: {cuts_of}"
        )
        assert len(numbers) == len(set(numbers)), f"two transactions stand in one cut: {cuts_of}"
        assert len(numbers) > 3, group


# -- going on ------------------------------------------------------------------------------------------------------


class Ledger:
    """What a directory should tell after more was written: what was told, and what each end of a transaction adds.

    Attributes:
        topics: as in what was told.
        committed: how many commits were made in each transaction group.
    """

    def __init__(self, told, cluster):
        self.topics = copy.deepcopy(told["topics"])
        self.committed = defaultdict(int)
        for topic, index, seen in partitions_of({"topics": self.topics}):
            for name, isolation in ISOLATIONS.items():
                if isinstance(seen[name], dict):
                    seen[name] = fetched_to_end(cluster, topic, index, seen["start"][name], isolation)

    def partition(self, topic, index):
        return self.topics[topic]["partitions"][index]

    def is_ordered(self, topic):
        return self.topics[topic]["configs"].get("stablelog.order") == "commit"

    def wrote(self, topic, index, rows):
        """Records were appended; in a transaction, they are not committed yet."""
        seen = self.partition(topic, index)
        seen["all"] += rows
        seen["end"]["all"] = rows[-1][0] + 1

    def undecided(self, who, fate):
        """The records that an open transaction has written: {(topic, index): rows}."""
        found = {}
        for topic, index, seen in partitions_of({"topics": self.topics}):
            rows = [row for row in seen["all"] if said(row)[:2] == (fate, who)]
            if rows:
                found[topic, index] = rows
        return found

    def ended(self, parts, *, commit, group="", sequences=1):
        """A transaction with these parts ended: each partition has a marker of it, which takes offsets in commit order.

        Args:
            parts: its records, by (topic, index).
            commit: or it was aborted.
            group: its transaction group.
            sequences: how many commit sequences a commit takes: none where another one stands for both.
        """
        self.committed[group] += sequences if commit else 0
        for (topic, index), rows in parts.items():
            seen = self.partition(topic, index)
            marker = seen["end"]["all"]
            seen["end"]["all"] += 1
            if not commit:
                gone = {row[0] for row in rows}
                seen.setdefault("aborted", set()).update(gone)
            elif self.is_ordered(topic):
                seen["committed"] += [[marker + 1 + n, *row[1:]] for n, row in enumerate(rows)]
                seen["end"]["all"] += len(rows)
            else:
                seen.setdefault("decided", set()).update(row[0] for row in rows)

    def settled(self):
        """Nothing is open any more: what stood behind the open transactions is seen."""
        for topic, _, seen in partitions_of({"topics": self.topics}):
            decided, aborted = seen.pop("decided", set()), seen.pop("aborted", set())
            hidden = [row for row in seen["all"] if row[0] >= seen["end"]["committed"]]
            if not self.is_ordered(topic):
                seen["committed"] += [
                    row
                    for row in hidden
                    if row[0] in decided or (row[0] not in aborted and said(row)[0] in ("plain", "commit"))
                ]
                seen["end"]["committed"] = seen["end"]["all"]
            elif seen["committed"]:
                seen["end"]["committed"] = (
                    seen["committed"][-1][0] + 1
                )  # the view ends with what was committed last


def end_transaction(cluster, who, producer, *, commit, version):
    """What a producer of a dialect sends to end its transaction."""

    def ask():
        coordinator = cluster.coordinator(who)
        request = message_class(END_TXN, version, "request")(
            transactional_id=who, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        answer = coordinator.request(request)
        assert answer.error_code is ErrorCode.none, (who, answer)

    cluster.retrying(f"ending {who}", ask)


def end_busy(cluster, told, ledger):
    """End what the kill has met. What was committed before stays, and no transaction is seen in part."""
    for who, txn in told["transactions"].items():
        if who.startswith("busy-") and txn["state"] == "Ongoing":
            version = SECOND_DIALECT if who == "busy-ours" else FIRST_DIALECT
            end_transaction(cluster, who, txn["producer"], commit=False, version=version)
    parts = defaultdict(list)
    for topic in BUSY:
        for index, seen in enumerate(ledger.topics[topic]["partitions"]):
            before = seen["committed"]
            behind = write_behind(cluster, topic, index)
            compare(
                fetched_to_end(cluster, topic, index, 0, ISOLATIONS["all"]), [*seen["all"], behind], topic
            )
            ledger.wrote(topic, index, [behind])
            found = fetched_to_end(cluster, topic, index, 0, ISOLATIONS["committed"])
            compare(found[: len(before)], before, topic)
            seen["committed"], seen["end"]["committed"] = found, behind[0] + 1
            for one in found[:-1]:
                parts[said(one)].append((topic, index))
    for txn, found in parts.items():
        assert len(found) == 3, f"{txn} is seen in part, or more than once: {found}"


def write_behind(cluster, topic, index):
    """Write a record outside transactions: when it is acknowledged, all before it is durable."""
    acknowledged = []
    by = plain_producer(cluster.bootstrap)
    by.produce(
        topic,
        value("plain", "behind", 0, 0),
        partition=index,
        timestamp=NOW_MS,
        on_delivery=lambda _, message: acknowledged.append(message.offset()),
    )
    assert by.flush(TIMEOUT_S) == 0
    return row(acknowledged[0], NOW_MS, None, value("plain", "behind", 0, 0), ())


def wait_for_bounds(cluster, topic, index, wanted):
    """Wait for markers: they are durable a moment after the end of a transaction was answered."""
    until(
        lambda: bounds(cluster, topic, index) == wanted,
        lambda: f"{topic}-{index} has {bounds(cluster, topic, index)}, not {wanted}",
        patience_s=10,
    )


def end_open(cluster, told, ledger):
    """End the open and prepared transactions and the joint commit, each as its producer would."""
    producers = {who: txn["producer"] for who, txn in told["transactions"].items()}
    go_on_writing(cluster, "ordinary-open", producers["ordinary-open"], ledger)
    for who, fate, commit, version in (
        ("ordinary-open", "open", True, FIRST_DIALECT),
        ("ours-open", "open", False, SECOND_DIALECT),
        ("pay/open", "open", True, FIRST_DIALECT),
        ("stock/prepared", "prepared", True, FIRST_DIALECT),
    ):
        end_transaction(cluster, who, producers[who], commit=commit, version=version)
        ledger.ended(ledger.undecided(who, fate), commit=commit, group=who.rpartition("/")[0])
    for who, commit in (("prepared", True), ("prepared-too", False)):
        successor = init_two_phase(cluster, who, keep=True)
        identity = (successor.producer_id, successor.producer_epoch)
        end_transaction(cluster, who, identity, commit=commit, version=SECOND_DIALECT)
        ledger.ended(ledger.undecided(who, "prepared"), commit=commit)
    children = sorted(who for who in producers if who.startswith("joint:query:2:second"))
    assert len(children) == 2
    shown = [(who, *producers[who]) for who in children]
    done = joint.commit(cluster, "query", 2, shown, run="second", digest="of the test")
    assert not done.already
    for place, who in enumerate(children):
        ledger.ended(ledger.undecided(who, "child"), commit=True, sequences=int(place == 0))


def go_on_writing(cluster, who, producer, ledger):
    """A producer's next batch has the next sequence, which the partition has to know."""
    seen = ledger.partition("ordinary", 0)
    (sequence,) = [one[2] for one in seen["producers"] if one[0] == producer[0]]
    record = Record(0, NOW_MS, None, value("open", who, 1, 9))
    batch = encode_batch(
        [record],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence + 1,
        transactional=True,
    )

    def ask():
        partition = v9.PartitionProduceData(index=0, records=batch)
        topic = v9.TopicProduceData(name="ordinary", partition_data=(partition,))
        request = v9.ProduceRequest(
            transactional_id=who, acks=-1, timeout=timedelta(seconds=30), topic_data=(topic,)
        )
        answer = cluster.coordinator(who).request_unchanged(request)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none, (who, answer)

    cluster.retrying(f"writing as {who}", ask)
    ledger.wrote("ordinary", 0, [row(seen["end"]["all"], *record[1:])])


def write_more(bootstrap, cluster, ledger):
    """A transaction over all partitions of each group that commits, and one that aborts."""
    groups = defaultdict(list)
    for topic, index, _ in partitions_of({"topics": ledger.topics}):
        group = ledger.topics[topic]["configs"].get("stablelog.group", "")
        groups[group].append((topic, index))
    for group, targets in groups.items():
        writer = Confluent(bootstrap, f"{group}/confluent" if group else "confluent")
        writer.number = 200
        for fate in ("commit", "abort"):
            writer.begin(fate)
            parts = {}
            for topic, index in targets:
                seen = ledger.partition(topic, index)
                writer.write(topic, index, 2, keys=[b"k1", b"k2"])
                parts[topic, index] = fetched_to_end(
                    cluster, topic, index, seen["end"]["all"], ISOLATIONS["all"]
                )
                written = [(one[0] - seen["end"]["all"], *said(one)) for one in parts[topic, index]]
                assert written == [(n, fate, writer.who, writer.number) for n in range(2)], (topic, written)
                ledger.wrote(topic, index, parts[topic, index])
            writer.end()
            ledger.ended(parts, commit=fate == "commit", group=group)


def go_on_consuming(bootstrap, told):
    """A consumer group begins where it had come to."""
    wanted = next(one for one in told["topics"]["append-time"]["partitions"][0]["committed"] if one[0] >= 5)
    consumer = Consumer(settings(bootstrap, **{"group.id": "readers", "enable.auto.commit": False}))
    consumer.subscribe(["append-time"])
    message = consumer.poll(TIMEOUT_S)
    assert message.error() is None
    assert [message.offset(), message.value().decode()] == [wanted[0], wanted[3]]
    consumer.close()


@pytest.mark.extended
@each_directory("killed")
def test_it_is_gone_on_with(generation, name, broker_on, verified):
    """What was open is ended by its producers, more is written; and all of it is told so, also after a restart."""
    told = generation.expected(name)
    broker, data = broker_on(generation, name)
    with BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
        ledger = Ledger(told, cluster)
        end_busy(cluster, told, ledger)
        end_open(cluster, told, ledger)
        write_more(broker.bootstrap, cluster, ledger)
        ledger.settled()
        for topic, index, seen in partitions_of({"topics": ledger.topics}):
            wait_for_bounds(cluster, topic, index, {bound: seen[bound] for bound in ("start", "end")})
    go_on_consuming(broker.bootstrap, told)
    groups = copy.deepcopy(told["groups"])
    groups["undecided"] = {"ordinary-0": [9, ""]}
    groups["several"]["ordinary-0"] = [77, ""]  # it was committed after the one that stood there
    for step in (7, 1):
        compare_everywhere(broker.bootstrap, {"topics": ledger.topics}, step)
        compare(group_offsets(broker.bootstrap), groups, "groups")
        compare_cuts(broker.bootstrap, told, ledger)
        states = {txn["state"] for txn in transactions(broker.bootstrap).values()}
        assert states <= {"CompleteCommit", "CompleteAbort", "Empty"}, states
        broker.stop()
        verified(data)
        broker.start()
    known = generations()[-1].versions
    for kind, versions in versions_in(data).items():
        unknown = set(versions) - known[kind] - generation.versions[kind]
        assert not unknown, (
            f"{kind} of version {unknown} is in no generation: docs/how-it-works/testing.md says how one is made"
        )


def compare_cuts(bootstrap, told, ledger):
    """The cuts that were told hold the transactions that they held, and those of later commits follow."""
    with BlockingCluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        found = cuts(
            cluster, {topic: group for group, cut in told["cuts"].items() for topic in cut["topics"]}
        )
    for group, cut in told["cuts"].items():
        assert found[group]["decided"] == cut["decided"] + ledger.committed[group], group
        later = {sequence: offsets for sequence, *offsets in found[group]["offsets"]}
        targets = sorted(
            (topic, index)
            for topic in cut["topics"]
            for index in range(len(ledger.topics[topic]["partitions"]))
        )
        for sequence, *offsets in cut["offsets"]:
            for target, before, now in zip(targets, offsets, later[sequence], strict=True):
                # With the next commit a cut takes in the records outside transactions that stand before it.
                between = [one for one in ledger.partition(*target)["committed"] if before <= one[0] < now]
                assert before <= now, (group, sequence, target)
                assert {transaction_of(one) for one in between} <= {None}, (group, sequence, target)
    check_cuts({"topics": ledger.topics, "cuts": found})
