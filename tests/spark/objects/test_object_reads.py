"""Reads of an object store give what a consumer gets from the broker, as far as the store reaches."""

import json

import pytest

from stablelog.spark import count
from stablelog.spark.planning import TaskLimits
from tests.spark.reading import rows, tasks

pytestmark = pytest.mark.xdist_group("objects")


def read(stored, topic, *names, **more):
    return rows({"path": stored.url, "subscribe": topic, **more}, *names or ("offset", "value"))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_read_without_a_broker_is_what_a_consumer_gets(stored, topic, committed):
    isolation = "read_committed" if committed else "read_uncommitted"
    planned = tasks({"path": stored.url, "subscribe": topic, "isolation": isolation})
    end = max(piece.end for pieces in planned for piece in pieces)
    wanted = [row for row in stored.consumed(topic, committed=committed) if row[0] < end]
    assert len(wanted) > 20
    assert stored.manifest(topic).end_offset >= end > 0
    assert read(stored, topic, isolation=isolation) == wanted


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_read_with_a_broker_has_the_rest_too(stored, topic):
    given = {"path": stored.url, "subscribe": topic, "kafka.bootstrap.servers": stored.broker.bootstrap}
    (pieces,) = tasks(given)
    assert [piece.stored is not None for piece in pieces] == [True, False]
    assert rows(given, "offset", "value") == stored.consumed(topic)
    assert count(given) == len(stored.consumed(topic))


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_any_start_and_any_division_give_the_same_records(stored, topic):
    whole = stored.consumed(topic)
    given = {"path": stored.url, "subscribe": topic}
    end = max(piece.end for pieces in tasks(given) for piece in pieces)
    for start in range(0, end, 7):
        starting = json.dumps({topic: {"0": start}})
        for limits in (
            TaskLimits(),
            TaskLimits(target_size=700),
            TaskLimits(offsets_max=5),
            TaskLimits(count_min=9),
        ):
            found = rows({**given, "startingOffsets": starting}, "offset", "value", limits=limits)
            assert found == [row for row in whole if start <= row[0] < end]


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_count_is_that_of_a_read(stored, topic, isolation):
    given = {"path": stored.url, "subscribe": topic, "isolation": isolation}
    end = max(piece.end for pieces in tasks(given) for piece in pieces)
    for start in range(0, end, 11):
        given["startingOffsets"] = json.dumps({topic: {"0": start}})
        assert count(given) == len(rows(given, "offset"))


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_time_as_a_bound_is_answered_as_the_broker_does(stored, topic):
    times = [time for (time,) in rows({"path": stored.url, "subscribe": topic}, "timestamp")]
    for time in times[:: len(times) // 5]:
        bound = {"startingTimestamp": str(int(time.timestamp() * 1000))}
        answer = read(stored, topic, **bound)
        wanted = rows({"bootstrap": stored.broker.bootstrap, "subscribe": topic, **bound}, "offset", "value")
        assert answer == wanted[: len(answer)]
        assert len(answer) > 0
