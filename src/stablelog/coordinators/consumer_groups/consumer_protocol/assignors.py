"""Assignors: they compute the target assignment of a group from the subscriptions of its members.

- `uniform` gives each member nearly the same number of partitions. A member keeps the partitions that it has, as far as
  the numbers allow.
- `range` gives each member, for each topic, a contiguous range of partitions. Members with the same subscription get
  the same partitions of topics with equally many partitions.

The results depend only on the arguments, because members and partitions are processed in sorted order.

Source: KIP-848. The assignments are stablelog's own, and can differ from those that Kafka's assignors would compute.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stablelog.coordinators.consumer_groups.consumer_protocol.model import Partitions, TopicIdPartition


class Subscriber(NamedTuple):
    """A member of the group, as an assignor gets it.

    Attributes:
        sort_key: the assignor processes members in the order of this key, so that its result depends only on the
            members. The key of a static member has its instance id, which a restart of the member keeps.
        topic_ids: the topics that the member subscribes to. Each exists.
        former: the member's former target assignment.
    """

    sort_key: str
    topic_ids: frozenset[uuid.UUID]
    former: Partitions


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[uuid.UUID, int]
Assignor = Callable[[Subscribers, Counts], dict[str, Partitions]]


def assign_ranges(subscribers: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign a contiguous range of each topic to each subscriber of the topic.

    Args:
        subscribers: the members by id.
        counts: the number of partitions of each topic that a member subscribes to.

    Returns:
        The partitions of each member. Each partition of a subscribed topic has exactly one member.
    """
    given: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscribers}
    ordered = sorted(subscribers, key=lambda member_id: (subscribers[member_id].sort_key, member_id))
    for topic_id in sorted(counts):
        members = [member_id for member_id in ordered if topic_id in subscribers[member_id].topic_ids]
        if not members:
            continue
        size, extra = divmod(counts[topic_id], len(members))
        begin = 0
        for place, member_id in enumerate(members):
            end = begin + size + (place < extra)
            given[member_id].update((topic_id, index) for index in range(begin, end))
            begin = end
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def assign_uniformly(subscribers: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign nearly the same number of partitions to each member.

    Args:
        subscribers: the members by id.
        counts: the number of partitions of each topic that a member subscribes to.

    Returns:
        The partitions of each member. Each partition of a subscribed topic has exactly one member.
    """
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) <= 1:
        return _uniform_for_equals(subscribers, counts)
    return _uniform_in_general(subscribers, counts)


def _ordered(subscribers: Subscribers) -> list[str]:
    return sorted(subscribers, key=lambda member_id: (subscribers[member_id].sort_key, member_id))


def _former(subscribers: Subscribers, counts: Counts) -> dict[str, list[TopicIdPartition]]:
    """Return the partitions of the former target assignment that each member may keep, sorted: those of existing topics
    that the member still subscribes to. Each partition has at most one member.
    """
    kept: dict[str, list[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for member_id in _ordered(subscribers):
        subscriber = subscribers[member_id]
        kept[member_id] = [
            partition
            for partition in sorted(subscriber.former)
            if partition[0] in subscriber.topic_ids
            and partition[1] < counts.get(partition[0], 0)
            and partition not in taken
        ]
        taken.update(kept[member_id])
    return kept


def _all_partitions(subscribers: Subscribers, counts: Counts) -> list[TopicIdPartition]:
    subscribed = frozenset().union(*(subscriber.topic_ids for subscriber in subscribers.values()))
    return [(topic_id, index) for topic_id in sorted(subscribed) for index in range(counts.get(topic_id, 0))]


def _uniform_for_equals(subscribers: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign nearly the same number of partitions to each member, when all members subscribe to the same topics."""
    if not subscribers:
        return {}
    everything = _all_partitions(subscribers, counts)
    share, extra = divmod(len(everything), len(subscribers))
    kept = _former(subscribers, counts)
    # The members that have most keep the larger shares, so that as few partitions as possible move.
    by_size = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    quota = {member_id: share + (place < extra) for place, member_id in enumerate(by_size)}
    for member_id, partitions in kept.items():
        del partitions[quota[member_id] :]
    taken = {partition for partitions in kept.values() for partition in partitions}
    free = iter([partition for partition in everything if partition not in taken])
    for member_id in kept:
        partitions = kept[member_id]
        while len(partitions) < quota[member_id]:
            partitions.append(next(free))
    assert next(free, None) is None
    return {member_id: frozenset(partitions) for member_id, partitions in kept.items()}


def _uniform_in_general(subscribers: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign partitions as evenly as possible to members with different subscriptions.

    Free partitions go to the subscriber with the fewest partitions. Then partitions move from a member to another
    subscriber of the same topic that has at least two fewer, until there is no such pair. The loop ends, because each
    move makes the sum of the squares of the members' partition counts smaller.
    """
    members = _ordered(subscribers)
    owned = {member_id: set(partitions) for member_id, partitions in _former(subscribers, counts).items()}
    topics: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for member_id in members:
        for topic_id in subscribers[member_id].topic_ids:
            topics[topic_id].append(member_id)
    taken = {partition for partitions in owned.values() for partition in partitions}
    free = [partition for partition in _all_partitions(subscribers, counts) if partition not in taken]
    # The topics with the fewest subscribers come first: the partitions of the others can still even out the sizes.
    for partition in sorted(free, key=lambda partition: (len(topics[partition[0]]), partition)):
        least = min(topics[partition[0]], key=lambda member_id: len(owned[member_id]))
        owned[least].add(partition)
    moved = True
    while moved:
        moved = False
        for topic_id in sorted(topics):
            moved |= _even_out(topic_id, topics[topic_id], owned)
    return {member_id: frozenset(partitions) for member_id, partitions in owned.items()}


def _even_out(topic_id: uuid.UUID, members: list[str], owned: dict[str, set[TopicIdPartition]]) -> bool:
    """Even out the partitions of a topic: move them from subscribers that own many partitions (of all topics) to
    subscribers that own few. Return whether at least one partition has moved.
    """
    of_topic = {
        member_id: sorted(partition for partition in owned[member_id] if partition[0] == topic_id)
        for member_id in members
    }
    moved = False
    while True:
        giving = [member_id for member_id in members if of_topic[member_id]]
        if not giving:
            return moved
        giver = max(giving, key=lambda member_id: len(owned[member_id]))
        taker = min(members, key=lambda member_id: len(owned[member_id]))
        if len(owned[giver]) - len(owned[taker]) < 2:
            return moved
        partition = of_topic[giver].pop()
        of_topic[taker].append(partition)
        owned[giver].remove(partition)
        owned[taker].add(partition)
        moved = True


DEFAULT_ASSIGNOR: Final = "uniform"
ASSIGNORS: Final[Mapping[str, Assignor]] = {DEFAULT_ASSIGNOR: assign_uniformly, "range": assign_ranges}
