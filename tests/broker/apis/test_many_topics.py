"""A request with many topics of one partition each is handled in as many turns as one with many partitions of one topic."""

import asyncio
from datetime import timedelta

import pytest

from stablelog.broker.apis import add_partitions_to_txn, list_offsets
from stablelog.broker.loop import turns
from tests.broker.desk import add_partitions_fields, opened

FETCH, LIST_OFFSETS, OFFSET_COMMIT, DELETE_RECORDS = 1, 2, 8, 21
ADD_PARTITIONS_TO_TXN, TXN_OFFSET_COMMIT = 24, 28
COUNT = 30
NAMES = [f"topic-{number}" for number in range(COUNT)]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Each turn is over at once, and few partitions are handled at once."""
    monkeypatch.setattr(turns, "TURN_S", -1)
    monkeypatch.setattr(add_partitions_to_txn, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(list_offsets, "BRIEF_MAX", 2)


def turn_count(api_key, version, values):
    """The number of turns of the event loop in which a request is handled."""

    async def conversation():
        async with opened(topics=()) as desk:
            # A producer of its own id, for the requests of a transaction.
            producer = await desk.init("a")
            who = {"transactional_id": "a", "producer_id": producer[0], "producer_epoch": producer[1]}
            if api_key == ADD_PARTITIONS_TO_TXN:
                fields = add_partitions_fields(version, "a", producer, [(name, 0) for name in NAMES])
                asked = asyncio.ensure_future(desk.ask(api_key, version, **fields))
            else:
                asked = asyncio.ensure_future(desk.ask_with(api_key, version, who | values))
            count = 0
            while not asked.done():
                count += 1
                await asyncio.sleep(0)
            await asked
            return count

    return asyncio.run(asyncio.wait_for(conversation(), 60))


def topics_with(partition, *, named="name"):
    """A topic for each of NAMES, with one partition."""
    return [{named: name, "partitions": [partition]} for name in NAMES]


OFFSET = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}


# A loop over all partitions takes one turn for each of them. A loop over topics with a loop over the partitions of each
# takes three for a topic with one partition: one in the outer loop, and in the inner loop one before the partition and
# one behind it.
@pytest.mark.parametrize(
    ("api_key", "version", "turns_per_topic", "values"),
    [
        # The partitions of a fetch are noted, read, and put into the response.
        pytest.param(
            FETCH,
            11,
            3 + 1 + 1,
            {
                "max_wait": timedelta(0),
                "session_id": 0,
                "session_epoch": -1,
                "forgotten_topics_data": (),
                "rack_id": "",
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "isolation_level": 1,
                "topics": topics_with(
                    {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}, named="topic"
                ),
            },
            id="Fetch",
        ),
        pytest.param(
            LIST_OFFSETS,
            5,
            1 + 1,
            {
                "replica_id": -1,
                "isolation_level": 1,
                "topics": topics_with({"partition_index": 0, "timestamp": -1}),
            },
            id="ListOffsets",
        ),
        pytest.param(
            OFFSET_COMMIT,
            8,
            1 + 3,
            {"group_id": "g", "member_id": "", "topics": topics_with(OFFSET)},
            id="OffsetCommit",
        ),
        pytest.param(
            DELETE_RECORDS,
            2,
            1 + 2,
            {
                "timeout": timedelta(seconds=60),
                "topics": topics_with({"partition_index": 0, "offset": -1}),
            },
            id="DeleteRecords",
        ),
        pytest.param(ADD_PARTITIONS_TO_TXN, 3, 1 + 3, {}, id="AddPartitionsToTxn"),
        pytest.param(
            TXN_OFFSET_COMMIT,
            2,
            1 + 3,
            {"group_id": "g", "topics": topics_with(OFFSET)},
            id="TxnOffsetCommit",
        ),
    ],
)
def test_others_are_served_between_two_topics(api_key, version, turns_per_topic, values):
    assert turn_count(api_key, version, values) >= turns_per_topic * (COUNT - 2)
