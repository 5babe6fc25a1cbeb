"""The beginning of a transaction of the native client. It gets a producer, and a key and a version. By these two, the
broker recognises the commit of the transaction, so that a repeated request commits nothing twice. The key is a text,
and the version numbers the commits under the key.
"""

from collections.abc import MutableMapping
from typing import NamedTuple

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.endings import TransactionEnding, choose_ending
from stablelog.client.core.keys import ENDING_WAIT_S, LOST, WriterKey
from stablelog.client.core.producer import BatchProducer
from stablelog.client.core.steps import Steps
from stablelog.errors import RefusedError, UnavailableError


class BegunTransaction(NamedTuple):
    """A transaction that has begun at the broker.

    Attributes:
        key: the key and the version that together identify the transaction's commit for the broker: the key that was
            given to `begin_under_key`, or a new one if the broker refused that key.
        ending: the object by which the transaction is committed or aborted.
        producer: sends the batches of the transaction.
    """

    key: WriterKey
    ending: TransactionEnding
    producer: BatchProducer


def begin_under_key(
    cluster: Cluster,
    key: WriterKey,
    token: str,
    timeout_s: float,
    base_offsets: MutableMapping[int, int],
) -> Steps[BegunTransaction]:
    """Begin a transaction under a key, a text that, with a version, identifies its commit for the broker. If another
    client may use the given key, or if the broker still writes the abort markers of the key's last transaction, begin
    it under a new key of the same transaction group (topics whose commits have one order).

    Args:
        cluster: the brokers.
        key: the key, with its next version.
        token: a text that no other commit has. The broker stores it with the commit and returns it, so that the client
            recognises a commit as its own.
        timeout_s: after this time the coordinator aborts the transaction.
        base_offsets: the producer adds the base offset of each acknowledged batch, by the number of the batch; -1 if it
            is unknown.

    Raises:
        RefusedError: the broker refuses the transactional id or the timeout, or has no transaction groups.
        UnavailableError: the broker does not respond within the deadline.
    """

    def begin(key: WriterKey, deadline_s: float) -> Steps[BegunTransaction]:
        ending = yield from choose_ending(cluster, key, token)
        producer = BatchProducer(
            cluster,
            ending.transactional_id,
            transaction_timeout_ms=max(1, int(timeout_s * 1000)),
            deadline_s=cluster.deadline_s,
            on_acknowledged=base_offsets.__setitem__,
        )
        yield from producer.begin(deadline_s=deadline_s)
        return BegunTransaction(key, ending, producer)

    deadline_s = cluster.deadline_s
    try:
        return (yield from begin(key, min(ENDING_WAIT_S, deadline_s) if key.may_be_ending else deadline_s))
    except RefusedError as refused:
        if refused.code not in LOST:
            raise
    except UnavailableError:
        if not key.may_be_ending or cluster.are_retries_cancelled:
            raise
    return (yield from begin(WriterKey(key.group), deadline_s))
