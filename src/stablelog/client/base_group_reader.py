"""The base of the readers of consumer groups in the blocking and the asyncio client: the check of their arguments, and
all methods that do not wait.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic

from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core import arguments
from stablelog.client.core.group_reading import STARTS, GroupReading
from stablelog.client.core.membership import GroupMember
from stablelog.client.core.steps import Steps
from stablelog.client.one_call import OneCall
from stablelog.client.topics import ISOLATIONS
from stablelog.errors import UsageError
from stablelog.processes import check_process, this_process
from stablelog.types import TopicPartition


def prepare_subscription(
    clusters: ClusterPool[ClusterT],
    topics: str | Iterable[str] | re.Pattern[str],
    group: str,
    *,
    isolation: str,
    start: str,
    wait: float | None,
    instance_id: str | None,
) -> tuple[ClusterT, GroupReading, float | None]:
    """Check the arguments of `Client.subscribe`, and make the objects with which its reader works.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.
        topics: one name, several names, or a compiled regular expression.
        group: the consumer group.
        isolation: "read_committed" or "read_uncommitted".
        start: "earliest" or "latest": where a partition without a committed offset is read from.
        wait: seconds to wait for another record; None for no limit.
        instance_id: the id of a static member of the group; None for a dynamic member.

    Returns:
        Three values: the cluster object (the connections to the brokers), which the reader must return to the pool when
        it is closed; the object that has the state of the reader; and the reader's time limit in seconds, None for no
        limit.

    Raises:
        TypeError: an argument has a wrong type.
        UsageError: no topic, an invalid name, an expression with flags, an empty group or id, or an unknown isolation
            or start.
        RefusedError: the client is closed.
    """
    names = _expression(topics) if isinstance(topics, re.Pattern) else arguments.topic_names(topics)
    if not arguments.request_text("group", group, "the name of a consumer group (str)"):
        raise UsageError("group is empty: give the name of a consumer group")
    if instance_id is not None and not arguments.request_text(
        "instance_id", instance_id, "a text (str), or None"
    ):
        raise UsageError("instance_id is empty: give the id of a static member, or None")
    for name, value, known in (("isolation", isolation, ISOLATIONS), ("start", start, STARTS)):
        if arguments.text(name, value) not in known:
            raise UsageError(
                f"{name}={arguments.shown_value(value)} is not valid: use {' or '.join(map(repr, known))}"
            )
    wait_s = arguments.wait_seconds(wait)
    cluster = clusters.lend_cluster()
    member = GroupMember(cluster.core, group, names, instance_id=instance_id)
    return cluster, GroupReading(cluster.core, member, isolation, start), wait_s


def _expression(pattern: re.Pattern[str]) -> str:
    """Return the text of a compiled regular expression, for the request to the broker.

    Raises:
        UsageError: the expression is for bytes, has flags, or is too long for the request to the broker.
    """
    if not isinstance(pattern.pattern, str) or pattern.flags & ~re.UNICODE:
        raise UsageError(
            f"the pattern {pattern!r} is not valid: compile the pattern from a text and without flags, "
            "because the broker gets only the text"
        )
    return arguments.request_text("topics", pattern.pattern)


class BaseGroupReader(Generic[ClusterT]):
    """The methods of a reader of a consumer group that do not wait.

    Args:
        cluster: the connections to the brokers. Until the reader is closed, nothing else uses them.
        reading: the object of `client.core` that has the state of the reader and decides what its calls do.
        wait_s: how long to wait for the next record before an iteration ends; None for no limit.
        give_back: called with `cluster` when the reader is closed, so that others can use the connections.
    """

    def __init__(
        self,
        cluster: ClusterT,
        reading: GroupReading,
        wait_s: float | None,
        give_back: Callable[[ClusterT], None],
    ) -> None:
        self._process = this_process()
        self._cluster = cluster
        self._reading = reading
        self._wait_s = wait_s
        self._give_back = give_back
        self._calls = OneCall()

    def __repr__(self) -> str:
        member, state = self._reading.member, "closed" if self._reading.is_closed else "open"
        names = ", ".join(member.topics)
        return f"<{type(self).__name__} of {names} in group {member.group_id!r}, {state}>"

    @property
    def _is_own(self) -> bool:
        """Whether the reader was made in this process, and not in a process from which this one was forked."""
        return self._process is this_process()

    def _check_process(self) -> None:
        check_process(self._process, "this reader")

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the group has assigned to this reader, as (topic, partition). It changes only during
        calls that read, because these exchange heartbeats with the group's coordinator. It is empty before the first of
        them.
        """
        return self._reading.assignment

    def pause(self, topic: str, partition: int | None = None) -> None:
        """Pause the reading of a partition: its records are not returned until `resume` is called. The partition stays
        assigned to the reader.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic, also those that the reader gets later.
        """
        with self._calls.lock_if_free():
            self._reading.pause(*arguments.topic_and_partition(topic, partition))

    def resume(self, topic: str, partition: int | None = None) -> None:
        """Resume the reading of a paused partition: its next record is the one after the last record that the program
        has got.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic.

        Raises:
            UsageError: the whole topic is paused, so that one partition of it cannot be resumed.
        """
        with self._calls.lock_if_free():
            self._reading.resume(*arguments.topic_and_partition(topic, partition))

    def _seek(self, topic: str, partition: int, offset: int) -> Steps[None]:
        target = (arguments.topic_name(topic), arguments.partition_number(partition))
        return self._reading.cluster.run_until_deadline(
            self._reading.seek(target, arguments.offset_number(offset))
        )

    def _seek_to(self, spec: int, topic: str | None, partition: int | None) -> Steps[None]:
        if partition is not None and topic is None:
            raise UsageError(
                f"partition {arguments.shown_value(partition)} is given without a topic: give both"
            )
        if topic is not None:
            topic, partition = arguments.topic_and_partition(topic, partition)
        return self._reading.cluster.run_until_deadline(self._reading.seek_to_spec(spec, topic, partition))


def reading_of(reader: object, kind: type[BaseGroupReader[Any]], bootstrap: str) -> GroupReading | None:
    """Return the state (`GroupReading`) of the reader whose offsets a transaction is to commit; None if the program has
    given no reader.

    Args:
        reader: the argument `offsets_of` of the program; None if it is not given.
        kind: the class of the client's readers.
        bootstrap: the addresses of the client.

    Raises:
        TypeError: the argument is not a reader that `subscribe` of this client has made.
        UsageError: the reader belongs to another cluster.
    """
    if reader is None:
        return None
    if not isinstance(reader, kind):
        raise arguments.wrong_type(
            "offsets_of", reader, f"a reader that subscribe of this client has returned ({kind.__name__})"
        )
    reading: GroupReading = reader._reading  # noqa: SLF001 - the client's classes are one unit
    if reading.cluster.bootstrap != bootstrap:
        raise UsageError(
            f"{reader!r} reads from {reading.cluster.bootstrap}, but the transaction belongs to "
            f"{bootstrap}: offsets and records are committed together only in one cluster"
        )
    return reading
