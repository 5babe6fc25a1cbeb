"""Checks of a batch against the state of its producer: is it a duplicate, and do its epoch and sequence number follow?

Source: KIP-98, KIP-890.
"""

from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX, BatchHeader
from stablelog.errors import RefusedError
from stablelog.log.producer_state.producer import NO_TXN, KeptBatch, ProducerEntry


def find_repeated(producer: ProducerEntry, header: BatchHeader) -> KeptBatch | None:
    """Return the remembered batch that a batch repeats; None if it is no duplicate.

    A transactional batch can only repeat a batch of the open transaction: a client waits for all responses before it
    ends a transaction. A batch with a sequence number of an ended transaction is either late, or new: after an abort,
    librdkafka reuses the sequence number of a batch whose response was lost. Kafka takes such a new batch for a
    duplicate, so its record is missing from a transaction that commits. Here it is appended; a late batch is refused by
    `check_sequence`.
    """
    if producer.producer_epoch != header.producer_epoch:
        return None
    is_open = producer.txn_first_offset != NO_TXN
    if header.is_transactional != is_open:
        return None
    last_sequence = header.last_sequence
    for kept in producer.batches:
        if (
            kept.last_sequence == last_sequence
            and kept.first_sequence == header.base_sequence
            and (not is_open or kept.first_offset >= producer.txn_first_offset)
        ):
            return kept
    return None


def check_epoch(producer: ProducerEntry, header: BatchHeader) -> None:
    """Refuse a batch with an older producer epoch than that of its producer.

    Raises:
        RefusedError: the producer epoch is old (invalid_producer_epoch).
    """
    if header.producer_epoch < producer.producer_epoch:
        raise RefusedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} writes with the old producer epoch {header.producer_epoch}; the current one is {producer.producer_epoch}",
        )


def check_sequence(producer: ProducerEntry, header: BatchHeader) -> None:
    """Refuse a batch whose sequence number does not follow the producer's last one, or which is outside the open
    transaction of its producer.
    """
    if header.producer_epoch > producer.producer_epoch:
        if header.base_sequence != 0:
            raise out_of_order(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {header.base_sequence}; it must be 0"
            )
    elif header.base_sequence != (producer.last_sequence + 1) & SEQUENCE_MAX:
        # The last sequence is -1 if the log has only a marker of the producer's epoch. The next sequence must then be
        # 0.
        raise out_of_order(
            f"producer {header.producer_id} sends sequence {header.base_sequence}, which does not follow its last sequence {producer.last_sequence}"
        )
    if producer.txn_first_offset != NO_TXN and not header.is_transactional:
        raise RefusedError(
            ErrorCode.invalid_txn_state,
            f"producer {header.producer_id} sends a batch that is not transactional, but has an open transaction in this partition",
        )


def out_of_order(message: str) -> RefusedError:
    """Return the error for a sequence number that is not the next one of its producer."""
    return RefusedError(ErrorCode.out_of_order_sequence_number, message)
