"""Error codes and messages with which the coordinator refuses a producer, in the codes that the request's version has."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.transaction import Identity, Transaction
from stablelog.errors import Refused

INIT_KNOWS_FENCED: Final = 4  # PRODUCER_FENCED from this version on, INVALID_PRODUCER_EPOCH below.
TXN_KNOWS_FENCED: Final = 2  # The same for AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.
PRODUCE_KNOWS_ABORTABLE: Final = 11  # TRANSACTION_ABORTABLE from this version of Produce on.


def without_fenced(code: ErrorCode) -> ErrorCode:
    """Return the code for a response that never has PRODUCER_FENCED."""
    return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code


def for_version(code: ErrorCode, api_version: int, knows_fenced: int) -> ErrorCode:
    """Return the code for a response that has PRODUCER_FENCED from version `knows_fenced` on."""
    return code if api_version >= knows_fenced else without_fenced(code)


def for_produce(code: ErrorCode, produce_version: int | None) -> ErrorCode:
    """Return the code for a response to Produce; unchanged if the version is None.

    Producers with TV1 retry only after errors that replication can cause.
    """
    if produce_version is None:
        return code
    if code is ErrorCode.concurrent_transactions:
        return ErrorCode.not_enough_replicas
    if code is ErrorCode.transaction_abortable and produce_version < PRODUCE_KNOWS_ABORTABLE:
        return ErrorCode.invalid_txn_state
    return without_fenced(code)


def fenced(transactional_id: str, shown: Identity, txn: Transaction) -> Refused:
    """Refuse a producer that had the id; its epoch is not the current one."""
    return Refused(
        ErrorCode.producer_fenced,
        f"{transactional_id}: producer {shown.producer_id} with epoch {shown.producer_epoch} was fenced; "
        f"{txn.client.producer_id} with epoch {txn.client.producer_epoch} holds the id",
    )


def mapping_lost(transactional_id: str, shown: Identity, txn: Transaction) -> Refused:
    """Refuse a producer id: the transactional id belongs to another one."""
    return Refused(
        ErrorCode.invalid_producer_id_mapping,
        f"{transactional_id} belongs to producer {txn.client.producer_id}, not {shown.producer_id}",
    )


def turned_away(transactional_id: str) -> Refused:
    """Refuse to commit a transaction that was refused a partition."""
    return Refused(
        ErrorCode.invalid_txn_state,
        f"the transaction of {transactional_id} was refused a partition: it can only be aborted",
    )


def tv1_refused() -> Refused:
    """Refuse TV1, because the broker's settings allow only TV2."""
    return Refused(
        ErrorCode.policy_violation,
        "stablelog.transaction.strict allows only transaction version 2 (EndTxn v5, Produce v12): use a client that "
        "supports it, or turn the setting off",
    )
