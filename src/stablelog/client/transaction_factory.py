"""Makes the transactions of one client, from the client's pools of connections and keys."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic

from stablelog.batch.codec import Codec
from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core import arguments
from stablelog.client.core.group_names import check_group
from stablelog.client.key_pool import WriterKeyPool

if TYPE_CHECKING:
    from stablelog.client.core.group_reading import GroupReading
    from stablelog.client.core.outcomes import Outcome
    from stablelog.client.core.writing import Writing

TIMEOUT_S: Final = 30.0


class TransactionFactory(Generic[ClusterT]):
    """Makes the transactions of a client.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.
        codec: the compression of the batches that are written.

    Attributes:
        clusters: the client's pool of cluster objects.
        keys: the client's pool of keys that no transaction uses now. A key (a text) and a version (the number of the
            commit under the key) identify a commit for the broker.
    """

    def __init__(self, clusters: ClusterPool[ClusterT], codec: Codec = Codec.NONE) -> None:
        self.clusters = clusters
        self._codec = codec
        self.keys = WriterKeyPool()

    def begin_transaction(
        self,
        group: str,
        timeout_s: float,
        now: float,
        on_end: "Callable[[Outcome], None]",
        reading: "GroupReading | None" = None,
    ) -> "tuple[ClusterT, Writing]":
        """Begin a transaction.

        Args:
            group: the transaction group of the topics, whose commits have one order; empty for the default group.
            timeout_s: seconds until an open transaction is aborted.
            now: the present time, in seconds of the clock by which `Writing` measures time.
            on_end: called once with the outcome of the transaction. From then on other transactions may use the same
                connections.
            reading: the state of the reader of a consumer group whose offsets the transaction commits; None if it
                commits no offsets.

        Returns:
            The cluster object with the connections that the transaction uses, and the object that has the transaction's
            state and decides what its calls do.

        Raises:
            TypeError: the timeout or the group has a wrong type.
            UsageError: the timeout is out of range, or the group's name is invalid; or the reader is closed, or has
                another open transaction.
            RefusedError: the client is closed.
        """
        timeout_s = arguments.seconds("timeout", timeout_s, is_zero_valid=False)
        check_group(arguments.text("group", group, "the name of a transaction group (str)"))
        if reading is not None:
            reading.check_free()
        make = _maker(reading)
        cluster = self.clusters.lend_cluster()

        def release(writing: "Writing") -> None:
            if writing.is_key_free:
                self.keys.return_key(writing.key)
            self.clusters.return_cluster(cluster)

        writing = make(
            cluster.core,
            key=self.keys.take_key(group),
            codec=self._codec,
            timeout_s=timeout_s,
            now=now,
            on_end=on_end,
            release=release,
        )
        if reading is not None:
            reading.begin_transaction(writing)
        return cluster, writing


def _maker(reading: "GroupReading | None") -> "Callable[..., Writing]":
    """Return the class that has the state of a transaction: `GroupWriting` if the transaction commits the offsets of a
    reader (`reading`), otherwise `Writing`. Its module is imported only now, because a program that only reads does not
    need it.
    """
    if reading is None:
        from stablelog.client.core.writing import Writing

        return Writing
    from stablelog.client.core.group_writing import GroupWriting

    return partial(GroupWriting, reading)
