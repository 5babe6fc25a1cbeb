"""The rows of stores that Apache Kafka has written."""

import json
import uuid
from dataclasses import dataclass

import pytest

from stablelog.batch.header import headers_in
from stablelog.client.cluster import Cluster
from stablelog.client.topics import EARLIEST_LOCAL
from tests.advice.steps import doing, row
from tests.spark.objects.kafka_stores import Aiven, damaged, stable_end
from tests.spark.objects.test_kafka_tiers import closed
from tests.spark.reading import rows

KAFKAS, TIERS = "tiers of kafka", "tiers"


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
    ask, last = Cluster.list_offsets, kafkas.history.segments[-1].end

    def list_offsets(cluster, times, *others):
        found = ask(cluster, times, *others)
        is_local = EARLIEST_LOCAL in times.values()
        return {place: one._replace(offset=last) if is_local else one for place, one in found.items()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "list_offsets", list_offsets)
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


STORES = [
    row(
        "Only brokers can read the offsets",
        doing(_read_mixed),
        doing(_read_mixed_with_brokers),
        doing(_read_without_closed_segments),
        group=KAFKAS,
    ),
    row(
        "may be in it, and only brokers can tell",
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
]
