"""Errors with which the coordinator refuses a producer's request, and the error codes that each API version knows."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError

# InitProducerId returns PRODUCER_FENCED from this version on, and INVALID_PRODUCER_EPOCH below it.
INIT_KNOWS_FENCED: Final = 4
# AddPartitionsToTxn, AddOffsetsToTxn and EndTxn return PRODUCER_FENCED from this version on.
TXN_KNOWS_FENCED: Final = 2
PRODUCE_KNOWS_ABORTABLE: Final = 11  # Produce returns TRANSACTION_ABORTABLE from this version on.


def code_without_fenced(code: ErrorCode) -> ErrorCode:
    """Replace PRODUCER_FENCED by INVALID_PRODUCER_EPOCH, for responses that cannot contain PRODUCER_FENCED. Other codes
    stay.
    """
    return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code


def code_for_version(code: ErrorCode, api_version: int, knows_fenced: int) -> ErrorCode:
    """Return the error code for a response of version `api_version`.

    PRODUCER_FENCED is replaced by INVALID_PRODUCER_EPOCH in versions below `knows_fenced`.
    """
    return code if api_version >= knows_fenced else code_without_fenced(code)


def code_for_produce(code: ErrorCode, produce_version: int | None) -> ErrorCode:
    """Convert the coordinator's error code to the one that the Produce response contains.

    The codes differ because producers with TV1 (transaction version 1) retry a batch only after errors that replication
    can cause.

    Args:
        code: the coordinator's error code.
        produce_version: the version of the Produce request; None to return `code` unchanged.
    """
    if produce_version is None:
        return code
    if code is ErrorCode.concurrent_transactions:
        return ErrorCode.not_enough_replicas
    if code is ErrorCode.transaction_abortable and produce_version < PRODUCE_KNOWS_ABORTABLE:
        return ErrorCode.invalid_txn_state
    return code_without_fenced(code)


def fenced_refusal(
    transactional_id: str, shown: ProducerIdAndEpoch, txn: TransactionMetadata
) -> RefusedError:
    """Return the error for a request whose producer epoch is not the current one of the transactional id. `shown` is
    the producer id and epoch that the request has.
    """
    return RefusedError(
        ErrorCode.producer_fenced,
        f"{transactional_id}: producer {shown.producer_id} with epoch {shown.producer_epoch} was fenced; "
        f"{txn.client.producer_id} with epoch {txn.client.producer_epoch} holds the id",
    )


def id_mapping_refusal(
    transactional_id: str, shown: ProducerIdAndEpoch, txn: TransactionMetadata
) -> RefusedError:
    """Return the error for a request whose producer id is not that of the transactional id. `shown` is the producer id
    and epoch that the request has.
    """
    return RefusedError(
        ErrorCode.invalid_producer_id_mapping,
        f"{transactional_id} belongs to producer {txn.client.producer_id}, not {shown.producer_id}",
    )


def abort_only_refusal(transactional_id: str) -> RefusedError:
    """Return the error for a commit of a transaction that can only be aborted, because the broker refused it a
    partition.
    """
    return RefusedError(
        ErrorCode.invalid_txn_state,
        f"the transaction of {transactional_id} was refused a partition: it can only be aborted",
    )


def tv1_refusal() -> RefusedError:
    """Return the error for a client with TV1 (transaction version 1), when the broker's settings allow only TV2
    (version 2).
    """
    return RefusedError(
        ErrorCode.policy_violation,
        "stablelog.transaction.strict allows only transaction version 2 (EndTxn v5, Produce v12): use a client that "
        "supports it, or turn the setting off",
    )
