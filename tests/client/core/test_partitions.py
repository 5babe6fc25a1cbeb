"""Requests to the leaders of partitions: offsets, leader epochs and fetches."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.partitions import epoch_end, epoch_ends, list_offsets
from stablelog.client.topics import ListedOffset
from stablelog.errors import RefusedError, UnavailableError
from tests.client.core.leader_answers import epoch_ends_at, listed_offsets
from tests.client.core.scripted import Brokers

T0, T1, T3 = ("t", 0), ("t", 1), ("t", 3)
TOPICS = {"t": 4}


def offsets(by_partition):
    """An answer with the offset of each partition, or an error code. A partition that is not named is left out."""
    return listed_offsets(lambda index, _time: by_partition.get(index))


def test_each_leader_is_asked_for_its_partitions():
    brokers = Brokers({"ListOffsets": offsets({0: 5, 1: 6, 3: 7})}, TOPICS)
    found = brokers.run(list_offsets(brokers.cluster(), {T0: -1, T1: -2, T3: 99}))
    assert found == {T0: ListedOffset(5, 1000, 2), T1: ListedOffset(6, 1000, 2), T3: ListedOffset(7, 1000, 2)}
    asked = {
        host: {one.partition_index: one.timestamp for one in request.topics[0].partitions}
        for host, request in brokers.requests("ListOffsets")
    }
    assert asked == {"one": {0: -1, 3: 99}, "two": {1: -2}}


@pytest.mark.parametrize(("isolation", "level"), [("read_uncommitted", 0), ("read_committed", 1)])
def test_the_end_is_that_which_the_isolation_sees(isolation, level):
    brokers = Brokers({"ListOffsets": offsets({0: 5})}, TOPICS)
    brokers.run(list_offsets(brokers.cluster(), {T0: -1}, isolation))
    assert brokers.request("ListOffsets").isolation_level == level


def test_a_partition_whose_leader_has_moved_is_asked_for_again_and_the_others_are_not():
    answers = [offsets({0: 5, 3: ErrorCode.not_leader_or_follower}), offsets({3: 7})]
    brokers = Brokers({"ListOffsets": answers}, TOPICS)
    found = brokers.run(list_offsets(brokers.cluster(), {T0: -1, T3: -1}))
    assert {target: one.offset for target, one in found.items()} == {T0: 5, T3: 7}
    last = brokers.requests("ListOffsets")[-1][1]
    assert [one.partition_index for one in last.topics[0].partitions] == [3]


def test_a_partition_that_the_response_lacks_is_asked_for_again_until_the_deadline():
    brokers = Brokers({"ListOffsets": offsets({})}, TOPICS)
    with pytest.raises(UnavailableError, match="the response of one:9092 does not contain the offset of t-0"):
        brokers.run(list_offsets(brokers.cluster(), {T0: -1}))


def test_a_refused_partition_is_named():
    brokers = Brokers({"ListOffsets": offsets({0: ErrorCode.unsupported_for_message_format})}, TOPICS)
    with pytest.raises(RefusedError, match="the offsets of t-0: unsupported for message format"):
        brokers.run(list_offsets(brokers.cluster(), {T0: -1}))


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do():
    brokers = Brokers({}, TOPICS)
    with pytest.raises(RefusedError, match="topic 't' has no partition 4, only 0 to 3"):
        brokers.run(list_offsets(brokers.cluster(), {("t", 4): -1}))


def epochs(by_partition):
    return epoch_ends_at(lambda index, _epoch: by_partition[index])


def test_the_end_of_a_leader_epoch_is_asked_of_each_leader():
    brokers = Brokers({"OffsetForLeaderEpoch": epochs({0: (3, 50), 1: (4, 60)})}, TOPICS)
    assert brokers.run(epoch_ends(brokers.cluster(), {T0: 3, T1: 5})) == {T0: (3, 50), T1: (4, 60)}
    asked = {
        (host, one.partition, one.leader_epoch)
        for host, request in brokers.requests("OffsetForLeaderEpoch")
        for one in request.topics[0].partitions
    }
    assert asked == {("one", 0, 3), ("two", 1, 5)}


def test_a_partition_without_an_epoch_as_great_has_none():
    brokers = Brokers({"OffsetForLeaderEpoch": epochs({0: (-1, -1)})}, TOPICS)
    assert brokers.run(epoch_end(brokers.cluster(), "t", 0, 9)) is None
