"""Membership in a consumer group by KIP-848: the coordinator assigns partitions, and the member takes and releases
them.

`follow_assignment` sends a heartbeat if the heartbeat interval has passed, or if the coordinator must be told of a
change. It returns the partitions that the group takes away from this member. The caller then commits the offsets of
these partitions. The next heartbeat tells the coordinator that the member has released them.
"""

import base64
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.groups import CommittedOffset, offsets_in_response, remove_committed
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.coordinators import GROUP_COORDINATOR
from stablelog.client.core.steps import NOW, Pause, Steps
from stablelog.client.responses import RETRIABLE_CODES, RetriableError, check, is_retriable, refused_error
from stablelog.client.topics import by_topic
from stablelog.errors import RefusedError, UnavailableError
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2  # member epochs with a meaning
# How long the coordinator waits until a member gives partitions up.
REBALANCE_TIMEOUT: Final = timedelta(minutes=5)
RETRY_S: Final = 0.1
WITH_PATTERN: Final = 1  # the first version of ConsumerGroupHeartbeat with a regular expression
PLACE_S: Final = 0.5  # how long the member waits for committed offsets before its next heartbeat
# The member has no place in the group any more; it joins again.
_FENCED: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
# What a coordinator answers to a member that joins a group with members of the classic protocol.
_OTHER_PROTOCOL: Final = (ErrorCode.group_id_not_found, ErrorCode.inconsistent_group_protocol)
# The member has no place in the group: the group has given its partitions to others.
NOT_A_MEMBER: Final = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    }
)


class Change(NamedTuple):
    """The changes of the assignment that a heartbeat has brought.

    Attributes:
        revoked: partitions that the group is going to assign to another member. Commit their offsets before the next
            heartbeat.
        lost: partitions that another member may have already, so that this member can no longer commit their offsets.
        assigned: new partitions, each with the offset that the group has committed; None for a partition without a
            committed offset.
    """

    revoked: tuple[TopicPartition, ...] = ()
    lost: tuple[TopicPartition, ...] = ()
    assigned: Mapping[TopicPartition, CommittedOffset | None] = {}


NO_CHANGE: Final = Change()


class GroupMember:
    """A member of a consumer group: the state of its membership, and the steps (generators of I/O operations) that keep
    it.

    Args:
        cluster: the brokers.
        group_id: the group.
        topics: the topics to read; or a regular expression (RE2) that whole names must match.
        instance_id: the id of a static member; None for a dynamic one.

    Attributes:
        group_id: as given.
        topics: the names of the topics; or a tuple with only the regular expression.
        instance_id: as given.
        member_id: the id of this member, a random UUID.
        epoch: the epoch of this member; 0 before it has joined.
        owned: the partitions that are assigned to this member and that it has taken.
    """

    def __init__(
        self, cluster: Cluster, group_id: str, topics: Iterable[str] | str, *, instance_id: str | None = None
    ) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._names = None if isinstance(topics, str) else tuple(dict.fromkeys(self.topics))
        self._pattern = topics if isinstance(topics, str) else None
        self.instance_id = instance_id
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.epoch = JOIN
        self.owned: set[TopicPartition] = set()
        self._target: set[TopicPartition] | None = None  # the assignment that the member is on the way to
        self._unnamed: dict[uuid.UUID, tuple[int, ...]] = {}  # assigned topics whose names are not known yet
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._due = 0.0  # when the next heartbeat is due
        self._approach_at = 0.0  # when the committed offsets of new partitions are asked for again
        self._has_news = True  # whether the coordinator does not know yet what the member owns
        self._is_unanswered = False  # whether the response to the last heartbeat was lost

    def follow_assignment(self) -> Steps[Change]:
        """Send a heartbeat if one is due, and return what it has changed: the partitions that the member has to
        release, has lost and has got. The change is empty if no heartbeat was due.

        Raises:
            RefusedError: the coordinator refuses the member for good: the broker has no groups of KIP-848, the user may
                not read the group, the expression is not valid, or the group is full or one of the classic protocol.
            UnavailableError: no coordinator responds within the deadline.
        """
        now = yield NOW
        if now < self.next_due_s:
            return NO_CHANGE
        if now < self._due and not self._has_news and not self._unnamed:
            return (yield from self._reconcile())
        answer = yield from self._cluster.retrying(
            f"heartbeat of group {self.group_id!r}", self._send_heartbeat
        )
        self._due = (yield NOW) + answer.heartbeat_interval.total_seconds()
        if answer.error_code in _FENCED:
            return self._rejoin()
        self._has_news = False
        self._apply_heartbeat(answer)
        if self._unnamed:
            yield from self._name_topics()
        return (yield from self._reconcile())

    def _apply_heartbeat(self, answer: Any) -> None:
        """Store the epoch in the response to a heartbeat, and the assignment if the response has one."""
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._unnamed = {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}
            self._target = set()

    @property
    def next_due_s(self) -> float:
        """The time at which `follow_assignment` has to be called next, in seconds of the client's monotonic clock
        (`steps.Now`).
        """
        if self._has_news or self._unnamed:
            return 0.0
        return self._due if self._target is None else min(self._due, self._approach_at)

    def _rejoin(self) -> Change:
        lost, self.owned = tuple(sorted(self.owned)), set()
        self.epoch, self._due, self._has_news, self._target = JOIN, 0.0, True, None
        self._unnamed.clear()
        return Change(lost=lost)

    def _send_heartbeat(self) -> Steps[Any]:
        connection = yield from self._coordinator()
        request = self._heartbeat_request(self.epoch, is_whole=self._is_unanswered)
        self._is_unanswered = True
        answer = yield from connection.request_steps(request)
        self._is_unanswered = False
        if answer.error_code is ErrorCode.unreleased_instance_id:
            raise RetriableError(
                f"another member has the instance id {self.instance_id!r}: stop it, or use another id"
            )
        if self.epoch == JOIN and answer.error_code in _OTHER_PROTOCOL:
            raise RefusedError(
                answer.error_code,
                f"group {self.group_id!r} has members that use the classic protocol: stop them, let them use "
                "group.protocol=consumer, or choose another group",
            )
        if answer.error_code not in _FENCED:
            check(answer.error_code, f"group {self.group_id!r}", answer.error_message)
        return answer

    def _coordinator(self) -> Steps[BrokerConnection]:
        connection = yield from self._cluster.coordinator(self.group_id, GROUP_COORDINATOR)
        if not connection.supports_api(ApiKey.CONSUMER_GROUP_HEARTBEAT):
            raise RefusedError(
                ErrorCode.unsupported_version,
                f"the broker {connection.address} has no consumer groups of KIP-848, which this client needs: use a broker "
                "that has them (stablelog, or Apache Kafka from 4.0 on), or a client with the classic protocol",
            )
        if self._pattern is not None and not connection.supports_api(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, WITH_PATTERN
        ):
            raise RefusedError(
                ErrorCode.unsupported_version,
                f"the broker {connection.address} does not know subscriptions by regular expressions: use a broker that does "
                "(stablelog, or Apache Kafka from 4.0 on), or name the topics",
            )
        return connection

    def _heartbeat_request(self, epoch: int, *, is_whole: bool = False) -> Any:
        """Build the request of a heartbeat.

        Args:
            epoch: the member epoch to send; special values mean that the member joins or leaves.
            is_whole: whether the request has all fields, also those that have not changed. This is necessary if the
                response to the last heartbeat was lost: the response to a whole request has the assignment again.
        """
        from kio.schema.consumer_group_heartbeat.v1.request import (
            ConsumerGroupHeartbeatRequest,
            TopicPartitions,
        )

        is_joining = epoch == JOIN
        owned = None
        if is_joining:
            owned = ()
        elif self._has_news or is_whole:
            owned = tuple(
                TopicPartitions(topic_id=self._topic_ids[topic], partitions=tuple(sorted(indexes)))
                for topic, indexes in by_topic(self.owned).items()
            )
        whole: dict[str, Any] = (
            {
                "rebalance_timeout": REBALANCE_TIMEOUT,
                "subscribed_topic_names": self._names or (),
                "subscribed_topic_regex": self._pattern,
            }
            if is_joining or is_whole
            else {}
        )
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            topic_partitions=owned,
            **whole,
        )

    def _name_topics(self) -> Steps[None]:
        """Look up the names of assigned topics in metadata, because an assignment contains only topic ids. The name of
        a topic that was created just now may be known only some heartbeats later.
        """
        assert self._target is not None
        names = {topic.topic_id: name for name, topic in (yield from self._cluster.metadata()).items()}
        for topic_id in [one for one in self._unnamed if one in names]:
            name = names[topic_id]
            self._topic_ids[name] = topic_id
            self._target |= {(name, index) for index in self._unnamed.pop(topic_id)}

    def _reconcile(self) -> Steps[Change]:
        """Reconcile the member's partitions with its assignment. Release the partitions that are no longer assigned,
        and return them as revoked. If there are none, take the new partitions, and return them with their committed
        offsets. So the coordinator learns of the release before the member takes new partitions.
        """
        if self._target is None or (now := (yield NOW)) < self._approach_at:
            return NO_CHANGE
        revoked = tuple(sorted(self.owned - self._target))
        if revoked:
            self.owned -= set(revoked)
            self._has_news = True  # the coordinator learns with the next heartbeat that they are free
            return Change(revoked=revoked)
        new = sorted(self._target - self.owned)
        committed: Mapping[TopicPartition, CommittedOffset] | None = {}
        if new:
            committed = yield from self.committed_offsets_once(new)
        if committed is None:
            self._approach_at = now + RETRY_S  # heartbeats go on meanwhile
            return NO_CHANGE
        if not self._unnamed:
            self._target = None
        # The coordinator learns what the member owns after each assignment, also if the member had all of it before: it may
        # wait for a partition that it gave and took back before the member had it.
        self._has_news = True
        if not new:
            return NO_CHANGE
        self.owned |= set(new)
        return Change(assigned={target: committed.get(target) for target in new})

    # --- offsets ---

    def committed_offsets_once(
        self, partitions: Iterable[TopicPartition]
    ) -> Steps[dict[TopicPartition, CommittedOffset] | None]:
        """Request the committed offsets of these partitions, without a retry. Return None if the coordinator cannot
        tell them: it does not respond, an open transaction has written such offsets, or the group has removed this
        member. Call again after the next heartbeat.

        Raises:
            RefusedError: the user may not read the group.
        """
        try:
            return (yield from self.committed_offsets(partitions, deadline_s=PLACE_S))
        except UnavailableError:
            return None
        except RefusedError as refused:
            if refused.code not in _FENCED:
                raise
            self._due = 0.0  # the coordinator answers the same to the heartbeat, and the member joins again
            return None

    def committed_offsets(
        self, partitions: Iterable[TopicPartition], *, deadline_s: float | None = None
    ) -> Steps[dict[TopicPartition, CommittedOffset]]:
        """Return the committed offsets of these partitions. If an open transaction has written offsets for them, wait
        until it has ended, because only then it is known which offsets are committed.

        Args:
            partitions: the partitions.
            deadline_s: the number of seconds until the call fails; None for the deadline of the cluster.

        Raises:
            RefusedError: the user may not read the group.
            UnavailableError: the coordinator does not respond within the deadline, or the transaction stays open.
        """
        from kio.schema.offset_fetch.v9.request import (
            OffsetFetchRequest,
            OffsetFetchRequestGroup,
            OffsetFetchRequestTopics,
        )

        wanted = by_topic(partitions)

        def attempt() -> Steps[dict[TopicPartition, CommittedOffset]]:
            connection = yield from self._coordinator()
            group = OffsetFetchRequestGroup(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                topics=tuple(
                    OffsetFetchRequestTopics(name=name, partition_indexes=tuple(indexes))
                    for name, indexes in wanted.items()
                ),
            )
            request = OffsetFetchRequest(groups=(group,), require_stable=True)
            (answer,) = (yield from connection.request_steps(request)).groups
            return offsets_in_response(answer, self.group_id)

        return (yield from self._cluster.retrying(f"offsets of group {self.group_id!r}", attempt, deadline_s))

    def commit_offsets(
        self, offsets: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str] | None = None
    ) -> Steps[None]:
        """Commit, for each partition, the offset of the next record to read.

        Args:
            offsets: the offset of each partition.
            metadata: the text to store with the offset, by partition. A partition that is missing here gets no text.

        Raises:
            RefusedError: the group has replaced this member, so that another one reads these partitions; or a partition
                does not exist, or the user may not read the group.
            UnavailableError: the coordinator does not respond within the deadline.
        """
        from kio.schema.offset_commit.v9.request import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

        left = dict(offsets)

        def attempt() -> Steps[None]:
            connection = yield from self._coordinator()
            request = OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                topics=tuple(
                    OffsetCommitRequestTopic(
                        name=name,
                        partitions=tuple(
                            OffsetCommitRequestPartition(
                                partition_index=index,
                                committed_offset=left[name, index],
                                committed_metadata=(metadata or {}).get((name, index), ""),
                            )
                            for index in indexes
                        ),
                    )
                    for name, indexes in by_topic(left).items()
                ),
            )
            failures = remove_committed((yield from connection.request_steps(request)), left)
            for code, place in failures:
                if code is ErrorCode.stale_member_epoch:
                    yield from self._learn_epoch()
                    raise RetriableError(
                        f"the epoch of the member of group {self.group_id!r} has changed: the request is "
                        "repeated with the new epoch"
                    )
                if code not in RETRIABLE_CODES:
                    raise refused_error(
                        code, f"committing the offset of {place} of group {self.group_id!r}: {code.name}"
                    )
            if failures:
                code, place = failures[0]
                raise RetriableError(f"the broker cannot commit the offset of {place} now: {code.name}")

        if left:
            yield from self._cluster.retrying(f"committing offsets of group {self.group_id!r}", attempt)

    def _learn_epoch(self) -> Steps[None]:
        """Learn the present epoch of the member by a heartbeat, because the coordinator has refused the stored one as
        old. An assignment in the response is stored for the next call of `follow_assignment`.
        """
        answer = yield from self._send_heartbeat()
        if answer.error_code in _FENCED:
            raise refused_error(
                answer.error_code, f"the coordinator has removed this member from group {self.group_id!r}"
            )
        self._apply_heartbeat(answer)

    def leave_group(self) -> Steps[None]:
        """Leave the group, so that its coordinator assigns the partitions to other members at once. A static member,
        which may come back, keeps its partitions until the session timeout. Errors are ignored: if the coordinator does
        not learn that the member leaves, it removes the member after the session timeout.
        """
        if self.epoch == JOIN:
            return
        epoch = LEAVE if self.instance_id is None else LEAVE_FOR_A_WHILE
        self._has_news = False
        try:
            connection = yield from self._coordinator()
            yield from connection.request_steps(self._heartbeat_request(epoch))
        except (RefusedError, UnavailableError, RetriableError) as failure:
            if not is_retriable(failure):
                return
            yield Pause(RETRY_S)
        self.epoch = JOIN
        self.owned = set()
