"""Finds partitions without a leader and the reasons, for the commands that show them."""

from collections.abc import Iterable, Mapping
from typing import Final

from stablelog.client.topics import TopicDescription
from stablelog.types import TopicPartition

OFFLINE: Final = "offline: see the reason in the broker's log"
OPENING: Final = "without a leader: the broker is opening it"


def without_leader(known: Mapping[str, TopicDescription], topics: Iterable[str]) -> dict[TopicPartition, str]:
    """Return the partitions of these topics that have no leader, each with the reason. Missing topics are skipped.

    Args:
        known: the topics of the brokers' metadata.
        topics: the names of topics.
    """
    return {
        (name, index): OFFLINE if partition.is_offline else OPENING
        for name in topics
        for index, partition in (known[name].partitions.items() if name in known else ())
        if partition.leader_id < 0
    }


def state_of(unavailable: str | None) -> str:
    """Return the state of a partition in one word: online, offline, or opening (the broker is recovering it after a
    start).

    Args:
        unavailable: the reason why the partition has no leader; None if it has one.
    """
    if unavailable is None:
        return "online"
    return "offline" if unavailable == OFFLINE else "opening"
