"""Checks of a batch against the state of its producer: is it a duplicate, and do its epoch and sequence number follow?

Source: KIP-98, KIP-890.
"""

from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX, BatchHeader
from stablelog.errors import RefusedError
from stablelog.log.producer_state.producer import NO_TXN, KeptBatch, ProducerEntry


def find_repeated(producer: ProducerEntry, header: BatchHeader) -> KeptBatch | None:
    """Find out whether a batch repeats one that is in the log already: a client sends a batch again if it has got no
    response. The partition remembers the last batches of each producer.

    A transactional batch counts as a duplicate only of a batch in the producer's open transaction, because a client
    waits for all responses before it ends a transaction. A batch with the sequence numbers of an ended transaction is
    therefore no duplicate. There are two cases:

    - The batch is late: it was sent before its transaction ended, and arrives afterwards. `check_sequence` refuses it.
    - The batch is new: after an abort, librdkafka gives a batch of the next transaction the sequence number of a batch
      whose response was lost. stablelog appends the new batch. Kafka takes it for a duplicate and does not append it,
      so the next transaction commits without the records of this batch.

    Args:
        producer: the state of the producer, with its remembered batches.
        header: the header of the batch that the client has sent.

    Returns:
        The remembered batch with the same sequence numbers, which the batch repeats; None if it is no duplicate.
    """
    is_open = producer.txn_first_offset != NO_TXN
    if producer.producer_epoch != header.producer_epoch or header.is_transactional != is_open:
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
    """Refuse a batch whose producer epoch is lower than the current epoch of its producer.

    Raises:
        RefusedError: the producer epoch is old (invalid_producer_epoch).
    """
    if header.producer_epoch < producer.producer_epoch:
        raise RefusedError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} writes with the old producer epoch {header.producer_epoch}; the current one is {producer.producer_epoch}",
        )


def check_sequence(producer: ProducerEntry, header: BatchHeader) -> None:
    """Refuse a batch whose first sequence number does not follow the producer's last one, and a batch that is not
    transactional although its producer has an open transaction in the partition.

    The first batch with a new producer epoch must begin at sequence number 0.

    Raises:
        RefusedError: the batch is refused (out_of_order_sequence_number or invalid_txn_state).
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
