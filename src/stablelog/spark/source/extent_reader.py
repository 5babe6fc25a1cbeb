"""Task of a read from segment files: open the files of a piece (a range of offsets of one partition), check their batch
headers against a checksum (the proof), and decode their bytes.

If a file is missing on this machine, the task fetches the rest of the piece from the broker.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stablelog.batch.header import headers_in
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError, UnavailableError, UnknownFormatError
from stablelog.log.files.names import DELETED
from stablelog.log.files.partition_metadata import topic_id_in_hex
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import FileExtent, Piece
from stablelog.spark.segments.segment_file import GoneError, open_file
from stablelog.spark.source import broker_log
from stablelog.spark.source.resolve import report_loss

# Maximum of files of a piece that are opened before the first one is read. They are opened early because retention
# cannot remove the content of an open file.
OPEN_MAX: Final = 256


def read(options: ReadOptions, cluster: BlockingCluster | None, piece: Piece, decoder: Any) -> Iterator[Any]:
    """Read the segment files of a piece (a range of offsets, with what a task needs to read it), and yield its rows as
    Arrow batches. If a file is not available, the rest of the piece is fetched from the broker. The last rows, which do
    not fill a batch, stay in the column builder of the decoder; the caller takes them from there.

    Args:
        options: the options of the read.
        cluster: the brokers; None for a read without a broker.
        piece: what to read.
        decoder: a decoder for this partition and the columns to read.

    Raises:
        DataLossError: a file was removed meanwhile, no broker can be asked for its records, and failOnDataLoss is true.
        UnavailableError: a file cannot be read, and no broker can be asked for its records.
        UnknownFormatError: a later release has written a file, and no broker can be asked for its records.
        DamageError: a file is damaged. The message names the file and the offset. If the segment's summary (a file with
            its checksums) reveals the damage, no record of the file was returned before.
    """
    opened: list[int] = []
    try:
        for extent in piece.extents[:OPEN_MAX]:
            opened.append(_open(extent))  # noqa: PERF401 - those that were opened are to be closed
        if piece.extents and piece.topic_id:
            directory = Path(piece.extents[0].path).parent
            if _topic_id_of(directory, has_broker=cluster is not None) != piece.topic_id:
                raise GoneError(str(directory))
        for place, extent in enumerate(piece.extents):
            if place >= len(opened):
                opened.append(_open(extent))
            yield from _read_extent(opened[place], extent, piece, decoder)
    except (GoneError, UnavailableError) as error:
        reached = max(decoder.next_offset, piece.start)
        if cluster is None and isinstance(error, UnavailableError):
            raise  # The records still exist: never report them as lost, and never continue without them.
        if cluster is None:
            report_loss(
                options,
                f"{error} was removed while it was read: offsets {reached} to {piece.end - 1} of {piece.topic}-{piece.partition}",
            )
            return
        # The read was planned on another machine, or retention has removed the file. Fetch the range from the broker.
        yield from broker_log.read(options, cluster, replace(piece, start=reached), decoder)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _topic_id_of(directory: Path, *, has_broker: bool) -> str:
    """Return the topic id that a partition's directory names; "" if it names none. With a broker, which has the records
    too, "" also stands for a damaged file.
    """
    try:
        return topic_id_in_hex(LocalDisk(read_only=True), directory)
    except (DamageError, UnknownFormatError):
        if not has_broker:
            raise
        return ""


def _open(extent: FileExtent) -> int:
    try:
        descriptor = open_file(extent.path)
    except GoneError:
        # Read the renamed file: the broker keeps removed files under another name, by default for a minute.
        descriptor = open_file(extent.path + DELETED)
    if os.fstat(descriptor).st_ino != extent.inode:
        os.close(descriptor)
        raise GoneError(extent.path)
    return descriptor


def _read_extent(descriptor: int, extent: FileExtent, piece: Piece, decoder: Any) -> Iterator[Any]:
    # Import this module here because it imports NumPy, which the driver does not use.
    from stablelog.spark.segments.extent_proof import prove_segment

    size = os.fstat(descriptor).st_size
    if size < extent.position + extent.size:
        raise DamageError(
            f"{extent.path} has {size} bytes, but had {extent.position + extent.size} when the read was "
            "planned: it was truncated. Restore the file"
        )
    try:
        prove_segment(descriptor, extent)
    except DamageError as error:
        raise DamageError(f"{piece.topic}-{piece.partition} cannot be read: {error}") from error
    skipped = extent.position % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        descriptor, extent.size + skipped, access=mmap.ACCESS_READ, offset=extent.position - skipped
    )
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapped)[skipped:]
    try:
        yield from decoder.feed(view, piece.start, piece.end, piece.aborted)
        if decoder.next_offset < piece.end:
            _check_whole(view, decoder.next_offset)
    except DamageError as error:
        raise DamageError(
            f"{extent.path} is damaged, in the part from byte {extent.position} on: {error}"
        ) from error


def _check_whole(view: memoryview, next_offset: int) -> None:
    """Check that an extent (a range of bytes of a log file) ends with a whole batch. `next_offset` is the offset after
    the last batch that was decoded. The decoder stops before an incomplete batch at the end without an error.

    Raises:
        DamageError: the extent ends inside a batch.
    """
    end = 0
    for position, header in headers_in(view):
        end = position + header.size
    if end != len(view):
        raise DamageError(
            f"the batch at byte {end} of the file, after offset {next_offset - 1}, is incomplete"
        )
