"""Transactional producer of complete record batches over blocking sockets. What it sends is decided by
`core.producer`.
"""

from collections.abc import Callable

from stablelog.client.cluster import Cluster
from stablelog.client.core import producer as core
from stablelog.client.core.producer import TIMEOUT_MS


class Producer:
    """A transactional producer of whole batches. It has one transaction at a time.

    Call `begin` first, and again after an abort. After any exception from `append` or `flush`, the transaction can only
    be aborted.

    Args:
        cluster: the brokers.
        transactional_id: the transactional id. `begin` fences an earlier producer with the same id.
        transaction_timeout_ms: after this time the coordinator aborts an open transaction.
        deadline_s: how long batches are retried while none is acknowledged.
        on_acknowledged: called for each acknowledged batch with the number that `append` returned and the base offset;
            -1 if the broker has the batch already and no longer knows its offset.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TIMEOUT_MS,
        deadline_s: float = TIMEOUT_MS / 1000,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._core = core.Producer(
            cluster.core,
            transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            deadline_s=deadline_s,
            on_acknowledged=on_acknowledged,
        )

    @property
    def producer_id(self) -> int:
        """The producer id; `begin` sets it."""
        return self._core.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch; `begin` sets it, and `end` changes it in transaction version 2."""
        return self._core.producer_epoch

    @property
    def record_count(self) -> int:
        """How many records were acknowledged since `begin`."""
        return self._core.record_count

    @property
    def has_begun(self) -> bool:
        """Whether a batch was added to the transaction. Without a batch, the coordinator does not know the
        transaction.
        """
        return self._core.has_begun

    def begin(self, *, deadline_s: float | None = None) -> None:
        """Get a producer id and epoch. This fences an earlier producer with the same transactional id, and aborts its
        open transaction.

        Args:
            deadline_s: replaces the cluster's deadline.

        Raises:
            RefusedError: the coordinator refuses the transactional id or the timeout; the message says why.
            UnavailableError: the coordinator does not respond within the deadline.
        """
        self._cluster.run(self._core.begin(deadline_s=deadline_s))

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Take over an open transaction, for example of another process, so that `end` can end it. All its batches must
        be acknowledged.
        """
        self._core.resume(producer_id, producer_epoch)

    def append(self, topic: str, partition: int, batch: bytearray) -> int:
        """Send one whole batch, to be appended to a partition. This method fills in the producer's fields and the CRC.

        The batch may still be in flight on return, so its bytes must not change until `flush` returns.

        Returns:
            The number of the batch in the transaction, from 0.

        Raises:
            RefusedError: the broker refuses this batch or an earlier one, or the transaction has ended.
            UnavailableError: no broker accepted the batch within the deadline.
        """
        return self._cluster.run(self._core.append(topic, partition, batch))

    def flush(self) -> None:
        """Wait until every batch is acknowledged.

        Raises:
            RefusedError: the broker refuses a batch, or the transaction has ended.
            UnavailableError: no broker accepted the batches within the deadline.
        """
        self._cluster.run(self._core.flush())

    def end(self, *, commit: bool, deadline_s: float | None = None) -> None:
        """Commit or abort the transaction. Before a commit, every batch must be flushed.

        Args:
            commit: True commits, False aborts.
            deadline_s: replaces the cluster's deadline.

        Raises:
            RefusedError: the transaction was not committed, because it was fenced or has timed out.
            UnavailableError: no response within the deadline; the transaction may or may not have ended.
        """
        self._cluster.run(self._core.end(commit=commit, deadline_s=deadline_s))

    def close(self) -> None:
        """Return the connections to the cluster. An open transaction stays open until a joint commit or its timeout
        ends it.
        """
        self._core.close()
