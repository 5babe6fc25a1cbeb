"""The error that a producer raises for each error code by which a broker refuses its requests."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.core.batch_queue import PendingBatch
from stablelog.client.responses import code_in_words, refused_error
from stablelog.errors import RefusedError

# The transaction has ended, or the broker is going to abort it.
ENDED: Final = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transaction_abortable,
    }
)
# The broker does not have the batch before the refused one.
LOST_BATCH: Final = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})


def producer_error(
    code: ErrorCode, what: str, transactional_id: str | None, transaction_timeout_ms: int
) -> RefusedError:
    """Return the exception for a request of a producer that the broker has refused. The message says what to do.

    Args:
        code: the error code of the response.
        what: the refused work, for the message: "appending to t-0".
        transactional_id: the transactional id of the producer; None for an idempotent producer without transactions.
        transaction_timeout_ms: the timeout that the producer has requested for its transactions.
    """
    if code is ErrorCode.invalid_transaction_timeout:
        return RefusedError(
            code,
            f"the transaction timeout of {transaction_timeout_ms} ms is greater than transaction.max.timeout.ms of the broker: "
            "reduce the timeout, or increase that setting",
        )
    if transactional_id is None:
        return refused_error(code, f"{what}: {code_in_words(code)}")
    transaction = f"the transaction of {transactional_id!r}"
    if code in ENDED:
        return refused_error(
            code,
            f"{transaction} has ended: {what} was refused ({code_in_words(code)}). It was aborted after its timeout of "
            f"{transaction_timeout_ms} ms, fenced by a later producer, or committed without this batch",
        )
    if code in LOST_BATCH:
        return RefusedError(
            code,
            f"{transaction} has lost a batch: {what} was refused ({code_in_words(code)}). Abort it and write it again",
        )
    return refused_error(code, f"{what} for {transactional_id!r}: {code_in_words(code)}")


def too_large_error(code: ErrorCode, what: str, pending: PendingBatch) -> RefusedError:
    """Return the exception for a batch (`pending`) that the broker has refused because it has more bytes than the topic
    allows. `code` is the error code of the response, and `what` the refused work in words.
    """
    return RefusedError(
        code,
        f"{what} was refused: a batch of {len(pending.batch)} bytes (records: {pending.record_count}) is more than "
        f"max.message.bytes of {pending.topic} allows. Make the batches smaller or the setting larger",
    )
