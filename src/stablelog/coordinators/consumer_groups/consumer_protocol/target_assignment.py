"""Target assignments: which partitions each member of a consumer group should have.

The work grows with the numbers of topics, partitions and members. It has three steps: the group makes a plan, the plan
is computed, and the group applies the result. The second step reads only the plan and the topics. For a large plan it
can therefore run in a thread, while the group continues with its former target assignment.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from stablelog.coordinators.consumer_groups.consumer_protocol.assignors import ASSIGNORS, Subscriber
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    Partitions,
    SubscribableTopic,
    TopicLookup,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.records import encode_target

HASH_SIZE: Final = 8
# The maximum cost of a plan that is computed at once. One unit of cost takes about 6 µs.
UNDIVIDED_MAX: Final = 1_000
PAIRS_PER_UNIT: Final = 8


class PlannedMember(NamedTuple):
    """A member, as the plan of a target assignment contains it.

    Attributes:
        sort_key: assignors process the members in the order of this key.
        topics: the names of the topics that the member subscribes to. Members with equal subscriptions share one
            object.
        former: the member's former target assignment.
    """

    sort_key: str
    topics: frozenset[str]
    former: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentPlan:
    """The input from which a target assignment is computed.

    Attributes:
        epoch: the group's epoch.
        target_epoch: the epoch of the former target assignment.
        topics_version: the version of the broker's list of topics, which changes with each change of a topic.
        topics_hash: the hash of the subscribed topics at the group's present epoch, by which a change of topics is
            noticed.
        is_due: whether the target assignment must be computed even if the topics have not changed, because members or
            subscriptions have changed since the former one.
        assignor: the name of the assignor.
        members: the members by id.
    """

    epoch: int
    target_epoch: int
    topics_version: int
    topics_hash: int
    is_due: bool
    assignor: str
    members: Mapping[str, PlannedMember]

    def is_large(self, topics: TopicLookup) -> bool:
        """Return whether the plan is large: to compute its target assignment would hold the event loop for long."""
        distinct = {id(member.topics): member.topics for member in self.members.values()}
        count = sum(map(len, distinct.values()))
        if count + len(self.members) > UNDIVIDED_MAX:
            return True
        known = _existing(self, topics).values()
        partition_count = sum(topic.partition_count for topic in known)
        partition_count += sum(len(member.former) for member in self.members.values())
        pair_count = partition_count * len(self.members) if len(distinct) > 1 else 0
        return count + len(self.members) + partition_count + pair_count // PAIRS_PER_UNIT > UNDIVIDED_MAX


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The result of a plan: the target assignment of a group.

    Attributes:
        topics_hash: the hash of the subscribed topics, with their partition counts.
        partitions: the partitions of each member; None if the former target assignment is still right.
        values: the encoded record values of those members whose partitions have changed.
    """

    topics_hash: int
    partitions: Mapping[str, Partitions] | None
    values: Mapping[str, bytes]


def compute_target(plan: AssignmentPlan, topics: TopicLookup) -> TargetAssignment:
    """Compute the target assignment from a plan, which contains all that is needed of the group. May run in a
    thread.
    """
    known = _existing(plan, topics)
    topics_hash = topics_hash_of(known)
    if not plan.is_due and topics_hash == plan.topics_hash:
        return TargetAssignment(topics_hash, None, {})
    ids = {
        id(names): frozenset(known[name].topic_id for name in names if name in known)
        for names in {id(member.topics): member.topics for member in plan.members.values()}.values()
    }
    subscribers = {
        member_id: Subscriber(member.sort_key, ids[id(member.topics)], member.former)
        for member_id, member in plan.members.items()
    }
    counts: dict[uuid.UUID, int] = {topic.topic_id: topic.partition_count for topic in known.values()}
    partitions = ASSIGNORS[plan.assignor](subscribers, counts)
    changed = {
        member_id: encode_target(given)
        for member_id, given in partitions.items()
        if given != plan.members[member_id].former
    }
    return TargetAssignment(topics_hash, partitions, changed)


def _existing(plan: AssignmentPlan, topics: TopicLookup) -> dict[str, SubscribableTopic]:
    """Return the existing topics among those that the members subscribe to, by name. `plan` lists these members, for
    which a target assignment is computed.
    """
    distinct = {id(member.topics): member.topics for member in plan.members.values()}
    names = frozenset().union(*distinct.values())
    return {name: found for name in sorted(names) if (found := topics.find(name)) is not None}


def topics_hash_of(topics: Mapping[str, SubscribableTopic]) -> int:
    """Return a number that identifies topics, with their ids and partition counts; 0 for no topics."""
    if not topics:
        return 0
    digest = blake2b(digest_size=HASH_SIZE)
    for name, (topic_id, partition_count) in sorted(topics.items()):
        digest.update(f"{name}\0{topic_id}\0{partition_count}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
