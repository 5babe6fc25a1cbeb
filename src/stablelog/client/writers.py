"""What the transactions and the readers of one client share: clusters (connections), and keys of joint commits."""

from collections.abc import Callable
from typing import Final, Generic

from stablelog.batch.header import Codec
from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core.outcomes import Outcome
from stablelog.client.core.reader import check_group
from stablelog.client.core.writing import Writing
from stablelog.client.keys import WriterKeys
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
        self, group: str, timeout_s: float, now: float, on_end: Callable[[Outcome], None]
    ) -> tuple[ClusterT, Writing]:
        """Begin a transaction. Return the cluster that runs its steps, and the transaction.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout_s: seconds until an open transaction is aborted.
            now: seconds of the shell's clock.
            on_end: called once with the outcome of the transaction. The cluster is then lent to others.

        Raises:
            UsageError: the timeout is out of range, or the group's name is invalid.
            RefusedError: the client is closed.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise UsageError(
                f"the timeout of {timeout_s} s is out of range: greater than 0, and at most {TIMEOUT_MAX_S}"
            )
        check_group(group)
        cluster = self.clusters.lend()

        def release(writing: Writing) -> None:
            if writing.is_key_free:
                self.keys.give_back(writing.key)
            self.clusters.give_back(cluster)

        writing = Writing(
            cluster.core,
            key=self.keys.take(group),
            codec=self._codec,
            timeout_s=timeout_s,
            now=now,
            on_end=on_end,
            release=release,
        )
        return cluster, writing
