"""Producer of record batches, which the caller has encoded, over blocking sockets. `core.producer` decides what is
sent.
"""

from collections.abc import Callable

from stablelog.client.blocking.cluster import BlockingCluster, blocking
from stablelog.client.core import producer as core
from stablelog.client.core.producer import TIMEOUT_MS


class BlockingProducer:
    """A producer of encoded batches, with at most one open transaction.

    Call `begin` first, and again after an abort. If `append` or `flush` raises an exception, the transaction can only
    be aborted; a producer without transactions can then only be closed.

    Args:
        cluster: the connections to the brokers.
        transactional_id: the transactional id. `begin` fences an earlier producer with the same id. None for an
            idempotent producer without transactions, which has no `end`.
        transaction_timeout_ms: after this time the coordinator aborts an open transaction.
        deadline_s: how long batches are retried while none is acknowledged.
        on_acknowledged: called for each acknowledged batch with two arguments: the number that `append` returned, and
            the batch's base offset. The offset is -1 if the broker had the batch already and does not know the offset
            any more.

    Attributes:
        core: the object of `client.core` that has the state of the producer and decides what its calls send.
        run: a function that runs the steps (a generator of I/O operations) of a call of `core`, and returns their
            result.
    """

    def __init__(
        self,
        cluster: BlockingCluster,
        transactional_id: str | None,
        *,
        transaction_timeout_ms: int = TIMEOUT_MS,
        deadline_s: float = TIMEOUT_MS / 1000,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> None:
        self.run = cluster.run
        self.core = core.BatchProducer(
            cluster.core,
            transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            deadline_s=deadline_s,
            on_acknowledged=on_acknowledged,
        )

    @property
    def producer_id(self) -> int:
        """The producer id; `begin` sets it."""
        return self.core.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer epoch; `begin` sets it, and `end` changes it in transaction version 2."""
        return self.core.producer_epoch

    @property
    def record_count(self) -> int:
        """How many records were acknowledged since `begin`."""
        return self.core.record_count

    @property
    def has_begun(self) -> bool:
        """Whether a batch belongs to the transaction. Before the first batch, the transaction has not begun at the
        coordinator.
        """
        return self.core.has_begun

    begin = blocking(core.BatchProducer.begin)
    append = blocking(core.BatchProducer.append)
    flush = blocking(core.BatchProducer.flush)
    end = blocking(core.BatchProducer.end)

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Resume the open transaction of another producer, for example of another process, so that this producer can
        end it. The broker must have acknowledged all batches of the transaction.
        """
        self.core.resume(producer_id, producer_epoch)

    def close(self) -> None:
        """Return the connections to the cluster. An open transaction stays open, and can still be committed by a joint
        commit (a commit of several open transactions together); otherwise its timeout aborts it.
        """
        self.core.close()
