"""The rows of stores that Apache Kafka has written, and of reads at cuts from a store that lacks the last commits."""

import json
import uuid
from dataclasses import dataclass

import pytest

import stablelog
from stablelog.batch.header import headers_in
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.topics import EARLIEST_LOCAL
from tests.advice.steps import doing, row
from tests.spark.at_cuts import Query
from tests.spark.objects.kafka_stores import Aiven, damaged, stable_end
from tests.spark.objects.stored import TIERED, Stored, serving
from tests.spark.objects.test_kafka_tiers import closed
from tests.spark.reading import make, rows
from tests.waiting import until

KAFKAS = "tiers of kafka"
# Sizes of records. A large one does not fit into a segment with another large one: it seals the segment before it. A
# small one fits behind a large one.
SEGMENT, LARGE, SMALL = 2000, 1500, 1


@dataclass
class Kafkas:
    """A history that was tiered by Kafka's plugins, and a broker with all of its records.

    Attributes:
        history: the history of the topic `plain`.
        broker: the broker.
        topic_id: the topic's id.
    """

    history: object
    broker: object
    topic_id: uuid.UUID

    def given(self, store, **more):
        return {"path": store.url, "subscribe": "plain", **more}

    @property
    def brokers(self):
        return {"kafka.bootstrap.servers": self.broker.bootstrap}


def _mixed(user, setting="compression"):
    """A store of Aiven's plugin whose second and third segment only a broker can read."""
    kafkas = user.fixture("kafkas")
    store = Aiven(user.path / setting, "plain", topic_id=kafkas.topic_id)
    if not any(store.directory.iterdir()):
        for number, segment in enumerate(kafkas.history.segments):
            if number in (1, 2):
                closed(store, segment, setting)
            else:
                store.put(segment)
    return kafkas, store


def _read_mixed(user, **more):
    kafkas, store = _mixed(user)
    return rows(kafkas.given(store, **more), "offset", "value")


def _read_mixed_with_brokers(user, **more):
    """The broker is taken for one that has only the last segment on its disk."""
    kafkas, store = _mixed(user)
    ask, last = BlockingCluster.list_offsets, kafkas.history.segments[-1].end

    def list_offsets(cluster, times, *others):
        found = ask(cluster, times, *others)
        is_local = EARLIEST_LOCAL in times.values()
        return {place: one._replace(offset=last) if is_local else one for place, one in found.items()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BlockingCluster, "list_offsets", list_offsets)
        found = rows(kafkas.given(store, **kafkas.brokers, **more), "offset", "value")
    if not more:
        assert sorted(found) == kafkas.history.wanted(10**9)
    return found


def _read_without_closed_segments(user):
    kafkas, store = _mixed(user)
    history = kafkas.history
    first, end = stable_end(history.log, history.segments[1].base), history.segments[3].base
    for start, stop in ((0, first), (end, history.segments[-1].end)):
        bounds = {"startingOffsets": {"plain": {"0": start}}, "endingOffsets": {"plain": {"0": stop}}}
        given = {name: json.dumps(value) for name, value in bounds.items()}
        assert rows(kafkas.given(store, **given), "offset", "value") == history.wanted(stop, start)
    return "read"


def _late(user):
    """A time that only a record of a closed segment has."""
    segment = user.fixture("kafkas").history.segments[0]
    return {"startingTimestamp": str(max(one.max_timestamp for _, one in headers_in(segment.log)) + 1)}


def _overlapping(user):
    """A store whose encrypted segment overlaps others."""
    kafkas = user.fixture("kafkas")
    store = Aiven(user.path / "overlapping", "plain", topic_id=kafkas.topic_id)
    if not any(store.directory.iterdir()):
        for segment in kafkas.history.segments:
            store.put(segment)
        closed(store, kafkas.history.segments[1], "encryption")
    return kafkas, store


def _read_overlapping(user):
    kafkas, store = _overlapping(user)
    return rows(kafkas.given(store), "offset", "value")


def _read_from_brokers(user):
    kafkas = user.fixture("kafkas")
    return rows({**kafkas.brokers, "subscribe": "plain"}, "offset", "value")


def _read_with_damaged_snapshot(user, *, restored=False, **more):
    kafkas = user.fixture("kafkas")
    store = Aiven(user.path / f"damaged-{restored}-{len(more)}", "plain", topic_id=kafkas.topic_id)
    for segment in kafkas.history.segments[:3]:
        store.put(segment)
    last = kafkas.history.segments[3]
    flipped = bytearray(last.snapshot)
    flipped[-1] ^= 1
    store.put(last if restored else damaged(last, snapshot=bytes(flipped)))
    return rows(kafkas.given(store, **more), "offset", "value")


# -- cuts --------------------------------------------------------------------------------------------------------------


class Filled:
    """A broker, and its store, which gets a segment when a large record is written.

    Attributes:
        topics: topics in commit order, each with one partition.
        given: the options of a read of the store at cuts.
        brokers: the option with which the read goes on where the store ends.
    """

    def __init__(self, user, *topics):
        broker = user.cleanup.enter_context(serving(user.path / "filled"))
        self._client = user.cleanup.enter_context(stablelog.connect(broker.bootstrap))
        self._stored = Stored(broker, f"file://{user.path}/filled/store")
        self.topics = topics
        self.given = {"path": self._stored.url, "subscribe": ",".join(topics), "cut": "true"}
        self.brokers = {"kafka.bootstrap.servers": broker.bootstrap}
        for topic in topics:
            configs = {**TIERED, "segment.bytes": str(SEGMENT), "stablelog.order": "commit"}
            make(broker.bootstrap, topic, 1, **configs)

    def commit(self, size, *topics):
        """Commit a record in each of some topics. Returns the offset after the transaction; the record's is the one before."""
        with self._client.transaction() as txn:
            (written, *_) = [txn.write(topic, value=bytes(size)) for topic in topics or self.topics]
        return written.result(60).offset + 1

    def wait_until_copied(self, topic, end):
        """Wait until the store has the segments of a topic up to the base offset of its active segment."""
        until(
            lambda: self._end(topic) == end, lambda: f"{topic} is copied up to {self._end(topic)}, not {end}"
        )

    def _end(self, topic):
        manifest = self._stored.manifest(topic)
        return 0 if manifest is None else manifest.end_offset


def _past_the_store(user):
    """Read from a cut that the store lacks: it is in the active segment."""
    user.filled = Filled(user, "past")
    sealed = user.filled.commit(LARGE)
    user.start = user.filled.commit(LARGE)
    user.end = user.filled.commit(SMALL)
    user.filled.wait_until_copied("past", sealed)
    return _read_past(user)


def _read_past(user, **more):
    starting = json.dumps({"past": {"0": user.start}})
    found = rows({**user.filled.given, "startingOffsets": starting, **more}, "offset")
    assert found == [(user.end - 1,)]
    return found


def _read_past_when_the_store_has_it(user):
    user.filled.commit(LARGE)
    user.filled.wait_until_copied("past", user.end)
    return _read_past(user)


def _stays(user):
    """A stream whose cut stays: the second commit of `ahead` is copied, and that of `held` is in the active segment."""
    filled = user.filled = Filled(user, "ahead", "held")
    first, second = user.first, user.second = filled.commit(LARGE), filled.commit(LARGE)
    for topic in filled.topics:
        filled.wait_until_copied(topic, first)
    user.query = Query({**filled.given, "startingOffsets": "earliest"}, "topic", "offset").start()
    try:
        assert _sorted(user.query.batches()) == [("ahead", first - 1), ("held", first - 1)]
        user.third = filled.commit(LARGE, "ahead")
        filled.wait_until_copied("ahead", second)
        with pytest.MonkeyPatch.context() as patched:
            # The stream reads the manifests again at once, and not after some time.
            patched.setattr("stablelog.spark.source.cut_reader.METADATA_AGE_MAX_S", -1)
            patched.setattr("stablelog.spark.source.object_log.REFRESH_S", 0)
            assert _sorted(user.query.batches()) == []
    finally:
        user.query.stop()


def _go_on_with_brokers(user):
    try:
        found = _sorted(user.query.start(**user.filled.brokers).batches())
    finally:
        user.query.stop()
    assert found == [("ahead", user.second - 1), ("ahead", user.third - 1), ("held", user.second - 1)]
    return found


def _sorted(batches):
    return sorted(row for batch in batches for row in batch)


STORES = [
    row(
        "Only brokers can read the offsets",
        doing(_read_mixed),
        doing(_read_mixed_with_brokers),
        doing(_read_without_closed_segments),
        group=KAFKAS,
    ),
    row(
        "or later, and only brokers can tell",
        doing(lambda user: _read_mixed(user, **_late(user))),
        doing(lambda user: _read_mixed_with_brokers(user, **_late(user))),
        doing(_read_without_closed_segments),
        group=KAFKAS,
    ),
    row(
        "restore it, or read with isolation=read_uncommitted",
        doing(_read_with_damaged_snapshot),
        doing(lambda user: _read_with_damaged_snapshot(user, restored=True)),
        doing(lambda user: _read_with_damaged_snapshot(user, isolation="read_uncommitted")),
        group=KAFKAS,
    ),
    row(
        "are encrypted, too: leave out the URL of the store",
        doing(_read_overlapping),
        doing(_read_from_brokers),
        group=KAFKAS,
    ),
    row(
        "Run the query when the store has it, or give kafka.bootstrap.servers",
        doing(_past_the_store),
        doing(lambda user: _read_past(user, **user.filled.brokers)),
        doing(_read_past_when_the_store_has_it),
    ),
    row("A read with kafka.bootstrap.servers goes on from there", doing(_stays), doing(_go_on_with_brokers)),
]
