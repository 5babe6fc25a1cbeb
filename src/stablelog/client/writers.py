"""What the transactions and the readers of one client share: clusters (connections), and keys of joint commits."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Generic

from stablelog.batch.header import Codec
from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.group_reading import STARTS, GroupReading
from stablelog.client.core.group_writing import GroupWriting
from stablelog.client.core.membership import GroupMember
from stablelog.client.core.outcomes import Outcome
from stablelog.client.core.reader import check_group
from stablelog.client.core.writing import Writing
from stablelog.client.keys import WriterKeys
from stablelog.client.topics import ISOLATIONS
from stablelog.errors import UsageError

TIMEOUT_S: Final = 30.0
TIMEOUT_MAX_S: Final = 2**31 // 1000  # the protocol's field is a signed 32-bit number of milliseconds


class Writers(Generic[ClusterT]):
    """Makes the transactions of a client.

    Args:
        clusters: the pool of clusters, which hold the connections to the brokers.
        codec: the compression of the batches that are written.

    Attributes:
        clusters: as given.
        keys: pool of the keys of joint commits that no transaction uses now.
    """

    def __init__(self, clusters: ClusterPool[ClusterT], codec: Codec = Codec.NONE) -> None:
        self.clusters = clusters
        self._codec = codec
        self.keys = WriterKeys()

    def begin(
        self,
        group: str,
        timeout_s: float,
        now: float,
        on_end: Callable[[Outcome], None],
        reading: GroupReading | None = None,
    ) -> tuple[ClusterT, Writing]:
        """Begin a transaction. Return the cluster that runs its steps, and the transaction.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout_s: seconds until an open transaction is aborted.
            now: seconds of the shell's clock.
            on_end: called once with the outcome of the transaction. The cluster is then lent to others.
            reading: the reader whose offsets the transaction commits; None for none.

        Raises:
            UsageError: the timeout is out of range, or the group's name is invalid; or the reader is closed, or has
                another open transaction.
            RefusedError: the client is closed.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise UsageError(
                f"the timeout of {timeout_s} s is out of range: greater than 0, and at most {TIMEOUT_MAX_S}"
            )
        check_group(group)
        if reading is not None:
            reading.check_free()
        cluster = self.clusters.lend()

        def release(writing: Writing) -> None:
            if writing.is_key_free:
                self.keys.give_back(writing.key)
            self.clusters.give_back(cluster)

        make = Writing if reading is None else partial(GroupWriting, reading)
        writing = make(
            cluster.core,
            key=self.keys.take(group),
            codec=self._codec,
            timeout_s=timeout_s,
            now=now,
            on_end=on_end,
            release=release,
        )
        if reading is not None:
            reading.begin(writing)
        return cluster, writing


def group_reading(
    cluster: Cluster,
    topics: str | Iterable[str] | re.Pattern[str],
    group: str,
    *,
    isolation: str,
    start: str,
    instance_id: str | None,
) -> GroupReading:
    """Check the arguments of `Client.subscribe`, and make the reader.

    Raises:
        UsageError: no topic, an empty group, or an unknown isolation or start.
    """
    names: str | tuple[str, ...]
    if isinstance(topics, re.Pattern):
        names = _expression(topics)
    else:
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names:
        raise UsageError("no topic is given: name one or several, or pass a compiled regular expression")
    if not group:
        raise UsageError("the name of the consumer group is empty: give one")
    for name, value, known in (("isolation", isolation, ISOLATIONS), ("start", start, STARTS)):
        if value not in known:
            raise UsageError(f"{name}={value!r} is not valid: use {' or '.join(map(repr, known))}")
    return GroupReading(
        cluster, GroupMember(cluster, group, names, instance_id=instance_id), isolation, start
    )


def _expression(pattern: re.Pattern[str]) -> str:
    """Return the text of a regular expression, which the broker applies.

    Raises:
        UsageError: it is one of bytes, or has flags, which the request to the broker cannot contain.
    """
    if not isinstance(pattern.pattern, str) or pattern.flags & ~re.UNICODE:
        raise UsageError(
            f"{pattern!r} is not valid: compile it from a text and without flags, because the broker gets only the "
            "text"
        )
    return pattern.pattern


def reading_of(reader: object, kind: type[Any], bootstrap: str) -> GroupReading | None:
    """Return the core of a reader whose offsets a transaction commits; None if there is no reader.

    Args:
        reader: what the program has given as `offsets_of`.
        kind: the class of the client's readers.
        bootstrap: the addresses of the client.

    Raises:
        UsageError: it is not a reader of `subscribe`, or one of another cluster.
    """
    if reader is None:
        return None
    if not isinstance(reader, kind):
        raise UsageError(
            f"a transaction commits the offsets of a reader that subscribe of this client has returned, and not of {reader!r}"
        )
    reading: GroupReading = reader.reading
    if reading.cluster.bootstrap != bootstrap:
        raise UsageError(
            f"{reader!r} reads from {reading.cluster.bootstrap}, but the transaction is one of {bootstrap}: "
            "offsets and records are committed together only in one cluster"
        )
    return reading
