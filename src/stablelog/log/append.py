"""Plans appends: checks a batch, or markers, and makes the bytes that are to be written.

A plan changes nothing in the log; `log.writer` writes it and notes it. The producer state only remembers a batch that
verification refused.

Source: Kafka's leader-side rules for client batches (KIP-98); docs/protocol.md, "Produce".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.batch.filtering import walk_records
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
from stablelog.batch.markers import Marker, MarkerType, encode_marker, read_marker
from stablelog.env.disk import Buffer
from stablelog.errors import Corrupt, Refused
from stablelog.log.model import Appended, LogConfig, MarkerWrite, Origin
from stablelog.log.producer_state.producers import Producers

ATTRIBUTES = slice(21, 23)
MAX_TIMESTAMP = slice(35, 43)
RECORD_SIZE_MIN = 7  # bytes: each of a record's fields takes one
POSITION_COUNT_MAX = 2**31 - 1  # records of a transaction: the greatest `lastOffsetDelta` of its marker


def check_batch(
    header: BatchHeader, batch: Buffer, origin: Origin, *, topic: str, config: LogConfig, now_ms: int
) -> None:
    """Refuse a batch that may not be written, whichever producer it is of.

    Args:
        header: of the batch.
        batch: all the bytes that came.
        origin: a client may do less than a coordinator.
        topic: for the message.
        config: of the topic.
        now_ms: by the broker's clock.

    Raises:
        Refused: the batch is not one that this origin may write.
        Corrupt: the bytes are not those that were sent.
    """
    size = header.size
    if size < len(batch):
        raise Refused(ErrorCode.invalid_record, "more than one batch for a partition in one request")
    if size > len(batch):
        raise Corrupt(f"a batch of {size} bytes of which {len(batch)} came")
    if header.base_offset != 0:
        raise Refused(ErrorCode.invalid_record, f"a batch begins at offset 0, not {header.base_offset}")
    if header.record_count != header.last_offset_delta + 1:
        raise Refused(
            ErrorCode.invalid_record,
            f"{header.record_count} records up to offset {header.last_offset_delta}",
        )
    if not crc_holds(batch, 0, header):
        raise Corrupt("the CRC of a batch does not hold")
    if header.codec is Codec.NONE and header.record_count * RECORD_SIZE_MIN > size - HEADER.size:
        raise Refused(
            ErrorCode.invalid_record,
            f"{header.record_count} records in {size - HEADER.size} bytes",
        )
    if origin is Origin.CLIENT:
        _check_client_batch(header, topic, config.max_message_bytes)
        _check_times(header, topic, config, now_ms)


def _check_times(header: BatchHeader, topic: str, config: LogConfig, now_ms: int) -> None:
    """Check the first and the greatest timestamp of the header; no record is decoded."""
    if header.is_log_append_time:
        raise Refused(ErrorCode.invalid_timestamp, "a client does not say that its times are the broker's")
    if config.is_log_append_time:
        return
    ahead_ms = header.max_timestamp - now_ms
    if ahead_ms > config.message_timestamp_after_ms_max:
        raise Refused(
            ErrorCode.invalid_timestamp,
            f"a timestamp {ahead_ms} ms ahead of the broker's clock; {topic} takes up to message.timestamp.after.max.ms={config.message_timestamp_after_ms_max}",
        )
    behind_ms = now_ms - header.base_timestamp
    if header.base_timestamp >= 0 and behind_ms > config.message_timestamp_before_ms_max:
        raise Refused(
            ErrorCode.invalid_timestamp,
            f"a timestamp {behind_ms} ms behind the broker's clock; {topic} takes up to message.timestamp.before.max.ms={config.message_timestamp_before_ms_max}",
        )


def _check_client_batch(header: BatchHeader, topic: str, size_max: int) -> None:
    if header.size > size_max:
        raise Refused(
            ErrorCode.message_too_large,
            f"a batch of {header.size} bytes; {topic} takes up to max.message.bytes={size_max}",
        )
    if header.is_control:
        raise Refused(ErrorCode.invalid_record, "a client does not write markers")
    if header.attributes & DELETE_HORIZON:
        raise Refused(ErrorCode.invalid_record, "a client does not set a delete horizon")
    if header.has_producer:
        if header.base_sequence < 0:
            raise Refused(ErrorCode.invalid_record, "a producer id without a sequence")
        if header.producer_epoch < 0:
            raise Refused(ErrorCode.invalid_record, "a producer id without an epoch")
    elif header.is_transactional:
        raise Refused(ErrorCode.invalid_record, "a transactional batch without a producer id")


def check_keys(header: BatchHeader, batch: Buffer, topic: str) -> None:
    """Refuse a record without a key in a compacted topic: compaction keeps the latest record of each key.

    Raises:
        Refused: there is one.
        Corrupt: the records are not what the header says.
    """
    if any(record.key is None for record in walk_records(batch, header)):
        raise Refused(ErrorCode.invalid_record, f"{topic} is compacted; its records need keys")


def with_append_time(batch: Buffer, now_ms: int) -> bytes:
    """The batch with the broker's time in place of its producer's, and with the CRC of that."""
    stamped = bytearray(batch)
    attributes = int.from_bytes(stamped[ATTRIBUTES], "big") | LOG_APPEND_TIME
    stamped[ATTRIBUTES] = attributes.to_bytes(2, "big")
    stamped[MAX_TIMESTAMP] = now_ms.to_bytes(8, "big")
    stamped[CRC_START - 4 : CRC_START] = crc32c(memoryview(stamped)[CRC_START:]).to_bytes(4, "big")
    return bytes(stamped)


TransactionCheck = Callable[[BatchHeader], None]


class PlannedBatch(NamedTuple):
    """A batch as it will stand in the log.

    Attributes:
        header: with its own base offset and leader epoch.
        head: its first 61 bytes.
        buffers: all its bytes.
        marker: what a control batch says; None if it is no marker of a transaction.
    """

    header: BatchHeader
    head: Buffer
    buffers: tuple[Buffer, ...]
    marker: Marker | None = None


class PlannedLog(Protocol):
    """The log, as a plan reads it. `Partition` is one."""

    topic: str
    config: LogConfig
    leader_epoch: int
    start_offset: int

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def producer_state(self) -> Producers:
        """The producer state."""


def plan_append(
    batch: Buffer,
    origin: Origin,
    log: PlannedLog,
    now_ms: int,
    *,
    transaction_check: TransactionCheck | None = None,
    require_first_sequence_zero: bool = False,
    are_keys_checked: bool = False,
) -> PlannedBatch | Appended:
    """Decide about the batch of a client or a coordinator.

    Args:
        batch: its bytes. They are written as they are, but for base offset, leader epoch and the broker's time.
        origin: who appends: a client may do less than a coordinator.
        log: to which the batch is appended.
        now_ms: the broker's clock.
        transaction_check: asked about a client's transactional batch that is not a duplicate; raises Refused. It comes
            before the batch gets its offset, because it may write to the same log.
        require_first_sequence_zero: whether a producer that is not known here has to begin with sequence 0.
        are_keys_checked: whether `check_keys` has accepted the batch.

    Returns:
        What is to be written; where the original is, if the batch repeats one.

    Raises:
        Refused: the batch is not valid, out of order, from an old epoch, or not in its transaction.
        Corrupt: the bytes are no batch, or not those of its CRC.
    """
    config, producers = log.config, log.producer_state
    header = read_header(batch)
    check_batch(header, batch, origin, topic=log.topic, config=config, now_ms=now_ms)
    is_client = origin is Origin.CLIENT
    if is_client and config.is_compacted and not are_keys_checked:
        check_keys(header, batch, log.topic)
    if header.has_producer and not is_client:
        producers.check_epoch(header)
    elif header.has_producer:
        kept = producers.check_batch(
            header,
            require_first_sequence_zero=require_first_sequence_zero,
            open_record_count_max=POSITION_COUNT_MAX if config.is_commit_ordered else None,
        )
        if kept is not None:
            time_ms = kept.timestamp_ms if config.is_log_append_time else -1
            return Appended(kept.first_offset, kept.last_offset, time_ms, log.start_offset, duplicate=True)
        if transaction_check is not None and header.is_transactional:
            try:
                transaction_check(header)
            except Refused:
                producers.batch_refused(header)
                raise
    if config.is_log_append_time:
        batch = with_append_time(batch, now_ms)
        header = read_header(batch)
    header = BatchHeader(log.end_offset, header.batch_length, log.leader_epoch, *header[3:])
    head = HEADER.pack(*header)
    return PlannedBatch(header, head, (head, memoryview(batch)[HEADER.size :]))


def plan_replicated(batches: Buffer, end_offset: int) -> list[PlannedBatch]:
    """Decide about batches of another log, which keep their offsets and leader epochs.

    Raises:
        Refused: an offset is written already.
        Corrupt: the bytes are no batches, or not those of their CRCs.
    """
    planned = []
    for position, header in headers_in(batches):
        if not crc_holds(batches, position, header):
            raise Corrupt(f"the CRC of the batch at offset {header.base_offset} does not hold")
        if header.base_offset < end_offset:
            raise Refused(
                ErrorCode.invalid_record,
                f"offset {header.base_offset} comes after {end_offset - 1} is written",
            )
        end_offset = header.next_offset
        batch = memoryview(batches)[position : position + header.size]
        marker = read_marker(batch) if header.is_control else None
        planned.append(PlannedBatch(header, batch[: HEADER.size], (batch,), marker))
    if not planned:
        raise Corrupt(f"{len(batches)} bytes without a whole batch")
    return planned


def plan_markers(
    markers: Sequence[MarkerWrite], log: PlannedLog, now_ms: int
) -> tuple[list[Appended | Refused], list[PlannedBatch]]:
    """Decide about markers that are to be written together.

    In a commit-ordered topic the marker of a commit takes an offset for each record, too.

    Args:
        markers: in the order in which they are to be written.
        log: to which they are appended.
        now_ms: the broker's clock, and the timestamp of the markers.

    Returns:
        The outcome of each, and the batches to be written.
    """
    config, producers, offset = log.config, log.producer_state, log.end_offset
    outcomes: list[Appended | Refused] = []
    batches: list[PlannedBatch] = []
    planned: dict[int, MarkerWrite] = {}  # the last one of each producer
    for write in markers:
        before = planned.get(write.producer_id)
        try:
            if before is not None and before.producer_epoch > write.producer_epoch:
                raise Refused(
                    ErrorCode.invalid_producer_epoch,
                    f"a marker of epoch {write.producer_epoch} after one of {before.producer_epoch}",
                )
            needed = producers.check_marker(
                write.producer_id, write.producer_epoch, write.marker, write.transaction_version
            )
        except Refused as refused:
            outcomes.append(refused)
            continue
        if not needed or (before is not None and before.producer_epoch == write.producer_epoch):
            outcomes.append(Appended(-1, -1, -1, log.start_offset, duplicate=True))
            continue
        positions = 0
        if config.is_commit_ordered and write.marker.type is MarkerType.COMMIT:
            positions = producers.open_record_count(write.producer_id)
        batch = encode_marker(
            write.marker,
            base_offset=offset,
            leader_epoch=log.leader_epoch,
            producer_id=write.producer_id,
            producer_epoch=write.producer_epoch,
            timestamp_ms=now_ms,
            position_count=positions,
            by_broker_time=config.is_log_append_time,
        )
        header = read_header(batch)
        batches.append(PlannedBatch(header, batch[: HEADER.size], (batch,), write.marker))
        outcomes.append(Appended(offset, header.last_offset, now_ms, log.start_offset))
        planned[write.producer_id] = write
        offset = header.next_offset
    return outcomes, batches


def fitting(batches: list[PlannedBatch], relative_offset_max: int) -> int:
    """How many of the first batches one segment can hold: at least one. Markers of a commit-ordered topic may be long."""
    base_offset = batches[0].header.base_offset
    count = len(batches)
    while count > 1 and batches[count - 1].header.last_offset - base_offset > relative_offset_max:
        count -= 1
    return count
