"""The rules by which the client finds the brokers of a cluster: connections, retries, leaders and coordinators."""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.core import arguments
from stablelog.client.core.call_limits import DEADLINE_S, GRACE_S, CallLimits
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.coordinators import TRANSACTION_COORDINATOR, find_coordinators
from stablelog.client.core.idle_connections import IdleConnections
from stablelog.client.core.security import PLAINTEXT, SecuritySettings
from stablelog.client.core.steps import NOW, Open, Pause, Result, Steps
from stablelog.client.responses import (
    ClosedError,
    RetriableError,
    UnknownTopicOrPartitionError,
    check,
    is_retriable,
)
from stablelog.client.topics import TopicDescription, metadata_request, read_topics
from stablelog.errors import RefusedError, UnavailableError
from stablelog.types import TopicPartition

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # special timestamps of ListOffsets
FRESH_S: Final = 1.0  # how old the number of partitions may be that a transaction uses
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0

_log = logging.getLogger("stablelog.client")


class Cluster(CallLimits):
    """The client's knowledge of one cluster, and the steps (generators of I/O operations) that find its brokers. One
    call at a time runs its steps.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline_s: how long a call is retried before it fails, in seconds.
        security: the security settings of the connections.
        backoff_s: a pair: the first pause between two attempts, and the greatest one, in seconds.

    Attributes:
        bootstrap: the addresses, "host:port,host:port".
        security: the security settings of the connections.
        cluster_id: the id of the cluster in the last Metadata response; None before the first one.

    Raises:
        TypeError: the addresses are no text.
        UsageError: an address is invalid.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        deadline_s: float = DEADLINE_S,
        security: SecuritySettings = PLAINTEXT,
        backoff_s: tuple[float, float] = (BACKOFF_FIRST_S, BACKOFF_MAX_S),
    ) -> None:
        super().__init__(deadline_s)
        self._backoff_s = backoff_s
        # Since when no broker has responded to a wait for records; None if one has responded since.
        self.silent_since: float | None = None
        self.bootstrap = bootstrap
        self.security = security
        self._addresses = arguments.addresses(bootstrap)
        self._nodes: dict[int, str] = {}  # node id -> "host:port"
        self._connections: dict[str, BrokerConnection] = {}  # by address
        self._idle = IdleConnections()
        # The node id of the broker if the cluster has only one, which is then the coordinator of every transactional
        # id. None if the cluster has several brokers, or if metadata was not requested yet.
        self._sole_node_id: int | None = None
        self._topics: dict[str, TopicDescription] = {}
        self._seen_at: dict[str, float] = {}  # when the metadata of each topic has arrived
        self._coordinators: dict[tuple[int, str], int] = {}  # (kind, key) -> node id
        self._explained: set[str] = set()  # the addresses for which `explain_closing` was called
        self.cluster_id: str | None = None

    def close(self) -> None:
        """Close all connections. A later call opens them again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._idle.close()

    def forget_connections(self) -> None:
        """In a forked process, drop the connections without closing them, because the parent process still uses them.
        Also allow retries again.
        """
        self._connections, self._idle, self.waiting_on, self.until = {}, IdleConnections(), [], None
        self.forget_metadata()
        self.allow_retries()

    # --- retries ---

    def retrying(
        self, what: str, attempt: Callable[[], Steps[Result]], deadline_s: float | None = None
    ) -> Steps[Result]:
        """Run the steps (a generator of I/O operations) that `attempt` returns, and return their result. Repeat this
        until they succeed, until they fail with an error that no retry can resolve, or until the deadline.

        Args:
            what: the work in words, for messages, such as "listing offsets".
            attempt: returns the steps of one attempt. It is called again if they raise an error for which
                `responses.is_retriable` is true.
            deadline_s: the seconds after which this call fails; None for the deadline of the cluster object.

        Raises:
            UnavailableError: the deadline has passed; the message has the last failure.
            RefusedError: `attempt` failed with an error that no retry can resolve.
        """
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        now = yield NOW
        deadline = (now if self.silent_since is None else self.silent_since) + deadline_s
        with self.limit_waits_until(max(now, deadline) + GRACE_S):
            return (yield from self._retrying(what, attempt, deadline, deadline_s))

    def _retrying(
        self, what: str, attempt: Callable[[], Steps[Result]], deadline: float, deadline_s: float
    ) -> Steps[Result]:
        assert self.until is not None
        deadline = min(deadline, self.until - GRACE_S)
        backoff, backoff_max = self._backoff_s
        while True:
            try:
                result = yield from attempt()
                self.silent_since = None
                # These listeners have answered, so their security protocol is the client's.
                self._explained.update(self._connections)
                return result
            except Exception as failure:
                if not is_retriable(failure):
                    raise
                last = failure
            if isinstance(last, UnavailableError):
                self.close()
            if isinstance(last, ClosedError):
                yield from self.explain_closing(last.address)
            self.forget_metadata()
            if (yield NOW) + backoff > deadline:
                self.silent_since = None  # the next call has the whole deadline
                raise UnavailableError(
                    f"{what} did not succeed within {deadline_s:g} s. The last failure: {last}"
                ) from last
            if not self.are_retries_cancelled:
                _log.info("%s: %s. The next attempt is in %g s", what, last, backoff)
                yield Pause(backoff)
            if self.are_retries_cancelled:
                raise UnavailableError(
                    f"{what} did not succeed: the call was cancelled. The last failure: {last}"
                ) from last
            backoff = min(2 * backoff, backoff_max)

    # --- connections ---

    def address_of(self, node_id: int) -> str:
        """Return the "host:port" of the broker with this id in the last Metadata response.

        Raises:
            RetriableError: metadata names no broker with this id now.
        """
        if node_id not in self._nodes:
            raise RetriableError(f"the cluster's metadata names no broker with id {node_id}")
        return self._nodes[node_id]

    def connection_to(self, node_id: int) -> Steps[BrokerConnection]:
        """Return the connection to the broker with this id. If there is none, open one to the address in the last
        Metadata response.

        Raises:
            RetriableError: metadata names no broker with this id now.
            UnavailableError: the broker does not respond.
        """
        return (yield from self._connection(self.address_of(node_id)))

    def any_connection(self) -> Steps[BrokerConnection]:
        """Return a connection to any broker of the cluster.

        Raises:
            UnavailableError: no broker responds.
        """
        failures: dict[str, None] = {}  # each failure once, in order
        addresses = list(dict.fromkeys([*self._connections, *self._addresses, *self._nodes.values()]))
        for place, address in enumerate(addresses):
            now = yield NOW
            # An address that does not answer leaves time for the others.
            share = now + ((self.until or now + self.deadline_s) - now) / (len(addresses) - place)
            try:
                with self.limit_waits_until(share):
                    return (yield from self._connection(address))
            except UnavailableError as failure:
                failures[str(failure)] = None
        raise UnavailableError("; ".join(failures))

    def _connection(self, address: str) -> Steps[BrokerConnection]:
        known = self._connections.get(address)
        if known is None or known.is_closed:
            if known is not None:
                self._seen_at.clear()
                self._topics.clear()  # the broker may have started again, with another leader epoch
            try:
                known = self._connections[address] = yield Open(address)
                assert known is not None
                yield from known.negotiate()
            except ClosedError:
                yield from self.explain_closing(address)
                raise
        yield from known.negotiate()
        return known

    def explain_closing(self, address: str) -> Steps[None]:
        """Find out why a broker has closed a new connection, and raise AuthenticationError if the cause is that its
        listener has another security protocol than the client. Each address is examined only once. It is not examined
        at all if it has responded before: the security protocol is then right, and the broker is probably stopping.
        """
        if address not in self._explained and not self.are_retries_cancelled:
            self._explained.add(address)
            now = yield NOW
            with self.limit_waits_until(now + ((self.until or now + self.deadline_s) - now) / 2):
                from stablelog.client.core.login import explain_closed_connection

                yield from explain_closed_connection(address, self.security)

    def lend_connection(self, address: str) -> Steps[BrokerConnection]:
        """Lend a connection to the broker at this address. No other call uses it until the caller returns it by
        `return_connection`.
        """
        return self._idle.take(address) or (yield Open(address))

    def return_connection(self, connection: BrokerConnection) -> None:
        """Take back a connection of `lend_connection`, and keep it for reuse. Close it instead if it is broken, if it
        still awaits a response, or if enough connections are kept already.
        """
        self._idle.add(connection)

    # --- metadata ---

    def forget_metadata(self) -> None:
        """Forget which brokers are leaders of partitions and which ones are coordinators. The next call requests this
        again.
        """
        self._topics.clear()
        self._seen_at.clear()
        self._coordinators.clear()
        self._sole_node_id = None

    def metadata(
        self, topics: Iterable[str] | re.Pattern[str] | None = None
    ) -> Steps[dict[str, TopicDescription]]:
        """Send a Metadata request, and return the topics by name.

        Args:
            topics: the names of topics; or a pattern for whole names, which selects no internal topics; or None for all
                topics.

        Raises:
            RefusedError: a topic that was named does not exist.
            UnavailableError: no broker responds.
        """
        if not isinstance(topics, re.Pattern):
            names = None if topics is None else tuple(topics)
            return (yield from self.retrying("asking for metadata", lambda: self._metadata(names)))
        everything = yield from self.metadata()
        return {
            name: topic
            for name, topic in everything.items()
            if not topic.is_internal and topics.fullmatch(name)
        }

    def _metadata(self, names: tuple[str, ...] | None) -> Steps[dict[str, TopicDescription]]:
        connection = yield from self.any_connection()
        response = yield from connection.request_steps(metadata_request(names))
        check(response.error_code, "asking for metadata")
        self.cluster_id = response.cluster_id
        self._nodes = {broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers}
        self._sole_node_id = next(iter(self._nodes)) if len(self._nodes) == 1 else None
        found = read_topics(response, self.bootstrap)
        for name in names or ():
            if name not in found:
                raise RetriableError(
                    f"the metadata of {connection.address} does not contain the requested topic {name!r}"
                )
        self._topics.update(found)
        now: float = yield NOW
        self._seen_at.update(dict.fromkeys(found, now))
        return found

    def partition_counts(self, topics: Iterable[str]) -> Steps[dict[str, int]]:
        """Return the number of partitions of each topic to which a transaction is going to write. Metadata that is at
        most FRESH_S old is used without a request. A missing topic is an error: the client does not let the broker
        create it, because the topic would be created without commit order, and the order of a topic never changes.

        Raises:
            UnknownTopicOrPartitionError: a topic does not exist. The message names the command that creates it.
            RefusedError: a topic is an internal one.
            UnavailableError: no broker responds.
        """
        names = tuple(topics)
        fresh_since = (yield NOW) - FRESH_S
        if not all(self._seen_at.get(name, fresh_since) > fresh_since for name in names):
            yield from self.retrying("asking for the topics to be written", lambda: self._metadata(names))
        for name in names:
            if self._topics[name].is_internal:
                raise RefusedError(
                    ErrorCode.invalid_topic_exception,
                    f"{name} is an internal topic of the brokers, which clients cannot write",
                )
        return {name: len(self._topics[name].partitions) for name in names}

    def topic(self, name: str) -> Steps[TopicDescription]:
        """Return the metadata of a topic from the cache of this object, or request it. `retrying` empties the cache
        before each retry.

        Raises:
            RefusedError: the topic does not exist.
            RetriableError: the topic has no leader yet.
        """
        if name not in self._topics:
            yield from self._metadata((name,))
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> Steps[int]:
        """Return the node id of the leader of a partition from cached metadata, or request the metadata. `retrying`
        empties the cache before each retry.

        Raises:
            RefusedError: the topic or partition does not exist.
            RetriableError: the partition has no leader now.
        """
        partitions = (yield from self.topic(topic)).partitions
        if partition not in partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}, only 0 to {len(partitions) - 1}"
            )
        leader_id = partitions[partition].leader_id
        if leader_id < 0:
            raise RetriableError(f"partition {topic}-{partition} has no leader now")
        return leader_id

    def leader_epoch(self, topic: str, partition: int) -> Steps[int]:
        """Return the leader epoch of a partition (a number that grows with each new leader), as the last metadata
        reports it; -1 if the metadata has none.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: no broker responds.
        """
        if topic not in self._topics:
            yield from self.metadata((topic,))
        return self._topics[topic].leader_epoch(partition)

    def leader_connection(self, topic: str, partition: int) -> Steps[BrokerConnection]:
        """Return the connection to a partition's leader. Call this inside an attempt of `retrying`.

        Raises:
            RefusedError: the topic or partition does not exist.
            RetriableError: the partition has no leader now.
            UnavailableError: the leader does not respond.
        """
        leader_id = yield from self.leader(topic, partition)
        return (yield from self.connection_to(leader_id))

    def coordinator(self, key: str, kind: int = TRANSACTION_COORDINATOR) -> Steps[BrokerConnection]:
        """Return a connection to the coordinator of a transactional id or of a group. Call this inside an attempt of
        `retrying`.

        Args:
            key: the transactional id, or the id of the group.
            kind: TRANSACTION_COORDINATOR or GROUP_COORDINATOR.

        Raises:
            RetriableError: no coordinator is available yet.
            RefusedError: the broker refuses to name a coordinator.
            UnavailableError: no broker responds.
        """
        if self._sole_node_id is not None and kind == TRANSACTION_COORDINATOR:
            return (yield from self.connection_to(self._sole_node_id))
        node_ids = yield from self.coordinator_ids((key,), kind)
        return (yield from self.connection_to(node_ids[key]))

    def coordinator_ids(self, keys: Iterable[str], kind: int) -> Steps[dict[str, int]]:
        """Return the node id of the coordinator of each key. Coordinators that are not in the cache are found by one
        request for all of them.

        Raises:
            RetriableError: a coordinator is not available yet.
            RefusedError: the broker refuses to name a coordinator.
            UnavailableError: no broker responds.
        """
        wanted = tuple(dict.fromkeys(keys))
        missing = tuple(key for key in wanted if (kind, key) not in self._coordinators)
        if missing:
            connection = yield from self.any_connection()
            for key, found in (yield from find_coordinators(connection, kind, missing)).items():
                self._nodes[found.node_id] = f"{found.host}:{found.port}"
                self._coordinators[kind, key] = found.node_id
        return {key: self._coordinators[kind, key] for key in wanted}

    def group_by_leader(self, targets: Iterable[TopicPartition]) -> Steps[dict[int, list[TopicPartition]]]:
        """Group partitions by the node id of their leader. Call this inside an attempt of `retrying`.

        Raises:
            RefusedError: a topic or partition does not exist.
            RetriableError: a partition has no leader now.
        """
        found: dict[int, list[TopicPartition]] = {}
        for target in targets:
            found.setdefault((yield from self.leader(*target)), []).append(target)
        return found

    @property
    def node_ids(self) -> list[int]:
        """The ids of the brokers in the last Metadata response, in its order; empty before the first response."""
        return sorted(self._nodes)

    def refresh_node_ids(self) -> Steps[list[int]]:
        """Request the ids of the brokers. Call this inside an attempt of `retrying`.

        Raises:
            UnavailableError: no broker responds.
        """
        yield from self._metadata(())
        return self.node_ids
