"""Decoding of fetched batches. The CRC of each batch is checked before its records are used."""

import logging
from collections.abc import Iterator

from stablelog.batch.header import BatchHeader, crc_holds, headers_in
from stablelog.batch.records import Record, decode_records
from stablelog.errors import DamageError
from stablelog.types import TopicPartition
from stablelog.wire.guard import Buffer

_log = logging.getLogger("stablelog.client")


def read_batches(
    target: TopicPartition, batches: Buffer, offset: int, *, skips_unreadable: bool = False
) -> Iterator[tuple[BatchHeader, list[Record] | None]]:
    """Decode the fetched batches of a partition, and check the CRC of each. Batches that end at or before `offset` are
    skipped.

    Args:
        target: the partition.
        batches: whole batches, and a part of the next one.
        offset: batches that end at or before this offset are skipped.
        skips_unreadable: whether to skip records that cannot be decoded although the CRC of their batch is right,
            because their producer has written them wrongly. The number of skipped records is logged.

    Yields:
        A pair for each batch: its header, and the list of its records. The list is empty for a control batch (a
        transaction marker); None stands for records that cannot be decoded.

    Raises:
        DamageError: a batch has changed since it was written, or its records cannot be decoded and `skips_unreadable`
            is False.
    """
    place = f"{target[0]}-{target[1]}"
    try:
        for position, header in headers_in(batches):
            if header.next_offset > offset:
                offset = header.base_offset
                yield header, _records(place, batches, position, header, skips_unreadable)
                offset = header.next_offset
    except DamageError as damage:
        raise DamageError(f"{place}, offset {offset}: {damage}") from damage


def _records(
    place: str, batches: Buffer, position: int, header: BatchHeader, skips_unreadable: bool
) -> list[Record] | None:
    if not crc_holds(batches, position, header):
        raise DamageError(
            "the CRC of the batch is wrong: the bytes of the batch have changed since they were written. "
            "Restore the log file of the broker"
        )
    if header.is_control:
        return []
    try:
        return decode_records(batches, position)
    except DamageError as damage:
        undecodable = f"the {header.record_count} records of the batch cannot be decoded: {damage}"
        if not skips_unreadable:
            raise DamageError(
                f"{undecodable}. The producer has written the records in this form. To leave such records out, set "
                "skip_unreadable=True"
            ) from damage
        _log.warning("%s, offset %s: %s. They are left out", place, header.base_offset, undecodable)
        return None
