"""The connections to the brokers of one cluster, over blocking sockets. `core.cluster` decides what is sent over them.

A pickled `BlockingCluster` contains the arguments of its constructor, and opens new connections in the other process.
"""

import time
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from stablelog.client.blocking.connection import BlockingRunner, SocketConnection
from stablelog.client.core import cluster as core
from stablelog.client.core import partitions
from stablelog.client.core.admin.brokers import log_directories
from stablelog.client.core.call_limits import DEADLINE_S
from stablelog.client.core.cluster import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
)
from stablelog.client.core.connection import CLIENT_ID
from stablelog.client.core.connection import BrokerConnection as CoreConnection
from stablelog.client.core.security import PLAINTEXT, PROBES, SecuritySettings
from stablelog.client.core.settings import TIMEOUT_S
from stablelog.client.core.steps import Result, Steps, as_steps
from stablelog.client.signatures import show_result
from stablelog.processes import watch_forks
from stablelog.types import SecurityProtocol

__all__ = ["DEADLINE_S", "EARLIEST", "LATEST", "MAX_TIMESTAMP", "BlockingCluster", "blocking"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
CoreT = TypeVar("CoreT")
CoreT_co = TypeVar("CoreT_co", covariant=True)


class Shell(Protocol[CoreT_co]):
    """An object of the blocking client around an object of `client.core`, which decides what is sent and does no I/O.
    The shell runs the steps (generators of I/O operations) of that object, and carries out their I/O.
    """

    @property
    def core(self) -> CoreT_co:
        """The object of `client.core` whose steps (generators of I/O operations) this object runs."""

    def run(self, steps: Steps[ResultT]) -> ResultT:
        """Run the steps of a call (a generator that yields I/O operations) to their end, and return their result. Steps
        that emit items, such as those of a reader, cannot be run here.
        """


def blocking(
    steps: Callable[Concatenate[CoreT, P], Steps[ResultT]],
) -> Callable[Concatenate[Shell[CoreT], P], ResultT]:
    """Return a blocking function for a function of `client.core` that returns steps, a generator of I/O operations.

    Args:
        steps: a function whose first argument is an object of `client.core`, such as `core.cluster.Cluster`.

    Returns:
        A function that runs the steps to their end, and returns their result. Its first argument is the object of the
        blocking client that holds the object of `client.core` (its *shell*). Other arguments, errors and docstring are
        those of `steps`.
    """

    @wraps(steps)
    def call(shell: Shell[CoreT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return shell.run(steps(shell.core, *args, **kwargs))

    show_result(call, steps)
    return call


class BlockingCluster(BlockingRunner):
    """The connections to the brokers of one cluster. The first broker is found by a list of addresses, and all other
    brokers by the metadata of the first one. Only one thread at a time may use the object.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        client_id: the name of this client in the brokers' logs.
        timeout_s: how long a broker may take to respond.
        deadline_s: how long a call is retried before it fails.
        security: the security settings.
        backoff_s: a pair: the first pause between two attempts, and the longest one, in seconds.

    Attributes:
        core: the object of `client.core` that decides what the calls send, and that knows the brokers' addresses and
            topics.

    Raises:
        UsageError: an address is invalid.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        security: SecuritySettings = PLAINTEXT,
        backoff_s: tuple[float, float] = (BACKOFF_FIRST_S, BACKOFF_MAX_S),
    ) -> None:
        self.core = core.Cluster(bootstrap, deadline_s=deadline_s, security=security, backoff_s=backoff_s)
        self._backoff_s = backoff_s
        self._client_id = client_id
        self._timeout_s = timeout_s
        watch_forks(self)

    def after_fork(self) -> None:
        """In a forked process, drop the connections of the parent process. The next request opens new ones."""
        self.core.forget_connections()

    def __reduce__(self) -> Any:
        return _restore, (
            self.bootstrap,
            self._client_id,
            self._timeout_s,
            self.deadline_s,
            self.core.security,
            self._backoff_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The addresses, as given."""
        return self.core.bootstrap

    @property
    def deadline_s(self) -> float:
        """For how many seconds a call retries failed requests before it fails."""
        return self.core.deadline_s

    def open_connection(self, address: str, probe: SecurityProtocol | None = None) -> SocketConnection:
        """Open a connection that only the caller uses and closes, and return it. `probe` is PLAINTEXT or SSL for a
        connection without a login, which only finds out the security protocol of a listener; None for an ordinary
        connection with the security settings of the cluster.
        """
        security = self.core.security if probe is None else PROBES[probe]
        return SocketConnection(
            address,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
            security=security,
            limit_s=self.limit_s(),
        )

    def limit_s(self) -> float | None:
        """Return how many seconds are left for the next I/O operation until the deadline of the present call; None if
        the call has no deadline, so that only the timeout of the connection counts.
        """
        return None if self.core.until is None else self.core.until - time.monotonic()

    def close(self) -> None:
        """Close all connections. A later call opens them again."""
        self.core.close()

    def retrying(self, what: str, attempt: Callable[[], Result], deadline_s: float | None = None) -> Result:
        """Call `attempt` until it succeeds, and return its result. Give up when it fails with an error that no retry
        can resolve, or when the deadline has passed.

        Args:
            what: the work in words, for messages, such as "listing offsets".
            attempt: called again if it raises an error for which `responses.is_retriable` is true.
            deadline_s: the number of seconds until the deadline; None for `deadline_s` of the cluster object.

        Raises:
            UnavailableError: the deadline has passed; the message has the last failure.
            RefusedError: `attempt` failed with an error that no retry can resolve.
        """
        return self.run(self.core.retrying(what, lambda: as_steps(attempt), deadline_s))

    # --- connections ---

    def connection_to(self, node_id: int) -> SocketConnection:
        """Return the connection to the broker with this node id. The address is that of the last Metadata response. All
        calls share this connection until it breaks.

        Raises:
            RetriableError: metadata names no broker with this id now.
            UnavailableError: the broker does not respond.
        """
        return _own(self.run(self.core.connection_to(node_id)))

    def any_connection(self) -> SocketConnection:
        """Return a connection to any broker.

        Raises:
            UnavailableError: no broker responds.
        """
        return _own(self.run(self.core.any_connection()))

    def coordinator(self, transactional_id: str) -> SocketConnection:
        """Return a connection to the coordinator of a transactional id. Call this inside a function that is passed to
        `retrying`, because it raises RetriableError.

        Raises:
            RetriableError: no coordinator is available yet.
            RefusedError: the broker refuses to name a coordinator.
            UnavailableError: no broker responds.
        """
        return _own(self.run(self.core.coordinator(transactional_id)))

    def lend_connection(self, address: str) -> SocketConnection:
        """Lend a connection to the broker at this address. No other call uses the connection until the caller returns
        it by `return_connection`.
        """
        return _own(self.run(self.core.lend_connection(address)))

    def return_connection(self, connection: SocketConnection) -> None:
        """Take back a connection of `lend_connection`, and keep it open for the next call of that method. Close it
        instead if it broke, if a response is outstanding, or if enough connections are idle.
        """
        self.core.return_connection(connection)

    # --- metadata ---

    def forget_metadata(self) -> None:
        """Forget which brokers are the leaders of partitions and which ones are coordinators. The next call requests
        this again.
        """
        self.core.forget_metadata()

    def address_of(self, node_id: int) -> str:
        """Return the "host:port" of the broker with this id in the last Metadata response.

        Raises:
            RetriableError: metadata names no broker with this id now.
        """
        return self.core.address_of(node_id)

    metadata = blocking(core.Cluster.metadata)
    log_directories = blocking(log_directories)
    partition_counts = blocking(core.Cluster.partition_counts)
    topic = blocking(core.Cluster.topic)
    leader = blocking(core.Cluster.leader)

    # --- reading ---

    list_offsets = blocking(partitions.list_offsets)
    epoch_end = blocking(partitions.epoch_end)
    fetch = blocking(partitions.fetch)


def _own(connection: CoreConnection) -> SocketConnection:
    """Return `connection` itself, with the type SocketConnection for the type checker. It has this class, because the
    cluster object opens all its connections by `BlockingCluster.open_connection`.
    """
    assert isinstance(connection, SocketConnection)
    return connection


def _restore(
    bootstrap: str,
    client_id: str,
    timeout_s: float,
    deadline_s: float,
    security: SecuritySettings,
    backoff_s: tuple[float, float],
) -> BlockingCluster:
    return BlockingCluster(
        bootstrap,
        client_id=client_id,
        timeout_s=timeout_s,
        deadline_s=deadline_s,
        security=security,
        backoff_s=backoff_s,
    )
