"""EndTxn: whether a request ends the producer's transaction, or repeats the request that ended it.

With TV2 each transaction has its own producer epoch, so the epoch of the request distinguishes the two cases. With TV1
the producer keeps its epoch. If the producer has begun no transaction since its last one ended, the request repeats
that end.

Source: KIP-98, KIP-890, KIP-939.
"""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.refusals import (
    abort_only_refusal,
    fenced_refusal,
    id_mapping_refusal,
)
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import (
    NO_EPOCH,
    TV2,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import child_of


def event_of_end_request(
    table: TransactionTable,
    transactional_id: str,
    txn: TransactionMetadata,
    shown: ProducerIdAndEpoch,
    *,
    commit: bool,
    version: int,
) -> TransactionEvent:
    """Return what an EndTxn request does, as an event: it ends the open transaction, or repeats the request for an
    earlier end.

    Args:
        table: the transactional ids of the group.
        transactional_id: the transactional id of the request.
        txn: the state of this id.
        shown: the producer id and epoch of the request.
        commit: whether the request commits or aborts.
        version: the transaction version of the client: 1 for TV1, 2 for TV2.

    Raises:
        RefusedError: another producer holds the id, or the transaction can only be aborted, or it is not known yet
            which transaction the request ends. Nothing has changed.
    """
    ended = txn.state.is_decided or txn.state.is_complete
    again = TransactionEvent.COMMIT_AGAIN if commit else TransactionEvent.ABORT_AGAIN
    if shown == txn.client:
        if table.is_repeated(transactional_id) and version < TV2:
            # A crash may have lost the record that began the producer's next transaction. Whether the request ends
            # that transaction or repeats the end of the last one is known only when all partitions are open.
            raise RefusedError(
                ErrorCode.concurrent_transactions,
                f"the last transaction of {transactional_id} is being completed; try again",
            )
        if table.is_abort_only(transactional_id, txn) and (
            commit or txn.state is not TransactionState.ONGOING
        ):
            if not commit:
                return TransactionEvent.ABORT_NOTHING
            # Refuse the commit even if no transaction is open here: the producer means the transaction that was
            # refused a partition, so the request does not repeat the previous commit.
            raise abort_only_refusal(transactional_id)
        if ended and version < TV2:
            # With TV1 the request repeats the last end: the producer has added no partition since, so it has begun
            # no new transaction.
            return again
        if commit:
            return TransactionEvent.COMMIT
        begun = txn.state is TransactionState.ONGOING or version < TV2
        return TransactionEvent.ABORT if begun else TransactionEvent.ABORT_NOTHING
    own_epochs = min(version, txn.transaction_version) >= TV2 or child_of(transactional_id)
    if own_epochs and ended and shown == txn.predecessor and shown.producer_epoch != NO_EPOCH:
        return again
    if shown.producer_id != txn.client.producer_id:
        raise id_mapping_refusal(transactional_id, shown, txn)
    raise fenced_refusal(transactional_id, shown, txn)


def is_first_since_start(txn: TransactionMetadata, version: int, coordinator_epoch: int) -> bool:
    """Return whether an EndTxn request is the first one, since the broker's start, that repeats the end of a complete
    transaction of TV1 (transaction version 1).

    If so, the coordinator records in the commit log that the transaction has ended. A crash may have lost the marker of
    this transaction in a partition that is not open yet. Without the record, the transaction's records there could
    become part of the producer's next transaction.

    Args:
        txn: the state of the transactional id.
        version: the transaction version of the client.
        coordinator_epoch: the leader epoch since the broker's start.
    """
    return version < TV2 and txn.state.is_complete and txn.settled_epoch < coordinator_epoch
