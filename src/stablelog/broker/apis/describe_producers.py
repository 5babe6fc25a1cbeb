"""DescribeProducers (61): the producers of a partition and their open transactions (KIP-664)."""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.log.producer_state.producer import ProducerEntry
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest
    from kio.schema.describe_producers.v0.response import (
        DescribeProducersResponse,
        PartitionResponse,
        ProducerState,
    )

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.DESCRIBE_PRODUCERS,
    first_version=0,
    last_version=0,
    is_heavy=True,
    has_long_response=True,
    rights=(on_topic(Operation.READ),),
    codes={"": PARTITION_CODES},
)
messages = API.messages


def _producer_response(producer: ProducerEntry) -> "ProducerState":
    return messages.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.used_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.txn_first_offset,
    )


async def handle(
    broker: Broker, request: "DescribeProducersRequest", context: Context
) -> "DescribeProducersResponse":
    """Return the producers of each partition, with the first offsets of their open transactions."""

    async def describe(name: str, index: int) -> "PartitionResponse":
        try:
            context.require(Operation.READ, ResourceType.TOPIC, name)
            producers = broker.partitions.require(name, index, PARTITION_CODES).log.producers
        except PARTITION_ERRORS as error:
            return messages.PartitionResponse(
                partition_index=index,
                error_code=PARTITION_CODES.code_for_error(error),
                error_message=str(error),
                active_producers=(),
            )
        return messages.PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.none,
            active_producers=await for_each(producers, _producer_response),
        )

    return messages.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                messages.TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        [
                            await describe(topic.name, index)
                            async for index in in_turns(dict.fromkeys(topic.partition_indexes))
                        ]
                    ),
                )
                async for topic in in_turns({topic.name: topic for topic in request.topics}.values())
            ]
        ),
    )
