"""The brokers of a cluster: connections, retries, leaders, coordinators, offsets and fetches."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from kio.schema.describe_log_dirs.v4.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as FindOneCoordinatorRequest
from kio.schema.find_coordinator.v5.request import FindCoordinatorRequest

from stablelog.client.core.connection import Connection
from stablelog.client.core.fetch_request import receive_fetch, send_fetch
from stablelog.client.core.login import explain
from stablelog.client.core.security import PLAINTEXT, Security
from stablelog.client.core.steps import NOW, Open, Pause, Steps
from stablelog.client.responses import (
    ClosedError,
    RetriableError,
    UnknownTopicOrPartitionError,
    check,
    is_retriable,
)
from stablelog.client.topics import (
    Listed,
    Topic,
    by_topic,
    epoch_request,
    metadata_request,
    offsets_request,
    read_offsets,
    read_topics,
)
from stablelog.errors import OffsetOutOfRangeError, UnavailableError, UsageError
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import Fetched

Result = TypeVar("Result")

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # special timestamps of ListOffsets
DEADLINE_S: Final = 30.0
IDLE_MAX: Final = 4  # maximum of idle connections to one broker that are kept for reuse
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0
# The first version of FindCoordinator that names several coordinators in one response.
SEVERAL_COORDINATORS: Final = 4
TRANSACTION_COORDINATOR: Final = 1


class Cluster:
    """The brokers of one cluster, found by a list of addresses. One call at a time uses it.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline_s: how long a call is retried before it fails.
        security: the security settings of the shell's connections.

    Attributes:
        bootstrap: as given.
        deadline_s: as given.
        security: as given.
        are_retries_cancelled: whether `cancel_retries` was called, and `allow_retries` was not called since.
        waiting_on: the connections on which a long poll waits. `cancel_retries` closes them, and thus ends it.

    Raises:
        UsageError: an address is invalid.
    """

    def __init__(
        self, bootstrap: str, *, deadline_s: float = DEADLINE_S, security: Security = PLAINTEXT
    ) -> None:
        self.bootstrap = bootstrap
        self.deadline_s = deadline_s
        self.security = security
        self._addresses = [address.strip() for address in bootstrap.split(",") if address.strip()]
        for address in self._addresses:
            if not re.fullmatch(r"\[?[^\s\[\]/]+\]?:\d+", address):
                raise UsageError(
                    f"the bootstrap address {address!r} is not valid: write host:port, and commas between addresses"
                )
        if not self._addresses:
            raise UsageError("there is no bootstrap address: write host:port, and commas between addresses")
        self._nodes: dict[int, str] = {}  # node id -> "host:port"
        self._connections: dict[str, Connection] = {}  # by address
        self._idle: dict[str, list[Connection]] = {}  # the idle connections, by the broker's address
        # The node id of the broker if the cluster has only one, which is then the coordinator of every transactional
        # id. None if the cluster has several brokers, or if metadata was not requested yet.
        self._sole_node_id: int | None = None
        self._topics: dict[str, Topic] = {}
        self._explained: set[str] = set()  # the addresses for which `explain_closing` was called
        self.are_retries_cancelled = False
        self.waiting_on: list[Connection] = []

    def close(self) -> None:
        """Close all connections. A later call opens them again."""
        for connection in itertools.chain(self._connections.values(), *self._idle.values()):
            connection.close()
        self._connections.clear()
        self._idle.clear()

    # --- retries ---

    def retrying(
        self, what: str, attempt: Callable[[], Steps[Result]], deadline_s: float | None = None
    ) -> Steps[Result]:
        """Run the steps of `attempt` until they succeed, fail with an error that no retry can resolve, or the deadline has passed.

        Args:
            what: names the work in messages: "listing offsets".
            attempt: returns the steps of one attempt. It is called again if they raise an error for which
                `responses.is_retriable` is true.
            deadline_s: replaces the cluster's deadline.

        Raises:
            UnavailableError: the deadline has passed; the message has the last failure.
            RefusedError: `attempt` failed with an error that no retry can resolve.
        """
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        deadline = (yield NOW) + deadline_s
        backoff = BACKOFF_FIRST_S
        while True:
            try:
                result = yield from attempt()
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
                raise UnavailableError(
                    f"{what}: no success within {deadline_s:g} s. The last failure: {last}"
                ) from last
            if not self.are_retries_cancelled:
                yield Pause(backoff)
            if self.are_retries_cancelled:
                raise UnavailableError(f"{what}: the call was cancelled. The last failure: {last}") from last
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    def cancel_retries(self) -> None:
        """Stop all retries until `allow_retries`: a call whose next attempt fails raises at once. End a long poll."""
        self.are_retries_cancelled = True
        for connection in self.waiting_on:
            connection.close()

    def check_cancelled(self, what: str) -> None:
        """Raise UnavailableError if `cancel_retries` was called. `what` names the work in the message."""
        if self.are_retries_cancelled:
            raise UnavailableError(f"{what}: the call was cancelled")

    def allow_retries(self) -> None:
        """Allow retries again, each call until its deadline."""
        self.are_retries_cancelled = False

    # --- connections ---

    def address_of(self, node_id: int) -> str:
        """Return the "host:port" of a broker that metadata has named.

        Raises:
            RetriableError: metadata names no broker with this id now.
        """
        if node_id not in self._nodes:
            raise RetriableError(f"the cluster's metadata names no broker with id {node_id}")
        return self._nodes[node_id]

    def connection_to(self, node_id: int) -> Steps[Connection]:
        """Return the connection to a broker that metadata has named. All calls return one connection until it breaks.
        Its versions are known.

        Raises:
            RetriableError: metadata names no broker with this id now.
            UnavailableError: the broker does not respond.
        """
        return (yield from self._connection(self.address_of(node_id)))

    def any_connection(self) -> Steps[Connection]:
        """Return a connection to any broker. Its versions are known.

        Raises:
            UnavailableError: no broker responds.
        """
        failures: dict[str, None] = {}  # each failure once, in order
        for address in [*self._connections, *self._addresses, *self._nodes.values()]:
            try:
                return (yield from self._connection(address))
            except UnavailableError as failure:
                failures[str(failure)] = None
        raise UnavailableError("; ".join(failures))

    def _connection(self, address: str) -> Steps[Connection]:
        known = self._connections.get(address)
        if known is None or known.is_closed:
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
        """Raise AuthenticationError if the broker has closed a connection because its listener has another security
        protocol. This is checked once for each address, and not if it has answered before: then the broker is stopping.
        """
        if address not in self._explained and not self.are_retries_cancelled:
            self._explained.add(address)
            yield from explain(address, self.security)

    def lend_connection(self, address: str) -> Steps[Connection]:
        """Lend a connection that only the caller uses. `give_back` keeps it open for the next call."""
        idle = self._idle.get(address)
        return idle.pop() if idle else (yield Open(address))

    def give_back(self, connection: Connection) -> None:
        """Keep a lent connection for reuse, unless it broke, awaits responses, or enough connections are idle."""
        idle = self._idle.setdefault(connection.address, [])
        if connection.is_closed or connection.is_awaiting:
            connection.close()
        else:
            idle.append(connection)
        if len(idle) > IDLE_MAX:
            idle.pop(0).close()  # close the connection that was idle for longest

    # --- metadata ---

    def forget_metadata(self) -> None:
        """Drop the cached leaders and coordinators; the next call requests them again."""
        self._topics.clear()
        self._sole_node_id = None

    def metadata(self, topics: Iterable[str] | re.Pattern[str] | None = None) -> Steps[dict[str, Topic]]:
        """Send a Metadata request, and return the topics by name.

        Args:
            topics: names; or a pattern that whole names must match, without internal topics; or None for all topics.

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

    def _metadata(self, names: tuple[str, ...] | None) -> Steps[dict[str, Topic]]:
        connection = yield from self.any_connection()
        response = yield from connection.ask_steps(metadata_request(names))
        check(response.error_code, "asking for metadata")
        self._nodes = {broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers}
        self._sole_node_id = next(iter(self._nodes)) if len(self._nodes) == 1 else None
        found = read_topics(response, self.bootstrap)
        for name in names or ():
            if name not in found:
                raise RetriableError(
                    f"the metadata of {connection.address} does not contain the requested topic {name!r}"
                )
        self._topics.update(found)
        return found

    def log_directories(self, targets: Iterable[TopicPartition] = ()) -> Steps[dict[int, list[str]]]:
        """Return the data directories of each broker that metadata has named, by node id. The list of a broker may be
        empty.

        Args:
            targets: the partitions to ask for. Kafka leaves out a directory that holds none of them.
        """
        topics = tuple(
            DescribableLogDirTopic(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic(targets).items()
        )
        found = {}
        if not self._nodes:
            yield from self.metadata(())
        for node_id in tuple(self._nodes):
            with suppress(UnavailableError, RetriableError):
                connection = yield from self.connection_to(node_id)
                response = yield from connection.ask_steps(DescribeLogDirsRequest(topics=topics or None))
                found[node_id] = [
                    result.log_dir for result in response.results if result.error_code is ErrorCode.none
                ]
        return found

    def partition_counts(self, topics: Iterable[str]) -> Steps[dict[str, int]]:
        """Return the number of partitions of each topic that is to be written. No topic is created: the broker would
        create one that is not commit-ordered, and a topic's order never changes.

        Raises:
            UnknownTopicOrPartitionError: a topic does not exist. The message names the command that creates it.
            UnavailableError: no broker responds.
        """
        names = tuple(topics)
        found = yield from self.retrying("asking for the topics to be written", lambda: self._metadata(names))
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topic(self, name: str) -> Steps[Topic]:
        """Return a topic from cached metadata, or request its metadata. `retrying` drops the cache before each retry.

        Raises:
            RefusedError: the topic does not exist.
            RetriableError: the topic has no leader yet.
        """
        if name not in self._topics:
            yield from self._metadata((name,))
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> Steps[int]:
        """Return the node id of a partition's leader from cached metadata, or request the metadata. `retrying` drops
        the cache before each retry.

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
            raise RetriableError(f"{topic}-{partition} has no leader")
        return leader_id

    def leader_connection(self, topic: str, partition: int) -> Steps[Connection]:
        """Return the connection to a partition's leader. Call this inside an attempt of `retrying`.

        Raises:
            RefusedError: the topic or partition does not exist.
            RetriableError: the partition has no leader now.
            UnavailableError: the leader does not respond.
        """
        leader_id = yield from self.leader(topic, partition)
        return (yield from self.connection_to(leader_id))

    def coordinator(self, transactional_id: str) -> Steps[Connection]:
        """Return a connection to the coordinator of a transactional id. Call this inside an attempt of `retrying`.

        Raises:
            RetriableError: no coordinator is available yet.
            RefusedError: the broker refuses to name a coordinator.
            UnavailableError: no broker responds.
        """
        if self._sole_node_id is not None:
            return (yield from self.connection_to(self._sole_node_id))
        connection = yield from self.any_connection()
        kind = TRANSACTION_COORDINATOR
        if connection.speaks(ApiKey.FIND_COORDINATOR, SEVERAL_COORDINATORS):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(transactional_id,))
            found = (yield from connection.ask_steps(request)).coordinators
            if not found:
                raise RetriableError(
                    f"{connection.address} did not name a coordinator for {transactional_id!r}"
                )
            coordinator = found[0]
        else:
            one = FindOneCoordinatorRequest(key=transactional_id, key_type=kind)
            coordinator = yield from connection.ask_steps(one)
        check(coordinator.error_code, f"the coordinator of {transactional_id!r}")
        self._nodes[coordinator.node_id] = f"{coordinator.host}:{coordinator.port}"
        return (yield from self.connection_to(coordinator.node_id))

    # --- reading ---

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation: str = "read_committed"
    ) -> Steps[dict[TopicPartition, Listed]]:
        """Find the offsets of timestamps, or the ends of logs.

        Args:
            specs: partition -> EARLIEST, LATEST (the last stable offset for read_committed), another special value, or a
                timestamp in ms, which finds the first record at or after it.
            isolation: read_committed or read_uncommitted.

        Returns:
            A result for each partition; offset -1 if all records are older than the timestamp.

        Raises:
            RefusedError: a partition does not exist, or the broker does not support a special timestamp.
            UnavailableError: no response within the deadline.
        """
        found: dict[TopicPartition, Listed] = {}

        def attempt() -> Steps[dict[TopicPartition, Listed]]:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for target, spec in specs.items():
                if target not in found:
                    leader_id = yield from self.leader(*target)
                    by_leader.setdefault(leader_id, {})[target] = spec
            for leader_id, wanted in by_leader.items():
                connection = yield from self.connection_to(leader_id)
                response = yield from connection.ask_steps(offsets_request(wanted, isolation))
                listed, refused = read_offsets(response)
                found.update(listed)  # keep these offsets, even if the leader refuses another partition
                for (name, index), code in refused.items():
                    check(code, f"the offsets of {name}-{index}")
                for name, index in wanted.keys() - found.keys():
                    raise RetriableError(
                        f"the response of {connection.address} does not contain the offset of {name}-{index}"
                    )
            return found

        return (yield from self.retrying("listing offsets", attempt))

    def epoch_end(self, topic: str, partition: int, leader_epoch: int) -> Steps[tuple[int, int] | None]:
        """Return the greatest leader epoch of a partition that is not above an epoch, and the offset at which it ends; None
        if the partition has no epoch as great. If each of its epochs is above, return the given epoch and the offset at
        which the first one begins.

        Raises:
            RefusedError: the partition does not exist.
            UnavailableError: no response within the deadline.
        """

        def attempt() -> Steps[tuple[int, int] | None]:
            connection = yield from self.leader_connection(topic, partition)
            response = yield from connection.ask_steps(epoch_request(topic, partition, leader_epoch))
            found = response.topics[0].partitions[0]
            check(found.error_code, f"the leader epochs of {topic}-{partition}")
            return (int(found.leader_epoch), int(found.end_offset)) if found.end_offset >= 0 else None

        return (yield from self.retrying(f"asking for the leader epochs of {topic}-{partition}", attempt))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        size_max: int = 8 << 20,
        isolation: str = "read_committed",
        *,
        wait_ms: int = 500,
    ) -> Steps[Fetched]:
        """Fetch whole record batches as they stand in the log, from the batch that contains `offset`.

        Args:
            topic: the topic's name.
            partition: the partition's index.
            offset: the first offset to read. Records before it in the same batch are returned, too.
            size_max: maximum of bytes, after which the last batch may be cut off. The first batch is always whole.
            isolation: read_committed ends at the last stable offset and lists the aborted transactions.
            wait_ms: how long the broker may wait for a record if there is none.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            RefusedError: the partition does not exist.
            UnavailableError: no response within the deadline.
        """
        target = (topic, partition)

        def attempt() -> Steps[Fetched]:
            connection = yield from self.leader_connection(topic, partition)
            yield from send_fetch(connection, {target: offset}, size_max, isolation, wait_ms)
            response = yield from receive_fetch(connection)
            check(response.error, f"fetching from {topic}-{partition}")
            fetched = response.partitions.get(target)
            if fetched is None and response.throttle_ms:
                raise RetriableError(
                    f"{connection.address} returns no records before {response.throttle_ms} ms have passed: the client is "
                    "above its quota"
                )
            if fetched is None:
                raise RetriableError(
                    f"the response of {connection.address} does not contain {topic}-{partition}"
                )
            if fetched.error is ErrorCode.offset_out_of_range:
                raise OffsetOutOfRangeError(f"{topic}-{partition} has no offset {offset}")
            check(fetched.error, f"fetching {topic}-{partition} from {offset}")
            return fetched

        return (yield from self.retrying(f"fetching {topic}-{partition}", attempt))
