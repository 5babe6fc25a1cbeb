"""Which broker leads what: bootstrap addresses, metadata, leaders, offsets; and asking again while that changes.

A `Cluster` pickles as its arguments: what runs in another process connects anew.
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
from stablelog.client.fetching import Fetched, fetch_request, read_fetch_response
from stablelog.errors import InvalidConfig, OffsetOutOfRange, Refused, Unavailable

Result = TypeVar("Result")
Target = tuple[str, int]  # topic, partition

FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, DESCRIBE_LOG_DIRS = 1, 2, 3, 10, 35
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # the specs of list_offsets that are no timestamps
ISOLATIONS = {"read_uncommitted": 0, "read_committed": 1}
DEADLINE_S = 30.0
CREATION_TRIES = 6  # half a second or so, until a topic is to be seen that was made by being asked for
IDLE_MAX = 4  # connections to a broker that were lent and given back
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0

# What goes away by itself, once the cluster has sorted itself out: ask again, with new metadata.
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
    """Raised within `Cluster.retrying`: what failed will pass."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a topic.

    Attributes:
        leader_id: the leader's node id; -1 while there is none.
        leader_epoch: of that leader; -1 if the broker tells none.
        is_offline: whether it has no leader and a replica of it is offline.
    """

    leader_id: int
    leader_epoch: int
    is_offline: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its id (None if the broker tells none) and its partitions by index."""

    name: str
    topic_id: uuid.UUID | None
    partitions: Mapping[int, Partition]
    is_internal: bool


class Listed(NamedTuple):
    """What `list_offsets` finds: the offset, and the timestamp of its record in ms; -1 where there is none."""

    offset: int
    timestamp_ms: int


class Cluster:
    """The brokers behind a list of addresses.

    Args:
        bootstrap: "host:port,host:port"; one that answers is enough.
        client_id: the name under which the brokers' logs know this client.
        timeout_s: how long a broker may be silent.
        deadline_s: how long a call is tried again before it fails.
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
        self._idle: dict[str, list[Connection]] = {}  # lent and given back, by address
        self._sole_node_id: int | None = None  # of a cluster of one, which then coordinates everything
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

    # --- asking again ---

    def retrying(self, what: str, attempt: Callable[[], Result], deadline_s: float | None = None) -> Result:
        """Call until it succeeds, fails for good, or the deadline has passed.

        Args:
            what: for the message: "listing offsets".
            attempt: raises Again, Unavailable or a Refused that passes, to be called again.
            deadline_s: instead of the cluster's.

        Raises:
            Unavailable: the deadline has passed; says what the last failure was.
            Refused: for a reason that does not pass.
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
        """From any thread: whoever asks again gives up at the next failure, now and until `calm`."""
        self._hurry.set()

    def calm(self) -> None:
        """Ask again for as long as the deadline allows, as ever."""
        self._hurry.clear()

    @property
    def is_hurried(self) -> bool:
        """Whether nothing is asked again."""
        return self._hurry.is_set()

    # --- connections ---

    def connection_to(self, node_id: int) -> Connection:
        """A connection to a broker that metadata has named; the same one each time, until it breaks.

        Raises:
            Again: there is no such broker now.
            Unavailable: it does not answer.
        """
        if node_id not in self._nodes:
            raise Again(f"broker {node_id} is not there")
        return self._connection(self._nodes[node_id])

    def any_connection(self) -> Connection:
        """A connection to any broker.

        Raises:
            Unavailable: none answers.
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
        """A connection of the caller's own, which the caller closes."""
        return Connection(address, client_id=self._client_id, timeout_s=self._timeout_s)

    def lend_connection(self, address: str) -> Connection:
        """A connection of the caller's own for a while: `give_back` spares the next one the opening."""
        idle = self._idle.get(address)
        return idle.pop() if idle else self.open_connection(address)

    def give_back(self, connection: Connection) -> None:
        """Keep a lent connection for the next one, unless it broke, has answers to come, or enough of them are idle."""
        idle = self._idle.setdefault(connection.address, [])
        if connection.is_closed or connection.is_awaiting:
            connection.close()
        else:
            idle.append(connection)
        if len(idle) > IDLE_MAX:
            idle.pop(0).close()  # the one that was idle for longest

    def address_of(self, node_id: int) -> str:
        """The "host:port" of a broker that metadata has named.

        Raises:
            Again: there is no such broker now.
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
        """Ask anew for who leads and coordinates what."""
        self._topics.clear()
        self._sole_node_id = None

    def ask(self, connection: Connection, request: Any, response_class: Any = None) -> Any:
        """`Connection.call` on a connection of this cluster, which is forgotten if it breaks.

        Raises:
            Unavailable: no answer. What was asked may have been done.
        """
        try:
            return connection.call(request, response_class)
        except Unavailable:
            self.forget(connection)
            raise

    def ask_extension(self, connection: Connection, request: Any, what: str) -> Any:
        """`ask` for something of stablelog's own, which other brokers do not know. For use in `retrying`.

        Args:
            connection: to whom.
            request: its response's class is known by its API key.
            what: what other brokers know nothing of, for the message: "cuts".

        Raises:
            Again: not now.
            Missing: a topic is not there.
            Refused: the broker does not know the API, or does not do what is asked; says why.
            Unavailable: no answer.
        """
        if not connection.speaks(request.__api_key__):
            raise Refused(
                ErrorCode.unsupported_version,
                f"{self.bootstrap} knows no {what}: that needs a stablelog broker",
            )
        answer = self.ask(connection, request)
        # The broker that has a topic answers for it: one that it does not know will not come by waiting.
        if answer.error_code is ErrorCode.unknown_topic_or_partition:
            raise Missing(answer.error_message or answer.error_code.name)
        if answer.error_code in PASSING:
            raise Again(answer.error_message or answer.error_code.name)
        if answer.error_code is not ErrorCode.none:
            raise Refused(answer.error_code, answer.error_message or answer.error_code.name)
        return answer

    def forget(self, connection: Connection) -> None:
        """Close a connection that broke, so that the next call opens another."""
        connection.close()
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    # --- metadata ---

    def metadata(self, topics: Iterable[str] | re.Pattern[str] | None = None) -> dict[str, Topic]:
        """The topics by name, as they are now.

        Args:
            topics: names; or a pattern that whole names must match, internal topics left out; or None for all.

        Raises:
            Refused: a topic that was named is not there.
            Unavailable: no broker answers.
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
            request_class = connection.request_class(METADATA)
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

    def log_directories(self, targets: Iterable[Target] = ()) -> dict[int, list[str]]:
        """The data directories of the brokers that metadata has named, by node id; for one that tells none, nothing.

        Args:
            targets: partitions that are wanted: Kafka leaves out a directory that holds none of them.
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
                request_class = connection.request_class(DESCRIBE_LOG_DIRS)
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
        """How many partitions each topic has that is about to be written; one that is not there comes into being.

        Raises:
            Refused: a topic is not there, and the broker makes none by itself.
            Unavailable: no broker answers.
        """
        names = tuple(topics)
        tries = itertools.count(1)

        def ask() -> dict[str, Topic]:
            try:
                return self._metadata(names, create=True)
            except Missing as missing:
                # Apache Kafka answers the request that makes a topic as if it were not there.
                if next(tries) < CREATION_TRIES:
                    raise Again(str(missing)) from missing
                raise

        found = self.retrying("asking for the topics to be written", ask)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def topic(self, name: str) -> Topic:
        """A topic by metadata that may be of earlier; `retrying` renews it.

        Raises:
            Refused: there is no such topic.
            Again: it has no leader yet.
        """
        if name not in self._topics:
            self._metadata((name,))
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader, by metadata that may be of earlier; `retrying` renews it.

        Raises:
            Refused: there is no such topic or partition.
            Again: it has no leader now.
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
        """A connection to a coordinator: of a transactional id (kind 1) or a group (kind 0). For use in `retrying`.

        Raises:
            Again: there is none yet.
            Refused: the broker knows of none.
            Unavailable: no broker answers.
        """
        if self._sole_node_id is not None:
            return self.connection_to(self._sole_node_id)
        connection = self.any_connection()
        try:
            request_class = connection.request_class(FIND_COORDINATOR)
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
        self, specs: Mapping[Target, int], isolation: str = "read_committed"
    ) -> dict[Target, Listed]:
        """The offsets that timestamps, or the ends of the log, stand at.

        Args:
            specs: partition -> EARLIEST, LATEST (the last stable offset for read_committed), MAX_TIMESTAMP, or a
                timestamp in ms: the first record at or after it.
            isolation: read_committed or read_uncommitted.

        Returns:
            For each partition what was found; offset -1 where no record is as late as that.

        Raises:
            Refused: a partition is not there, or the broker does not know the spec.
            Unavailable: no answer within the deadline.
        """
        found: dict[Target, Listed] = {}

        def attempt() -> dict[Target, Listed]:
            by_leader: dict[int, list[Target]] = {}
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
        self, leader_id: int, specs: Mapping[Target, int], isolation: str, found: dict[Target, Listed]
    ) -> None:
        """Ask one leader; what it answers goes into `found`, also if it refuses another partition."""
        connection = self.connection_to(leader_id)
        try:
            request_class = connection.request_class(LIST_OFFSETS, newest=7)
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
        """Whole record batches as the log has them, from the one that contains `offset`.

        Args:
            topic: where.
            partition: where.
            offset: the first one wanted.
            size_max: bytes; the last batch may be cut off there, but the first one comes whole.
            isolation: read_committed ends at the last stable offset and tells which transactions were aborted.
            wait_ms: how long the broker may wait for a record where there is none.

        Raises:
            OffsetOutOfRange: the offset is not in the log.
            Refused: there is no such partition.
            Unavailable: no answer within the deadline.
        """

        def attempt() -> Fetched:
            connection = self.connection_to(self.leader(topic, partition))
            try:
                version = connection.version(FETCH, newest=12)
                body = fetch_request(
                    version, topic, partition, offset, size_max, ISOLATIONS[isolation], wait_ms=wait_ms
                )
                connection.send(FETCH, version, [body], flexible=version >= 12)
                answer = connection.receive(flexible=version >= 12)
                with connection.reading(FETCH):
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
    """A topic or partition that is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_topic_exception, message)


def _restore(bootstrap: str, client_id: str, timeout_s: float, deadline_s: float) -> Cluster:
    return Cluster(bootstrap, client_id=client_id, timeout_s=timeout_s, deadline_s=deadline_s)


def module_of(message: Any) -> Any:
    """The module of a request's class, with the classes nested in it."""
    return sys.modules[message.__module__]
