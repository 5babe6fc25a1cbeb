"""Plans of appends. A plan is the result of all checks of a batch or of transaction markers: the bytes to write, with
the offsets and the leader epoch that they get.

Nothing is written here: `log.writer` writes the planned batches. The producer state changes in one case only: if
transaction verification refuses a batch, the state remembers the sequence number of this batch.

Source: Kafka's leader-side rules for client batches (KIP-98); docs/reference/protocol.md, "Produce".
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from stablelog.batch.header import (
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    BatchHeader,
    Codec,
    crc_holds,
    headers_in,
    read_header,
)
from stablelog.batch.markers import MarkerType, encode_marker, read_marker
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, RefusedError
from stablelog.log.model import Appended, LogConfig, MarkerWrite, Origin, PlannedBatch
from stablelog.log.open_log import OpenLog
from stablelog.log.record_checks import check_records, needs_records, refuse_log_append_time, wrong_time

ATTRIBUTES = slice(21, 23)
MAX_TIMESTAMP = slice(35, 43)
RECORD_SIZE_MIN = 7  # bytes of the smallest record: each of its seven fields takes at least one byte
# The greatest number of records of a transaction in a commit-ordered partition. The field `lastOffsetDelta` of the
# commit marker holds the number of records.
POSITION_COUNT_MAX = 2**31 - 1


def check_batch(
    header: BatchHeader, batch: Buffer, origin: Origin, *, topic: str, config: LogConfig, wall_ms: int
) -> None:
    """Check a batch before an append, as far as this is possible without the producer state.

    Args:
        header: the header of the batch.
        batch: all bytes that the request has for this partition.
        origin: who appends, a client or a coordinator. Only batches of clients get all checks.
        topic: the topic's name, for error messages.
        config: the settings of the topic.
        wall_ms: the time of the wall clock.

    Raises:
        RefusedError: the batch is not valid, or this origin must not write such a batch.
        DamageError: the batch is incomplete, or its CRC does not match its bytes.
    """
    size = header.size
    if size < len(batch):
        raise RefusedError(
            ErrorCode.invalid_record,
            "the request holds more than one batch for a partition; only one is allowed",
        )
    if size > len(batch):
        raise DamageError(
            f"a batch has {size} bytes by its header, but the request holds only {len(batch)} of them"
        )
    if header.base_offset != 0:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"the base offset of a produced batch is {header.base_offset}; it must be 0",
        )
    if header.record_count != header.last_offset_delta + 1:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"a batch has {header.record_count} records and last offset delta {header.last_offset_delta}; the delta must be one less than the count",
        )
    if not crc_holds(batch, 0, header):
        raise DamageError("the CRC of a produced batch does not match its bytes")
    if header.codec is Codec.NONE and header.record_count * RECORD_SIZE_MIN > size - HEADER.size:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"a batch has {header.record_count} records in {size - HEADER.size} bytes, which are too few",
        )
    if origin is Origin.CLIENT:
        _check_client_batch(header, topic, config.max_message_bytes)
        _check_times(header, topic, config, wall_ms)


def _check_times(header: BatchHeader, topic: str, config: LogConfig, wall_ms: int) -> None:
    """Refuse a batch whose base timestamp or greatest timestamp is outside the topic's limits. The records are not
    decoded.
    """
    refuse_log_append_time(header)
    if config.is_log_append_time:
        return
    for timestamp_ms in (header.max_timestamp, header.base_timestamp):
        why = wrong_time(timestamp_ms, topic, config, wall_ms)
        if why is not None:
            raise RefusedError(ErrorCode.invalid_timestamp, why)


def _check_client_batch(header: BatchHeader, topic: str, size_max: int) -> None:
    if header.size > size_max:
        raise RefusedError(
            ErrorCode.message_too_large,
            f"a batch has {header.size} bytes; topic {topic} allows max.message.bytes={size_max}",
        )
    if header.is_control:
        raise RefusedError(
            ErrorCode.invalid_record, "a client must not write transaction markers or other control batches"
        )
    if header.attributes & DELETE_HORIZON:
        raise RefusedError(
            ErrorCode.invalid_record, "a batch from a client has a delete horizon; only compaction may set it"
        )
    if header.has_producer:
        if header.base_sequence < 0:
            raise RefusedError(ErrorCode.invalid_record, "a batch has a producer id, but no base sequence")
        if header.producer_epoch < 0:
            raise RefusedError(ErrorCode.invalid_record, "a batch has a producer id, but no producer epoch")
    elif header.is_transactional:
        raise RefusedError(ErrorCode.invalid_record, "a transactional batch has no producer id")


def with_append_time(batch: Buffer, wall_ms: int) -> bytes:
    """Return a copy of the batch with LogAppendTime: the broker's wall clock time as timestamp, and a new CRC."""
    stamped = bytearray(batch)
    stamped[ATTRIBUTES] = (int.from_bytes(stamped[ATTRIBUTES], "big") | LOG_APPEND_TIME).to_bytes(2, "big")
    stamped[MAX_TIMESTAMP] = wall_ms.to_bytes(8, "big")
    stamped[CRC_START - 4 : CRC_START] = crc32c(memoryview(stamped)[CRC_START:]).to_bytes(4, "big")
    return bytes(stamped)


TransactionCheck = Callable[[BatchHeader], None]


def plan_append(
    batch: Buffer,
    origin: Origin,
    log: OpenLog,
    wall_ms: int,
    *,
    transaction_check: TransactionCheck | None = None,
    require_first_sequence_zero: bool = False,
    are_records_checked: bool = False,
    checked_header: BatchHeader | None = None,
) -> PlannedBatch | Appended:
    """Check the batch of a client or a coordinator, and assign its offset and leader epoch.

    Args:
        batch: the bytes of the batch. They are written unchanged except for the base offset, the leader epoch and, with
            LogAppendTime, the timestamps.
        origin: who appends, a client or a coordinator. Only batches of clients get all checks.
        log: the log to which the batch will be appended.
        wall_ms: the time of the wall clock.
        transaction_check: asks the coordinator whether the transaction of a client's batch may write here, and raises
            RefusedError if not. It is called for each transactional batch that is not a duplicate, before the batch
            gets its offset, because the call itself may write to the same log.
        require_first_sequence_zero: whether the first batch of a producer without state in this log must begin at
            sequence number 0. In a log that has never had a record, it must in any case.
        are_records_checked: whether the caller has checked the records of the batch already, by `check_records` or
            `is_checked_soon`. If not, this function checks them.
        checked_header: the header of the batch, if `check_batch` has accepted the batch with the settings of this log.

    Returns:
        The batch to write. If the batch is a duplicate, the offsets of the original batch instead.

    Raises:
        RefusedError: the batch is not valid, or its sequence, its producer epoch or its transaction is wrong.
        DamageError: the bytes are no batch, or the CRC does not match them.
    """
    config, producers = log.config, log.log.producers
    if checked_header is None:
        header = read_header(batch)
        check_batch(header, batch, origin, topic=log.topic, config=config, wall_ms=wall_ms)
    else:
        header = checked_header
    is_client = origin is Origin.CLIENT
    if header.has_producer and not is_client:
        producers.check_epoch(header)
    elif header.has_producer:
        kept = producers.check_batch(
            header,
            # The state of a producer expires only after it has written. If the log has never had a record, the earlier
            # batches of the producer were refused, and it sends them again (KAFKA-15591).
            require_first_sequence_zero=require_first_sequence_zero or log.end_offset == 0,
            open_record_count_max=POSITION_COUNT_MAX if config.is_commit_ordered else None,
        )
        if kept is not None:
            return Appended(
                kept.first_offset,
                kept.last_offset,
                kept.timestamp_ms if config.is_log_append_time else -1,
                duplicate=True,
            )
    if is_client and needs_records(config) and not are_records_checked:
        check_records(header, batch, log.topic, config, wall_ms)
    if is_client and header.is_transactional and transaction_check is not None:
        try:
            transaction_check(header)
        except RefusedError:
            producers.remember_refused(header)
            raise
    if config.is_log_append_time:
        batch = with_append_time(batch, wall_ms)
        header = read_header(batch)
    header = BatchHeader(log.end_offset, header.batch_length, log.leader_epoch, *header[3:])
    head = HEADER.pack(*header)
    return PlannedBatch(header, head, (head, memoryview(batch)[HEADER.size :]))


def is_next(log: OpenLog, header: BatchHeader, *, require_first_sequence_zero: bool = False) -> bool:
    """Whether a client's batch is the next one of its producer, so that the producer state would accept it now. A batch
    with a wrong sequence number or an old producer epoch is not the next one, and neither is a duplicate.
    """
    if not header.has_producer:
        return True
    try:
        kept = log.log.producers.check_batch(
            header, require_first_sequence_zero=log.end_offset == 0 or require_first_sequence_zero
        )
    except RefusedError:
        return False
    return kept is None


def plan_replicated(batches: Buffer, end_offset: int) -> list[PlannedBatch]:
    """Check batches that a follower has copied from another log. They keep their offsets and leader epochs.

    Args:
        batches: the bytes of the batches, one after the other.
        end_offset: the end of this log, exclusive.

    Returns:
        The batches to write, in their order. An incomplete batch at the end of the bytes is left out.

    Raises:
        RefusedError: a batch begins before the end of this log.
        DamageError: the bytes are no batches, or a CRC does not match.
    """
    planned = []
    for position, header in headers_in(batches):
        if not crc_holds(batches, position, header):
            raise DamageError(
                f"the CRC of the copied batch at offset {header.base_offset} does not match its bytes"
            )
        if header.base_offset < end_offset:
            raise RefusedError(
                ErrorCode.invalid_record,
                f"a copied batch begins at offset {header.base_offset}, but the log already reaches offset {end_offset - 1}",
            )
        end_offset = header.next_offset
        batch = memoryview(batches)[position : position + header.size]
        planned.append(
            PlannedBatch(
                header, batch[: HEADER.size], (batch,), read_marker(batch) if header.is_control else None
            )
        )
    if not planned:
        raise DamageError(f"the {len(batches)} bytes that were copied contain no whole batch")
    return planned


def plan_markers(
    markers: Sequence[MarkerWrite], log: OpenLog, wall_ms: int
) -> tuple[list[Appended | RefusedError], list[PlannedBatch]]:
    """Check transaction markers that are written together, and encode their batches.

    In a commit-ordered topic, a commit marker takes one offset for itself and one for each record of its transaction.

    Args:
        markers: the markers, in the order in which they are written.
        log: the log to which they will be appended.
        wall_ms: the time of the wall clock, which becomes the timestamp of the markers.

    Returns:
        Two lists. The first has for each marker its offsets, or the error that refuses the marker. The second has the
        batches to write.
    """
    config, producers, offset = log.config, log.log.producers, log.end_offset
    outcomes: list[Appended | RefusedError] = []
    batches: list[PlannedBatch] = []
    planned: dict[int, MarkerWrite] = {}  # by producer id: the last marker of this call that will be written
    for write in markers:
        before = planned.get(write.producer_id)
        try:
            if before is not None and before.producer_epoch > write.producer_epoch:
                raise RefusedError(
                    ErrorCode.invalid_producer_epoch,
                    f"a transaction marker has producer epoch {write.producer_epoch}; a marker before it in the same request has the later epoch {before.producer_epoch}",
                )
            needed = producers.check_marker(
                write.producer_id, write.producer_epoch, write.marker, write.transaction_version
            )
        except RefusedError as refused:
            outcomes.append(refused)
            continue
        if not needed or (before is not None and before.producer_epoch == write.producer_epoch):
            outcomes.append(Appended(-1, -1, -1, duplicate=True))
            continue
        positions = 0
        txn = producers.open_transaction(write.producer_id)
        if txn is not None and config.is_commit_ordered and write.marker.type is MarkerType.COMMIT:
            positions = txn.txn_record_count
        batch = encode_marker(
            write.marker,
            base_offset=offset,
            leader_epoch=log.leader_epoch,
            producer_id=write.producer_id,
            producer_epoch=write.producer_epoch,
            timestamp_ms=wall_ms,
            position_count=positions,
            by_broker_time=config.is_log_append_time,
        )
        header = read_header(batch)
        batches.append(PlannedBatch(header, batch[: HEADER.size], (batch,), write.marker))
        outcomes.append(Appended(offset, header.last_offset, wall_ms))
        planned[write.producer_id] = write
        offset = header.next_offset
    return outcomes, batches


def count_fitting(batches: list[PlannedBatch], relative_offset_max: int) -> int:
    """Return how many of these batches, counted from the first one, fit together into one segment. The result is at
    least 1.

    A segment spans at most `relative_offset_max` offsets. This limit matters in commit-ordered topics, where one commit
    marker may take millions of offsets.
    """
    last_max = batches[0].header.base_offset + relative_offset_max
    return max(1, bisect_right(batches, last_max, key=lambda batch: batch.header.last_offset))
