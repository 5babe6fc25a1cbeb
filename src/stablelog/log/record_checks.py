"""Checks of the records in a client's batch: their structure, their keys in a compacted topic, and their timestamps.

A batch is refused as a whole. If keys or timestamps are the reason, the error names each record that is not valid
(KIP-467): the Java producer then reports this reason for these records, and another error for the other records of the
batch.

Source: Kafka's LogValidator; `batch.proof`.
"""

from collections.abc import Generator, Iterable, Sequence

from kio.schema.errors import ErrorCode

from stablelog.batch.compression import check_framing, decompress
from stablelog.batch.filtering import walk_decompressed
from stablelog.batch.header import HEADER, BatchHeader, Codec
from stablelog.batch.proof import NO_RECORD, prove_in_portions, time_deltas
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, DecompressedSizeError, RecordsRefusedError, RefusedError
from stablelog.log.model import LogConfig
from stablelog.types import InvalidRecord

# The greatest number of records that an error names. Kafka has no limit, and a batch can have a million records.
ERRORS_MAX = 1000
UNLIMITED_MS = 2**63 - 1
TIMESTAMP_MAX = 2**63 - 1
NO_TIMESTAMP = -1
# `is_checked_soon` does no more than this: it decompresses a batch of so many bytes to so many bytes, and proves its
# records in so many portions.
SOON_PACKED_SIZE_MAX = 64 << 10
SOON_SIZE_MAX = 256 << 10
SOON_PORTIONS = 3
END = object()
PORTION = 500  # records that are checked for their keys and timestamps without a break


def needs_records(config: LogConfig) -> bool:
    """Whether the topic's settings demand that the records of each client's batch are decompressed and checked."""
    return (
        config.proves_records
        or config.is_compacted
        or (config.message_timestamp_before_ms_max != UNLIMITED_MS and not config.is_log_append_time)
    )


def is_checked_soon(header: BatchHeader, batch: Buffer, topic: str, config: LogConfig, wall_ms: int) -> bool:
    """Check the records of a batch as `check_records` does, but only if this takes a few milliseconds at most. Return
    True if they were checked; False if the check would take longer, so that the caller must call `check_records`.

    Raises:
        RefusedError: the records were checked, and some of them are not valid.
    """
    if header.codec is not Codec.NONE and header.size > SOON_PACKED_SIZE_MAX:
        return False
    size_max = None if header.codec is Codec.NONE else SOON_SIZE_MAX
    try:
        plain = _decompressed(header, batch, size_max)
    except DecompressedSizeError:
        return False
    except DamageError as damaged:
        raise _damaged(damaged) from damaged
    steps = _check_in_portions(header, plain, topic, config, wall_ms)
    return any(next(steps, END) is END for _ in range(SOON_PORTIONS))


def check_records(header: BatchHeader, batch: Buffer, topic: str, config: LogConfig, wall_ms: int) -> bytes:
    """Refuse a batch if clients could not read its records, if the topic is compacted and a record has no key, or if a
    timestamp is outside the topic's limits.

    Returns:
        The decompressed records.

    Raises:
        RecordsRefusedError: some records are not valid. The error names the first 1000 of them (ERRORS_MAX).
        RefusedError: the records cannot be decompressed, are too large, or do not match the header.
    """
    plain = decompress_records(header, batch)
    for _ in _check_in_portions(header, plain, topic, config, wall_ms):
        pass
    return plain


def decompress_records(header: BatchHeader, batch: Buffer) -> bytes:
    """Return the decompressed records of a client's batch.

    Raises:
        RefusedError: the records cannot be decompressed, or are too large after decompression.
    """
    try:
        return _decompressed(header, batch)
    except DecompressedSizeError as too_large:
        # With this error the Java producer divides the batch, and sends its parts.
        raise RefusedError(
            ErrorCode.message_too_large,
            f"readers could not decompress the batch: {too_large}. Let the producer send smaller batches",
        ) from too_large
    except DamageError as damaged:
        raise _damaged(damaged) from damaged


def _decompressed(header: BatchHeader, batch: Buffer, size_max: int | None = None) -> bytes:
    packed = memoryview(batch)[HEADER.size : header.size]
    check_framing(header.codec, packed)
    return decompress(header.codec, packed, size_max)


def _damaged(damaged: DamageError) -> RefusedError:
    # INVALID_RECORD and not CORRUPT_MESSAGE, because a retry of the same bytes cannot help.
    return RefusedError(ErrorCode.invalid_record, f"the batch is refused: {damaged}")


def _check_in_portions(
    header: BatchHeader, plain: bytes, topic: str, config: LogConfig, wall_ms: int
) -> Generator[None]:
    """Check the decompressed records of a batch in portions, and yield after each portion, so that other work can run
    in between.

    Raises:
        RefusedError: some of the records are not valid.
    """
    try:
        proven = yield from prove_in_portions(plain, header.record_count)
    except DamageError as damaged:
        raise _damaged(damaged) from damaged
    is_key_missing = config.is_compacted and proven.keyless != NO_RECORD
    if not is_key_missing and not config.is_log_append_time:
        greatest = 1 << (7 * proven.time_size - 1)
        if _are_within((-greatest, greatest), header, config, wall_ms):
            return
        for number, delta in enumerate(time_deltas(plain)):
            if not _are_within((delta,), header, config, wall_ms):
                break
            if number % PORTION == 0:
                yield
        else:
            return
    found: list[InvalidRecord] = []
    code = ErrorCode.invalid_record
    for number, record in enumerate(walk_decompressed(plain, header)):
        if config.is_compacted and record.key is None:
            why = f"the record has no key; topic {topic} is compacted, so each record needs a key"
            found.append(InvalidRecord(number, why))
        elif not config.is_log_append_time:
            late = wrong_time(record.timestamp_ms, topic, config, wall_ms)
            if late is not None:
                found.append(InvalidRecord(number, late))
                code = ErrorCode.invalid_timestamp
        if len(found) == ERRORS_MAX:
            break
        if number % PORTION == 0:
            yield
    if found:
        raise _refused(code, found, header)


def _are_within(deltas: Iterable[int], header: BatchHeader, config: LogConfig, wall_ms: int) -> bool:
    """Whether all timestamps are within the topic's limits. The timestamps are given as `deltas`: their differences
    from the base timestamp of the batch.
    """
    earliest_ms = max(wall_ms - config.message_timestamp_before_ms_max, -TIMESTAMP_MAX)
    latest_ms = min(wall_ms + config.message_timestamp_after_ms_max, TIMESTAMP_MAX)
    return all(earliest_ms <= header.base_timestamp + delta <= latest_ms for delta in deltas)


def refuse_log_append_time(header: BatchHeader) -> None:
    """Refuse a client's batch that declares LogAppendTime, because only the broker may set it.

    Raises:
        RecordsRefusedError: the batch declares LogAppendTime. Each of its records counts as not valid.
    """
    if header.is_log_append_time:
        why = "the batch declares LogAppendTime; only the broker may do that"
        numbers = range(min(header.record_count, ERRORS_MAX))
        raise _refused(
            ErrorCode.invalid_timestamp, [InvalidRecord(number, why) for number in numbers], header
        )


def _refused(code: ErrorCode, errors: Sequence[InvalidRecord], header: BatchHeader) -> RecordsRefusedError:
    first = errors[0]
    count = f"at least {len(errors)}" if len(errors) == ERRORS_MAX else len(errors)
    return RecordsRefusedError(
        code,
        f"{count} of {header.record_count} records are not valid, so the batch is refused; record {first.number}: {first.why}",
        errors,
    )


def wrong_time(timestamp_ms: int, topic: str, config: LogConfig, wall_ms: int) -> str | None:
    """Return the reason why a topic refuses the timestamp of a record; None if the topic allows it. A timestamp of -1,
    which stands for none, is allowed.
    """
    ahead_ms = timestamp_ms - wall_ms
    if ahead_ms > config.message_timestamp_after_ms_max:
        return (
            f"a record's timestamp is {ahead_ms} ms ahead of the broker's clock; topic {topic} allows "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_ms_max}"
        )
    behind_ms_max = config.message_timestamp_before_ms_max
    if timestamp_ms != NO_TIMESTAMP and -ahead_ms > behind_ms_max != UNLIMITED_MS:
        return (
            f"a record's timestamp is {-ahead_ms} ms behind the broker's clock; topic {topic} allows "
            f"message.timestamp.before.max.ms={behind_ms_max}"
        )
    if not -TIMESTAMP_MAX <= timestamp_ms <= TIMESTAMP_MAX:
        return f"a record's timestamp is {timestamp_ms}, which is not a number of 64 bits"
    return None
