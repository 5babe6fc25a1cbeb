"""Pool of a client's `Cluster` objects, which hold connections. No two transactions or readers share an object."""

import threading
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.cluster import Cluster
from stablelog.errors import RefusedError

IDLE_MAX: Final = 32  # maximum of unused `Cluster` objects whose connections are kept open for reuse


class ClusterPool:
    """Pool of the `Cluster` objects that no transaction or reader uses now. Several threads may use the pool.

    Args:
        bootstrap: the addresses of the brokers.
        deadline_s: the deadline of each `Cluster`, in seconds.

    Attributes:
        idle: the `Cluster` objects in the pool; the last one is lent next.

    Raises:
        UsageError: an address is invalid.
    """

    def __init__(self, bootstrap: str, deadline_s: float) -> None:
        self.bootstrap = bootstrap
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._is_closed = False
        self.idle = [self.make()]

    def make(self) -> Cluster:
        """Make a `Cluster` without connections. It opens them at its first requests."""
        return Cluster(self.bootstrap, deadline_s=self.deadline_s)

    def lend(self) -> Cluster:
        """Lend a `Cluster` to one transaction or reader.

        Raises:
            RefusedError: the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RefusedError(
                    ErrorCode.invalid_request,
                    f"the client of {self.bootstrap} is closed: make another one with stablelog.connect",
                )
            if self.idle:
                return self.idle.pop()
        return self.make()

    def give_back(self, cluster: Cluster) -> None:
        """Keep a `Cluster` with its connections for reuse. If too many are idle, close the one that is idle for
        longest.
        """
        with self._lock:
            if not self._is_closed:
                self.idle.append(cluster)
                if len(self.idle) <= IDLE_MAX:
                    return
                cluster = self.idle.pop(0)
        cluster.close()

    def close(self) -> None:
        """Close the idle `Cluster` objects now, and each lent one when it is given back."""
        with self._lock:
            self._is_closed = True
            idle, self.idle = self.idle, []
        for cluster in idle:
            cluster.close()
