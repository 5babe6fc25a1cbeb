"""Preparation of a batch for its append: checks and recompresses its records, in a thread if that takes long.

The records of a batch are checked here, unless the batch is small and not compressed: the append itself checks such a
batch. A batch with another codec than the topic's `compression.type` is recompressed. A batch is not prepared if the
append will refuse it because of its header or its sequence, or if the log has it already.

The caller holds the lock `Connection.appending` meanwhile, so that the batches of a connection are appended in the
order in which the client has sent them.
"""

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import BatchHeader, Codec, read_header
from stablelog.batch.recompression import recompress
from stablelog.batch.records import is_decoded_quickly
from stablelog.broker.apis import Broker
from stablelog.errors import RecordsRefusedError, RefusedError
from stablelog.log.append import check_batch, is_next
from stablelog.log.model import LogConfig
from stablelog.log.partition import Origin, Partition
from stablelog.log.record_checks import (
    check_records,
    decompress_records,
    is_checked_soon,
    needs_records,
)
from stablelog.wire.guard import Buffer


class BatchPreparation(NamedTuple):
    """The work that a batch needs before its append: the check of its records, and their compression with another
    codec.

    Attributes:
        header: the header of the batch.
        records: the batch.
        topic: name of the topic.
        config: the settings of the topic for which the batch is prepared.
        wall_ms: the time of the wall clock.
        checks_records: whether the records are checked.
        codec: the codec to recompress the records with; None if they stay as they are.
    """

    header: BatchHeader
    records: Buffer
    topic: str
    config: LogConfig
    wall_ms: int
    checks_records: bool
    codec: Codec | None

    @property
    def checked_header(self) -> BatchHeader | None:
        """The header of the batch, which has been checked, so that the append need not check it again. None if the
        batch is recompressed, because its header then changes.
        """
        return self.header if self.codec is None else None

    def run(self) -> Buffer:
        """Check and recompress the batch, and return it.

        Raises:
            RefusedError: a record is not valid, or the records cannot be decompressed, or are too large after
                decompression.
        """
        if self.checks_records:
            plain = check_records(self.header, self.records, self.topic, self.config, self.wall_ms)
        else:
            plain = decompress_records(self.header, self.records)
        return self.records if self.codec is None else recompress(self.header, plain, self.codec)

    def is_done_soon(self) -> bool:
        """Do the work at once, if it takes some milliseconds at most and leaves the batch as it is.

        Returns:
            True if the work is done. False if nothing was done, so that the caller has to call `run` in a thread.

        Raises:
            RefusedError: the request is refused: see `run`.
        """
        return self.codec is None and is_checked_soon(
            self.header, self.records, self.topic, self.config, self.wall_ms
        )


def preparation_for(
    partition: Partition, records: Buffer, *, wall_ms: int, require_first_sequence_zero: bool
) -> BatchPreparation | None:
    """Return the work that a client's batch needs before its append; None if it needs none.

    Args:
        partition: the partition that the batch will be appended to.
        records: the batch.
        wall_ms: the time of the wall clock, with which the timestamps of the batch are compared.
        require_first_sequence_zero: whether the first batch of a producer that the partition does not know must have
            sequence 0.

    Raises:
        RefusedError: the batch may not be written.
        DamageError: the bytes are not a batch, or do not match its CRC.
    """
    config = partition.config
    wanted, needs_check = config.codec, needs_records(config)
    if wanted is None and not needs_check:
        return None
    header = read_header(records)
    codec = wanted if wanted is not header.codec else None
    # The append itself checks the records of a small batch. If the batch is recompressed, the thread does so, because
    # the append would have to decompress the records again.
    checks_records = needs_check and (codec is not None or not is_decoded_quickly(header))
    if codec is None and not checks_records:
        return None
    check_batch(header, records, Origin.CLIENT, topic=partition.topic, config=config, wall_ms=wall_ms)
    if not is_next(partition, header, require_first_sequence_zero=require_first_sequence_zero):
        return None
    return BatchPreparation(header, records, partition.topic, config, wall_ms, checks_records, codec)


async def with_record_errors(
    broker: Broker, partition: Partition, records: Buffer, refused: RefusedError
) -> RefusedError:
    """Find the records because of which a batch was refused, and return an error that names them; `refused` itself if
    they cannot be found.

    The refusal itself does not name them: a batch with a wrong timestamp is refused by its header alone, so that its
    records need not be decoded. This function decodes them.
    """
    is_because_of_times = refused.code is ErrorCode.invalid_timestamp
    if not is_because_of_times or isinstance(refused, RecordsRefusedError):
        return refused
    arguments = (read_header(records), records, partition.topic, partition.config, broker.clock.wall_ms())
    try:
        if not is_checked_soon(*arguments):
            await broker.run_batch_work(check_records, *arguments)
    except RecordsRefusedError as found:
        return found
    except RefusedError:
        pass
    return refused
