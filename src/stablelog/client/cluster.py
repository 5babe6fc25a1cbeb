"""The brokers of a cluster as a client sees them: bootstrap, metadata, leaders, coordinators, offsets, and retries.

A `Cluster` is pickled as its constructor's arguments: in another process it opens new connections.
"""

import itertools
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.client.connection import CLIENT_ID, TIMEOUT_S, Connection, check
from stablelog.errors import InvalidConfig, OffsetOutOfRange, Refused, Unavailable
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import Fetched, encode_fetch_request, read_fetch_response

Result = TypeVar("Result")

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # values of list_offsets that are not timestamps
ISOLATIONS = {"read_uncommitted": 0, "read_committed": 1}
DEADLINE_S = 30.0
CREATION_TRIES = 6  # about half a second, until a topic that the metadata request created is visible
IDLE_MAX = 4  # idle connections to one broker that are kept for reuse
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0

# Error codes that go away when the cluster has settled: the request is retried with new metadata.
PASSING = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    }
)


class Again(Exception):
    """Raised within `Cluster.retrying` for an error that a retry can resolve."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a topic.

    Attributes:
        leader_id: the leader's node id; -1 if there is none.
        leader_epoch: the leader's epoch; -1 if the broker does not send it.
        is_offline: whether it has no leader and one of its replicas is offline.
    """

    leader_id: int
    leader_epoch: int
    is_offline: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its id (None if the broker does not send it) and its partitions by index."""

    name: str
    topic_id: uuid.UUID | None
    partitions: Mapping[int, Partition]
    is_internal: bool


class Listed(NamedTuple):
    """A result of `list_offsets`: the offset, and the timestamp of its record in ms; -1 if there is none."""

    offset: int
    timestamp_ms: int


class Cluster:
    """The brokers behind a list of addresses.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        client_id: the name of this client in the brokers' logs.
        timeout_s: how long a broker may take to respond.
        deadline_s: how long a call is retried before it fails.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.bootstrap = bootstrap
        self.deadline_s = deadline_s
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._addresses = [address.strip() for address in bootstrap.split(",") if address.strip()]
        for address in self._addresses:
            if not re.fullmatch(r"\[?[^\s\[\]]+\]?:\d+", address):
                raise InvalidConfig(f"bootstrap address {address!r}: host:port, several parted by commas")
        if not self._addresses:
            raise InvalidConfig("no bootstrap address: host:port, several parted by commas")
        self._nodes: dict[int, str] = {}  # node id -> "host:port"
        self._connections: dict[str, Connection] = {}  # by address
        self._idle: dict[str, list[Connection]] = {}  # idle connections, by address
        self._sole_node_id: int | None = None  # of a cluster of one, which then is every coordinator
        self._topics: dict[str, Topic] = {}
        self._hurry = threading.Event()

    def __reduce__(self) -> Any:
        return _restore, (self.bootstrap, self._client_id, self._timeout_s, self.deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A later call opens them again."""
        for connection in [*self._connections.values(), *(c for idle in self._idle.values() for c in idle)]:
            connection.close()
        self._connections.clear()
        self._idle.clear()

    # --- retries ---

    def retrying(self, what: str, attempt: Callable[[], Result], deadline_s: float | None = None) -> Result:
        """Call `attempt` until it succeeds, fails with an error that no retry can resolve, or the deadline has passed.

        Args:
            what: names the work in messages: "listing offsets".
            attempt: is called again if it raises Again, Unavailable or a Refused with a code in PASSING.
            deadline_s: replaces the cluster's deadline.

        Raises:
            Unavailable: the deadline has passed; the message has the last failure.
            Refused: a retry cannot help.
        """
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        deadline = time.monotonic() + deadline_s
        backoff = BACKOFF_FIRST_S
        while True:
            try:
                return attempt()
            except (Again, Unavailable) as failure:
                last: Exception = failure
            except Refused as failure:
                if failure.code not in PASSING:
                    raise
                last = failure
            if isinstance(last, Unavailable):
                self.close()
            self.forget_metadata()
            if time.monotonic() + backoff > deadline:
                raise Unavailable(f"{what}: gave up after {deadline_s:g} s: {last}") from last
            if self._hurry.wait(backoff):
                raise Unavailable(f"{what}: called off: {last}") from last
            backoff = min(2 * backoff, BACKOFF_MAX_S)

    def hurry(self) -> None:
        """Stop retries: until `calm`, every call fails at its next failure. May be called from any thread."""
        self._hurry.set()

    def calm(self) -> None:
        """Allow retries until the deadline again."""
        self._hurry.clear()

    @property
    def is_hurried(self) -> bool:
        """Whether retries are stopped."""
        return self._hurry.is_set()

    # --- connections ---

    def connection_to(self, node_id: int) -> Connection:
        """Return the connection to a broker that metadata has named. It stays the same until it breaks.

        Raises:
            Again: metadata names no broker with this id now.
            Unavailable: the broker does not respond.
        """
        if node_id not in self._nodes:
            raise Again(f"broker {node_id} is not there")
        return self._connection(self._nodes[node_id])

    def any_connection(self) -> Connection:
        """Return a connection to any broker.

        Raises:
            Unavailable: no broker responds.
        """
        failures = []
        for address in [*self._connections, *self._addresses, *self._nodes.values()]:
            try:
                return self._connection(address)
            except Unavailable as failure:
                if str(failure) not in failures:
                    failures.append(str(failure))
        raise Unavailable("; ".join(failures))

    def open_connection(self, address: str) -> Connection:
        """Open a connection for the caller alone. The caller closes it."""
        return Connection(address, client_id=self._client_id, timeout_s=self._timeout_s)

    def lend_connection(self, address: str) -> Connection:
        """Lend a connection to the caller alone. `give_back` keeps it for the next call, which need not open one."""
        idle = self._idle.get(address)
        return idle.pop() if idle else self.open_connection(address)

    def give_back(self, connection: Connection) -> None:
        """Keep a lent connection for reuse, unless it broke, awaits responses, or enough connections are idle."""
        idle = self._idle.setdefault(connection.address, [])
        if connection.is_closed or connection.is_awaiting:
            connection.close()
        else:
            idle.append(connection)
        if len(idle) > IDLE_MAX:
            idle.pop(0).close()  # the connection that was idle for longest

    def address_of(self, node_id: int) -> str:
        """Return the "host:port" of a broker that metadata has named.

        Raises:
            Again: metadata names no broker with this id now.
        """
        if node_id not in self._nodes:
            raise Again(f"broker {node_id} is not there")
        return self._nodes[node_id]

    def _connection(self, address: str) -> Connection:
        known = self._connections.get(address)
        if known is None or known.is_closed:
            known = self._connections[address] = self.open_connection(address)
        return known

    def forget_metadata(self) -> None:
        """Drop the cached leaders and coordinators; the next call requests them again."""
        self._topics.clear()
        self._sole_node_id = None

    def ask(self, connection: Connection, request: Any, response_class: Any = None) -> Any:
        """Run `Connection.call` on a connection of this cluster; forget the connection if it breaks.

        Raises:
            Unavailable: no response. The broker may have carried out the request.
        """
        try:
            return connection.call(request, response_class)
        except Unavailable:
            self.forget(connection)
            raise

    def ask_extension(self, connection: Connection, request: Any, what: str) -> Any:
        """Send a request of one of stablelog's own APIs, which other brokers do not know. For use in `retrying`.

        Args:
            connection: the broker's connection.
            request: its API key tells the class of the response.
            what: what other brokers do not know, for the message: "cuts".

        Raises:
            Again: a retry can resolve the error.
            Missing: a topic does not exist.
            Refused: the broker does not know the API, or refuses the request; the message says why.
            Unavailable: no response.
        """
        if not connection.speaks(request.__api_key__):
            raise Refused(
                ErrorCode.unsupported_version,
                f"{self.bootstrap} knows no {what}: that needs a stablelog broker",
            )
        answer = self.ask(connection, request)
        # This response comes from the broker that has the topic. If it does not know the topic, waiting will not help.
        if answer.error_code is ErrorCode.unknown_topic_or_partition:
            raise Missing(answer.error_message or answer.error_code.name)
        if answer.error_code in PASSING:
            raise Again(answer.error_message or answer.error_code.name)
        if answer.error_code is not ErrorCode.none:
            raise Refused(answer.error_code, answer.error_message or answer.error_code.name)
        return answer

    def forget(self, connection: Connection) -> None:
        """Close a connection that broke, so that the next call opens a new one."""
        connection.close()
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    # --- metadata ---

    def metadata(self, topics: Iterable[str] | re.Pattern[str] | None = None) -> dict[str, Topic]:
        """Return the topics by name, by a new Metadata request.

        Args:
            topics: names; or a pattern that whole names must match, without internal topics; or None for all topics.

        Raises:
            Refused: a topic that was named does not exist.
            Unavailable: no broker responds.
        """
        names = None if topics is None or isinstance(topics, re.Pattern) else tuple(topics)
        found = self.retrying("asking for metadata", lambda: self._metadata(names))
        if isinstance(topics, re.Pattern):
            return {
                name: topic
                for name, topic in found.items()
                if not topic.is_internal and topics.fullmatch(name)
            }
        return found

    def _metadata(self, names: tuple[str, ...] | None, *, create: bool = False) -> dict[str, Topic]:
        connection = self.any_connection()
        try:
            request_class = connection.request_class(ApiKey.METADATA)
        except Unavailable:
            self.forget(connection)
            raise
        version = request_class.__version__
        module = module_of(request_class)
        fields: dict[str, Any] = {"topics": None}
        if names is not None:
            extra = {"topic_id": None} if version >= 10 else {}
            fields["topics"] = tuple(module.MetadataRequestTopic(name=name, **extra) for name in names)
        if version >= 4:
            fields["allow_auto_topic_creation"] = create
        if version >= 8:
            fields["include_topic_authorized_operations"] = False
            if version <= 10:
                fields["include_cluster_authorized_operations"] = False
        answer = self.ask(connection, request_class(**fields))
        check(getattr(answer, "error_code", ErrorCode.none), "asking for metadata")
        self._nodes = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        self._sole_node_id = next(iter(self._nodes)) if len(self._nodes) == 1 else None
        found = {}
        for topic in answer.topics:
            if topic.error_code is ErrorCode.unknown_topic_or_partition:
                raise Missing(f"there is no topic {topic.name!r} at {self.bootstrap}")
            if topic.error_code is ErrorCode.leader_not_available:
                raise Again(f"topic {topic.name!r} has no leader yet")
            check(topic.error_code, f"topic {topic.name!r}")
            found[topic.name] = Topic(
                topic.name,
                getattr(topic, "topic_id", None),
                {
                    p.partition_index: Partition(
                        p.leader_id,
                        getattr(p, "leader_epoch", -1),
                        p.leader_id < 0 and bool(getattr(p, "offline_replicas", ())),
                    )
                    for p in sorted(topic.partitions, key=lambda p: p.partition_index)
                },
                topic.is_internal,
            )
        for name in names or ():
            if name not in found:
                raise Again(f"{connection.address} was asked for topic {name!r}, and says nothing of it")
        self._topics.update(found)
        return found

    def log_directories(self, targets: Iterable[TopicPartition] = ()) -> dict[int, list[str]]:
        """Return the data directories of each broker that metadata has named, by node id; empty if a broker names none.

        Args:
            targets: the partitions of interest: Kafka leaves out a directory that holds none of them.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, partition in targets:
            by_topic.setdefault(topic, []).append(partition)
        found = {}
        if not self._nodes:
            self.metadata(())
        for node_id in self._nodes:
            try:
                connection = self.connection_to(node_id)
                request_class = connection.request_class(ApiKey.DESCRIBE_LOG_DIRS)
                module = module_of(request_class)
                topics = tuple(
                    module.DescribableLogDirTopic(topic=topic, partitions=tuple(partitions))
                    for topic, partitions in by_topic.items()
                )
                answer = self.ask(connection, request_class(topics=topics or None))
            except (Unavailable, Again):
                continue
            found[node_id] = [
                result.log_dir for result in answer.results if result.error_code is ErrorCode.none
            ]
        return found

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic that is to be written. A missing topic is created.

        Raises:
            Refused: a topic does not exist, and the broker does not create topics automatically.
            Unavailable: no broker responds.
        """
        names = tuple(topics)
        tries = itertools.count(1)

        def ask() -> dict[str, Topic]:
            try:
                return self._metadata(names, create=True)
            except Missing as missing:
                # Apache Kafka responds to the request that creates a topic as if the topic did not exist.
                if next(tries) < CREATION_TRIES:
                    raise Again(str(missing)) from missing
                raise

        found = self.retrying("asking for the topics to be written", ask)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topic(self, name: str) -> Topic:
        """Return a topic from cached metadata; `retrying` renews the metadata.

        Raises:
            Refused: the topic does not exist.
            Again: the topic has no leader yet.
        """
        if name not in self._topics:
            self._metadata((name,))
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's leader from cached metadata; `retrying` renews the metadata.

        Raises:
            Refused: the topic or partition does not exist.
            Again: the partition has no leader now.
        """
        known = self.topic(topic).partitions.get(partition)
        if known is None:
            raise Missing(
                f"topic {topic!r} has no partition {partition}: 0 to {len(self._topics[topic].partitions) - 1}"
            )
        if known.leader_id < 0:
            raise Again(f"{topic}-{partition} has no leader")
        return known.leader_id

    def coordinator(self, key: str, kind: int = 1) -> Connection:
        """Return a connection to the coordinator of a transactional id (kind 1) or a group (kind 0). For `retrying`.

        Raises:
            Again: no coordinator is available yet.
            Refused: the broker refuses to name a coordinator.
            Unavailable: no broker responds.
        """
        if self._sole_node_id is not None:
            return self.connection_to(self._sole_node_id)
        connection = self.any_connection()
        try:
            request_class = connection.request_class(ApiKey.FIND_COORDINATOR)
        except Unavailable:
            self.forget(connection)
            raise
        if request_class.__version__ >= 4:
            found = self.ask(connection, request_class(key_type=kind, coordinator_keys=(key,))).coordinators
            if not found:
                raise Again(f"{connection.address} was asked for a coordinator, and names none")
            answer = found[0]
        else:
            answer = self.ask(connection, request_class(key=key, key_type=kind))
        if answer.error_code in PASSING:
            raise Again(f"the coordinator of {key!r}: {answer.error_code.name}")
        check(answer.error_code, f"the coordinator of {key!r}")
        self._nodes[answer.node_id] = f"{answer.host}:{answer.port}"
        return self.connection_to(answer.node_id)

    # --- reading ---

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation: str = "read_committed"
    ) -> dict[TopicPartition, Listed]:
        """Find the offsets of timestamps, or the ends of logs.

        Args:
            specs: partition -> EARLIEST, LATEST (the last stable offset for read_committed), MAX_TIMESTAMP, or a
                timestamp in ms, which finds the first record at or after it.
            isolation: read_committed or read_uncommitted.

        Returns:
            A result for each partition; offset -1 if no record is as late as the timestamp.

        Raises:
            Refused: a partition does not exist, or the broker does not know the kind of spec.
            Unavailable: no response within the deadline.
        """
        found: dict[TopicPartition, Listed] = {}

        def attempt() -> dict[TopicPartition, Listed]:
            by_leader: dict[int, list[TopicPartition]] = {}
            for target in specs:
                if target not in found:
                    by_leader.setdefault(self.leader(*target), []).append(target)
            for leader_id, targets in by_leader.items():
                self._list_offsets_of(
                    leader_id, {target: specs[target] for target in targets}, isolation, found
                )
            return found

        return self.retrying("listing offsets", attempt)

    def _list_offsets_of(
        self,
        leader_id: int,
        specs: Mapping[TopicPartition, int],
        isolation: str,
        found: dict[TopicPartition, Listed],
    ) -> None:
        """Ask one leader. Results go into `found`, even if the leader refuses another partition."""
        connection = self.connection_to(leader_id)
        try:
            request_class = connection.request_class(ApiKey.LIST_OFFSETS, newest=7)
        except Unavailable:
            self.forget(connection)
            raise
        module = module_of(request_class)
        topics: dict[str, list[Any]] = {}
        for (topic, partition), spec in specs.items():
            topics.setdefault(topic, []).append(
                module.ListOffsetsPartition(partition_index=partition, timestamp=spec)
            )
        fields: dict[str, Any] = {
            "replica_id": -1,
            "topics": tuple(
                module.ListOffsetsTopic(name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
        }
        if request_class.__version__ >= 2:
            fields["isolation_level"] = ISOLATIONS[isolation]
        answer = self.ask(connection, request_class(**fields))
        refused = []
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code is ErrorCode.none:
                    found[topic.name, partition.partition_index] = Listed(
                        partition.offset, partition.timestamp
                    )
                else:
                    refused.append((topic.name, partition))
        for name, partition in refused:
            check(partition.error_code, f"the offsets of {name}-{partition.partition_index}")
        for name, index in specs.keys() - found.keys():
            raise Again(f"{connection.address} was asked for the offsets of {name}-{index}, and tells none")

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        size_max: int = 8 << 20,
        isolation: str = "read_committed",
        *,
        wait_ms: int = 500,
    ) -> Fetched:
        """Fetch whole record batches as they stand in the log, from the batch that contains `offset`.

        Args:
            topic: the topic's name.
            partition: the partition's index.
            offset: the first offset wanted.
            size_max: bytes; the last batch may be cut off there, but the first one is always whole.
            isolation: read_committed ends at the last stable offset and lists the aborted transactions.
            wait_ms: how long the broker may wait for a record if there is none.

        Raises:
            OffsetOutOfRange: the offset is not in the log.
            Refused: the partition does not exist.
            Unavailable: no response within the deadline.
        """

        def attempt() -> Fetched:
            connection = self.connection_to(self.leader(topic, partition))
            try:
                version = connection.version(ApiKey.FETCH, newest=12)
                body = encode_fetch_request(
                    version, topic, partition, offset, size_max, ISOLATIONS[isolation], wait_ms=wait_ms
                )
                connection.send(ApiKey.FETCH, version, [body], flexible=version >= 12)
                answer = connection.receive(flexible=version >= 12)
                with connection.reading(ApiKey.FETCH):
                    fetched = read_fetch_response(version, answer)
            except Unavailable:
                self.forget(connection)
                raise
            if fetched.error is ErrorCode.offset_out_of_range:
                raise OffsetOutOfRange(f"{topic}-{partition} has no offset {offset}")
            check(fetched.error, f"fetching {topic}-{partition} from {offset}")
            return fetched

        return self.retrying(f"fetching {topic}-{partition}", attempt)


class Missing(Refused):
    """The topic or partition does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_topic_exception, message)


def _restore(bootstrap: str, client_id: str, timeout_s: float, deadline_s: float) -> Cluster:
    return Cluster(bootstrap, client_id=client_id, timeout_s=timeout_s, deadline_s=deadline_s)


def module_of(message: Any) -> Any:
    """Return the module of a request's class, which also has the classes of its nested structures."""
    return sys.modules[message.__module__]
