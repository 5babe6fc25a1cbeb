"""Pool of the cluster objects of a client. A cluster object has connections to the brokers, and only one transaction or
reader uses it at a time.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.client.core import cluster as core
from stablelog.errors import RefusedError

IDLE_MAX: Final = 32  # maximum of unused clusters whose connections are kept open for reuse


class PooledCluster(Protocol):
    """A cluster object of the blocking client (`BlockingCluster`) or of the asyncio client (`AsyncCluster`)."""

    core: core.Cluster

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers."""

    def close(self) -> None:
        """Close all connections."""


ClusterT = TypeVar("ClusterT", bound=PooledCluster)


class ClusterPool(Generic[ClusterT]):
    """Pool of the cluster objects, each with its connections to the brokers, that no transaction or reader uses now.
    Several threads may use the pool, and so may a signal handler that has interrupted one of them: no method waits for
    a lock.

    Args:
        make: a function that makes a cluster object, which opens its connections at its first requests.

    Attributes:
        bootstrap: the addresses of the brokers.
        idle: the cluster objects in the pool. The last one in this list is lent next.
        is_closed: whether `close` was called.

    Raises:
        UsageError: an address is invalid.
    """

    def __init__(self, make: Callable[[], ClusterT]) -> None:
        self._make = make
        self.is_closed = False
        self.idle = deque([make()])
        self.bootstrap = self.idle[0].bootstrap

    def lend_cluster(self) -> ClusterT:
        """Lend a cluster object (connections to the brokers) to one transaction or reader, which alone uses it until it
        calls `return_cluster`. If the pool is empty, make one.

        Raises:
            RefusedError: the pool is closed.
        """
        self.check_open()
        try:
            return self.idle.pop()
        except IndexError:
            return self._make()

    def check_open(self) -> None:
        """Raise RefusedError if the pool is closed."""
        if self.is_closed:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"the client of {self.bootstrap} is closed: make another one with stablelog.connect",
            )

    def return_cluster(self, cluster: ClusterT) -> None:
        """Take back a lent cluster object, and keep its connections open for the next borrower. If too many cluster
        objects are then idle, close the one that has been idle for longest.
        """
        cluster.core.allow_retries()
        self.idle.append(cluster)
        self._close_idle(0 if self.is_closed else IDLE_MAX)

    def close(self) -> None:
        """Close the connections of all cluster objects in the pool now, and those of each lent one when it is
        returned.
        """
        self.is_closed = True
        self._close_idle(0)

    def _close_idle(self, count_max: int) -> None:
        while len(self.idle) > count_max:
            try:
                cluster = self.idle.popleft()
            except IndexError:  # another thread was faster
                return
            cluster.close()
