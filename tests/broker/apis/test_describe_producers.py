"""DescribeProducers: of few producers and of many, whose answer is encoded in a thread."""

import asyncio
import threading

from stablelog.broker.network import long_messages
from stablelog.log.producer_state.producer import ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import Producers
from tests.broker.desk import opened, part
from tests.damage.look import producers

DESCRIBE_PRODUCERS = 61


def test_many_producers_are_described_as_few_are(monkeypatch):
    """In the order of their ids; the event loop does not encode a long answer."""
    encoders = []

    def encoded(*arguments):
        encoders.append(threading.get_ident())
        return encode_response(*arguments)

    encode_response = long_messages.encode_response
    monkeypatch.setattr(long_messages, "encode_response", encoded)

    async def conversation():
        async with opened() as desk:
            partition = desk.broker.partitions.require("t", 0)
            for count in (3, 1001):
                table = ProducerTable.from_producers(ProducerEntry(one, one % 7, 5) for one in range(count))
                partition.log.producers = Producers.from_table(table, 0)
                assert await producers(desk, "t", 0) == [(one, one % 7, -1, 5, -1) for one in range(count)]
            asked = part(DESCRIBE_PRODUCERS, 0, "request", "TopicRequest", name="t", partition_indexes=(1,))
            answer = await desk.ask(DESCRIBE_PRODUCERS, 0, topics=(asked,))
            assert answer.topics[0].partitions[0].active_producers == ()

    asyncio.run(conversation())
    assert [encoder != threading.get_ident() for encoder in encoders] == [False, True, False]
