"""Checks of the records in a client's batch: of their keys in a compacted topic, and of their timestamps.

A batch is refused as a whole, and the error names each record that is not valid (KIP-467). The Java producer reports
this record's error to its caller, and another error for the other records of the batch.

Source: Kafka's LogValidator.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from kio.schema.errors import ErrorCode

from stablelog.batch.filtering import walk_records
from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Buffer
from stablelog.errors import RecordsRefusedError
from stablelog.log.model import LogConfig
from stablelog.types import InvalidRecord

# The greatest number of records that an error names. Kafka has no limit, and a batch can have a million records.
ERRORS_MAX = 1000
UNLIMITED_MS = 2**63 - 1


def needs_records(config: LogConfig) -> bool:
    """Whether each batch of a client has to be decoded to check its records.

    The limit for timestamps ahead of the broker's clock does not need the records: the header has the greatest
    timestamp of the batch.
    """
    is_oldest_limited = config.message_timestamp_before_ms_max != UNLIMITED_MS
    return config.is_compacted or (is_oldest_limited and not config.is_log_append_time)


def check_records(header: BatchHeader, batch: Buffer, topic: str, config: LogConfig, wall_ms: int) -> None:
    """Refuse a batch with a record that has no key in a compacted topic, or a timestamp outside the topic's limits.

    Raises:
        RecordsRefusedError: a record is not valid. The error names the first ERRORS_MAX of these records.
        DamageError: the records do not match the header.
    """
    found = list(islice(_errors(header, batch, topic, config, wall_ms), ERRORS_MAX))
    if found:
        codes = {code for code, _ in found}
        code = (
            ErrorCode.invalid_timestamp if ErrorCode.invalid_timestamp in codes else ErrorCode.invalid_record
        )
        raise _refused(code, [error for _, error in found], header)


def refuse_log_append_time(header: BatchHeader) -> None:
    """Refuse a client's batch that declares LogAppendTime, because only the broker may do that.

    Raises:
        RecordsRefusedError: the batch declares LogAppendTime. Each of its records is not valid.
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


def _errors(
    header: BatchHeader, batch: Buffer, topic: str, config: LogConfig, wall_ms: int
) -> Iterator[tuple[ErrorCode, InvalidRecord]]:
    """Yield the code and the error of each record that is not valid."""
    without_key = f"the record has no key; topic {topic} is compacted, so each record needs a key"
    for number, record in enumerate(walk_records(batch, header)):
        if config.is_compacted and record.key is None:
            yield ErrorCode.invalid_record, InvalidRecord(number, without_key)
        elif not config.is_log_append_time:
            why = wrong_time(record.timestamp_ms, topic, config, wall_ms)
            if why is not None:
                yield ErrorCode.invalid_timestamp, InvalidRecord(number, why)


def wrong_time(timestamp_ms: int, topic: str, config: LogConfig, wall_ms: int) -> str | None:
    """Return why a topic does not allow a record's timestamp; None if it does. -1 stands for no timestamp."""
    ahead_ms = timestamp_ms - wall_ms
    if ahead_ms > config.message_timestamp_after_ms_max:
        return (
            f"a record's timestamp is {ahead_ms} ms ahead of the broker's clock; topic {topic} allows "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_ms_max}"
        )
    if timestamp_ms >= 0 and -ahead_ms > config.message_timestamp_before_ms_max:
        return (
            f"a record's timestamp is {-ahead_ms} ms behind the broker's clock; topic {topic} allows "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_ms_max}"
        )
    return None
