"""Replay of a coordinator's log: reads the batches of a partition, checks them, and passes on their records.

The log contains decisions that clients have seen. So damage anywhere in the log makes the replay fail: without the
damaged records, the coordinator would begin with a wrong state.
"""

from collections.abc import Callable, Iterator

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, headers_in, read_header
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from stablelog.errors import DamageError
from stablelog.log.partition import Partition
from stablelog.log.segments.segment import Segment

TakeRecord = Callable[[bytes, bytes | None, int | None], object]
TakeEnd = Callable[[int, bool], object]

REPLAY_READ_SIZE = 4 << 20


def replay_partition(partition: Partition, take: TakeRecord, end: TakeEnd | None = None) -> None:
    """Read a partition of a coordinator's log, and call `take` with each record, in the order of the offsets.

    Args:
        partition: the partition of a coordinator's log.
        take: called with each record: its key, its value, and the producer id of its transaction.
        end: called with each marker: its producer id, and whether it is a commit marker. If `end` is None, markers are
            skipped.

    Raises:
        DamageError: a batch is damaged or missing, or `take` rejects a record.
    """
    try:
        partition.log.prove_segments()
    except DamageError as error:
        raise DamageError(
            "a coordinator's log is damaged, and without its damaged record the broker would lose "
            f"decisions that it has acknowledged: {error}"
        ) from error
    # The least base offset that the next batch may have. Kafka's compaction leaves gaps between batches.
    next_offset = 0
    for batch, header in batches_of(partition):
        in_order = next_offset <= header.base_offset < header.next_offset <= partition.end_offset
        if not in_order or not crc_holds(batch, 0, header):
            raise _damaged(partition, next_offset)
        try:
            _replay_batch(batch, header, take, end)
        except DamageError as error:
            raise _damaged(partition, header.base_offset, error) from error
        next_offset = header.next_offset


def _replay_batch(batch: memoryview, header: BatchHeader, take: TakeRecord, end: TakeEnd | None) -> None:
    if header.is_control:
        marker = None if end is None else read_marker(batch)
        if end is not None and marker is not None:
            end(header.producer_id, marker.type is MarkerType.COMMIT)
        return
    producer_id = header.producer_id if header.is_transactional else None
    for record in decode_records(batch):
        if record.key is not None:
            take(record.key, record.value, producer_id)


def batches_of(partition: Partition) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield each batch of a partition with its header, in offset order. Batches after the high watermark, which are not
    durable yet, are included.

    The batches are copies, not parts of a memory map: an unreadable sector of a mapped file would kill the process
    without any message.

    Raises:
        DamageError: a batch is damaged.
        DiskError: a file cannot be read.
    """
    reached = partition.start_offset
    for segment in partition.segments():
        position = 0
        while position < segment.size:
            begun = position
            try:
                data = _read_batches(segment, position)
                for at, header in headers_in(data):
                    position = begun + at + header.size
                    if header.next_offset > partition.start_offset:
                        yield data[at : at + header.size], header
                        reached = header.next_offset
            except DamageError as error:
                raise _damaged(partition, reached, error) from error
            if position == begun:
                raise _damaged(partition, reached)


def _read_batches(segment: Segment, position: int) -> memoryview:
    """Read and return about REPLAY_READ_SIZE bytes from a position on, and at least the whole first batch if the
    segment contains it.
    """
    data = segment.log.read(position, max(REPLAY_READ_SIZE, HEADER.size))
    if len(data) >= HEADER.size and (size := read_header(data).size) > len(data):
        data = segment.log.read(position, min(size, segment.size - position))
    return memoryview(data)


def _damaged(partition: Partition, offset: int, why: DamageError | None = None) -> DamageError:
    """Return the error for a coordinator's log that cannot be replayed, because it is damaged at this offset or after
    it.

    Args:
        partition: the partition of the log.
        offset: the offset up to which the log was read.
        why: the damage; None if records are missing.
    """
    bases = [segment.base_offset for segment in partition.segments()]
    base_offset = max((base for base in bases if base <= offset), default=bases[0])
    return DamageError(
        f"{partition.directory / f'{base_offset:020d}.log'} is damaged at offset {offset} or after it"
        f"{f' ({why})' if why else ''}: a start without these records would lose acknowledged decisions. Restore the directory"
    )
