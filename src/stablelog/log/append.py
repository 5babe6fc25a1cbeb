"""What may be appended: a batch by itself, whoever its producer is, and markers.

Source: Kafka's leader-side rules for client batches (KIP-98); docs/protocol.md, "Produce".
"""

from collections.abc import Sequence
from typing import NamedTuple

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
from stablelog.batch.markers import MarkerType, encode_marker
from stablelog.env.disk import Buffer
from stablelog.errors import Corrupt, Refused
from stablelog.log.model import Appended, LogConfig, MarkerWrite, Origin
from stablelog.log.producers import Producers

ATTRIBUTES = slice(21, 23)
MAX_TIMESTAMP = slice(35, 43)
RECORD_SIZE_MIN = 7  # bytes: each of a record's fields takes one
POSITION_COUNT_MAX = 2**31 - 1  # what `lastOffsetDelta` of a marker can say


def check_batch(
    header: BatchHeader, batch: Buffer, origin: Origin, *, topic: str, config: LogConfig, now_ms: int
) -> None:
    """Refuse what may not be written.

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
    """By the header, so that nothing has to be decoded: its first and its greatest timestamp."""
    if header.is_log_append_time:
        raise Refused(ErrorCode.invalid_timestamp, "a client does not say that its times are the broker's")
    if config.message_timestamp_type == "LogAppendTime":
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


def check_positions(header: BatchHeader, open_record_count: int) -> None:
    """Refuse what would make a transaction longer than a commit marker can say. What a header claims, it takes.

    Args:
        header: of a batch in a commit-ordered topic.
        open_record_count: how many records its transaction holds here.

    Raises:
        Refused: its commit would need more positions than `lastOffsetDelta` can tell.
    """
    if header.is_transactional and open_record_count + header.record_count > POSITION_COUNT_MAX:
        raise Refused(
            ErrorCode.invalid_record,
            f"a transaction of {open_record_count + header.record_count} records; in a commit-ordered partition it holds up to {POSITION_COUNT_MAX}",
        )


def check_keys(header: BatchHeader, batch: Buffer, topic: str) -> None:
    """Refuse a record without a key in a topic that is compacted: compaction would not know what it is the latest of.

    Raises:
        Refused: there is one.
        Corrupt: the records are not what the header says.
    """
    if any(record.key is None for record in walk_records(batch, header)):
        raise Refused(ErrorCode.invalid_record, f"{topic} is compacted; its records need keys")


def check_replicated(batches: Buffer, end_offset: int) -> list[tuple[int, BatchHeader]]:
    """Refuse batches of another log that do not go on where this one ends, or later.

    Returns:
        Each with its position.

    Raises:
        Refused: an offset is written already.
        Corrupt: the bytes are no batches, or not those of their CRCs.
    """
    found = list(headers_in(batches))
    if not found:
        raise Corrupt(f"{len(batches)} bytes without a whole batch")
    for position, header in found:
        if not crc_holds(batches, position, header):
            raise Corrupt(f"the CRC of the batch at offset {header.base_offset} does not hold")
        if header.base_offset < end_offset:
            raise Refused(
                ErrorCode.invalid_record,
                f"offset {header.base_offset} comes after {end_offset - 1} is written",
            )
        end_offset = header.next_offset
    return found


def with_append_time(batch: Buffer, now_ms: int) -> bytes:
    """The batch with the broker's time in place of its producer's. It changes what the CRC covers."""
    stamped = bytearray(batch)
    attributes = int.from_bytes(stamped[ATTRIBUTES], "big") | LOG_APPEND_TIME
    stamped[ATTRIBUTES] = attributes.to_bytes(2, "big")
    stamped[MAX_TIMESTAMP] = now_ms.to_bytes(8, "big")
    stamped[CRC_START - 4 : CRC_START] = crc32c(memoryview(stamped)[CRC_START:]).to_bytes(4, "big")
    return bytes(stamped)


class MarkerBatch(NamedTuple):
    """A marker as it will stand in the log."""

    write: MarkerWrite
    header: BatchHeader
    batch: bytes


def plan_markers(
    markers: Sequence[MarkerWrite],
    producers: Producers,
    *,
    offset: int,
    leader_epoch: int,
    log_start_offset: int,
    now_ms: int,
    with_positions: bool,
    by_broker_time: bool,
) -> tuple[list[Appended | Refused], list[MarkerBatch]]:
    """Check markers that are to be written together from `offset` on. Nothing changes.

    Args:
        markers: in the order in which they are to be written.
        producers: those of the partition.
        offset: of the first marker.
        leader_epoch: under which they are written.
        log_start_offset: for the outcomes.
        now_ms: the broker's clock, and the timestamp of the markers.
        with_positions: whether the marker of a commit takes an offset for each record, too (commit order).
        by_broker_time: whether they say that their timestamp is the broker's, as in a topic with LogAppendTime.

    Returns:
        What becomes of each, and the batches to be written.
    """
    outcomes: list[Appended | Refused] = []
    batches: list[MarkerBatch] = []
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
            outcomes.append(Appended(-1, -1, -1, log_start_offset, duplicate=True))
            continue
        positions = 0
        if with_positions and write.marker.type is MarkerType.COMMIT:
            positions = producers.open_record_count(write.producer_id)
        batch = encode_marker(
            write.marker,
            base_offset=offset,
            leader_epoch=leader_epoch,
            producer_id=write.producer_id,
            producer_epoch=write.producer_epoch,
            timestamp_ms=now_ms,
            position_count=positions,
            by_broker_time=by_broker_time,
        )
        header = read_header(batch)
        batches.append(MarkerBatch(write, header, batch))
        outcomes.append(Appended(offset, header.last_offset, now_ms, log_start_offset))
        planned[write.producer_id] = write
        offset = header.next_offset
    return outcomes, batches


def fitting(batches: list[MarkerBatch], relative_offset_max: int) -> int:
    """How many of the first markers one segment can hold: at least one. In a commit-ordered topic they may be long."""
    base_offset = batches[0].header.base_offset
    count = len(batches)
    while count > 1 and batches[count - 1].header.last_offset - base_offset > relative_offset_max:
        count -= 1
    return count
