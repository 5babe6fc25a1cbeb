"""Errors with which the coordinator refuses a producer's request. A response has only codes that its version knows."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.transaction import Identity, Transaction
from stablelog.errors import RefusedError

# InitProducerId returns PRODUCER_FENCED from this version on, and INVALID_PRODUCER_EPOCH below it.
INIT_KNOWS_FENCED: Final = 4
# AddPartitionsToTxn, AddOffsetsToTxn and EndTxn return PRODUCER_FENCED from this version on.
TXN_KNOWS_FENCED: Final = 2
PRODUCE_KNOWS_ABORTABLE: Final = 11  # Produce returns TRANSACTION_ABORTABLE from this version on.


def without_fenced(code: ErrorCode) -> ErrorCode:
    """Return the error code for a response that cannot contain PRODUCER_FENCED: INVALID_PRODUCER_EPOCH in its place."""
    return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code


def for_version(code: ErrorCode, api_version: int, knows_fenced: int) -> ErrorCode:
    """Return the error code for a response that can have PRODUCER_FENCED from version `knows_fenced` on."""
    return code if api_version >= knows_fenced else without_fenced(code)


def for_produce(code: ErrorCode, produce_version: int | None) -> ErrorCode:
    """Return the error code that a Produce response has for `code`. Without a version, return `code` itself.

    Producers with TV1 (transaction version 1) retry a batch only after errors that replication can cause.
    """
    if produce_version is None:
        return code
    if code is ErrorCode.concurrent_transactions:
        return ErrorCode.not_enough_replicas
    if code is ErrorCode.transaction_abortable and produce_version < PRODUCE_KNOWS_ABORTABLE:
        return ErrorCode.invalid_txn_state
    return without_fenced(code)


def fenced(transactional_id: str, shown: Identity, txn: Transaction) -> RefusedError:
    """Make the refusal of a request whose producer epoch is not the current one of the transactional id."""
    return RefusedError(
        ErrorCode.producer_fenced,
        f"{transactional_id}: producer {shown.producer_id} with epoch {shown.producer_epoch} was fenced; "
        f"{txn.client.producer_id} with epoch {txn.client.producer_epoch} holds the id",
    )


def mapping_lost(transactional_id: str, shown: Identity, txn: Transaction) -> RefusedError:
    """Make the refusal of a request whose producer id is not that of the transactional id."""
    return RefusedError(
        ErrorCode.invalid_producer_id_mapping,
        f"{transactional_id} belongs to producer {txn.client.producer_id}, not {shown.producer_id}",
    )


def turned_away(transactional_id: str) -> RefusedError:
    """Make the refusal of a commit whose transaction lacks a partition, because the broker refused to add it."""
    return RefusedError(
        ErrorCode.invalid_txn_state,
        f"the transaction of {transactional_id} was refused a partition: it can only be aborted",
    )


def tv1_refused() -> RefusedError:
    """Make the refusal of TV1 (transaction version 1), because the broker's settings allow only TV2."""
    return RefusedError(
        ErrorCode.policy_violation,
        "stablelog.transaction.strict allows only transaction version 2 (EndTxn v5, Produce v12): use a client that "
        "supports it, or turn the setting off",
    )
