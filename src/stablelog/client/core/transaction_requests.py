"""Requests of a transactional producer: InitProducerId, AddPartitionsToTxn and EndTxn (KIP-98, KIP-890)."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from stablelog.client.topics import by_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import message_class

TV2_END: Final = 5  # the first version of EndTxn that returns the next producer epoch
TV1_END: Final = TV2_END - 1
INIT: Final = 5  # the version of InitProducerId


class ProducerIdentity(NamedTuple):
    """The identity of a transactional producer, by which the coordinator recognises it: transactional id, producer id
    and producer epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


def init_producer_request(transactional_id: str | None, timeout_ms: int) -> Any:
    """Build the request for a producer id and epoch.

    Args:
        transactional_id: the transactional id; None for an idempotent producer without transactions.
        timeout_ms: how long a transaction may stay open before the coordinator aborts it.
    """
    return message_class(ApiKey.INIT_PRODUCER_ID, INIT, "request")(
        transactional_id=transactional_id, transaction_timeout=timedelta(milliseconds=timeout_ms)
    )


def add_partitions_request(producer: ProducerIdentity, targets: Iterable[TopicPartition]) -> Any:
    """Build the request that adds partitions to the open transaction of a producer, for transaction version 1."""
    from kio.schema.add_partitions_to_txn.v3.request import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
    )

    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic(sorted(targets)).items()
        ),
    )


def end_request(producer: ProducerIdentity, *, is_tv2: bool, commit: bool) -> Any:
    """Build the request that ends the open transaction of a producer.

    Args:
        producer: the identity of the producer.
        is_tv2: whether the coordinator supports transaction version 2, and so returns the next producer epoch.
        commit: True commits, False aborts.
    """
    return message_class(ApiKey.END_TXN, TV2_END if is_tv2 else TV1_END, "request")(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )
