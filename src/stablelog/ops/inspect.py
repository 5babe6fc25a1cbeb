"""The content of a partition's files as tables. Damaged and torn files are described as far as they can be read."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.batch.markers import read_marker
from stablelog.batch.records import decode_records
from stablelog.broker.partition_metadata import read_partition_metadata
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, NewerFormat
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.kafka_files import METADATA_FILE
from stablelog.log.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.names import (
    INDEX,
    LOG,
    OFFSET_DIGITS,
    PRODUCERS,
    SNAPSHOT,
    SUMMARY,
    TIMEINDEX,
    TXNINDEX,
    VIEW_START_FILE,
    has_offset,
    offset_of,
)
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.snapshots import decode_either
from stablelog.log.summary import Summary
from stablelog.log.time_index import TimeIndex
from stablelog.log.transaction_index import TransactionIndex
from stablelog.ops.coordinator_records import Describe, describer_of
from stablelog.views.extents import EXTENT, Extent
from stablelog.views.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    SUMMARY_SUFFIX,
    CommitSummary,
    Entry,
)

TEXT_SIZE_MAX = 80


@dataclass(frozen=True, slots=True)
class Table:
    """The content of a file: a title, and rows with the same columns. `problem` says why reading stopped early.

    A cell may be a dict: the fields of a record of a coordinator's log.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    problem: str | None = None


Reader = Callable[[Disk, Path], Table]


def inspect_file(disk: Disk, path: Path, *, records: bool) -> Table:
    """Describe one file of a partition. Records of the coordinators' logs are decoded.

    Raises:
        Corrupt: the file is of an unknown kind.
    """
    suffix = path.name[OFFSET_DIGITS:]
    if has_offset(path.name) and suffix == LOG:
        return _log(disk, path, records=records)
    reader = _BY_NAME.get(path.name) or (_BY_SUFFIX.get(suffix) if has_offset(path.name) else None)
    if reader is None:
        raise Corrupt(
            f"{path} is of no kind that can be shown. Name a partition's directory, a data directory, or a file of a "
            f"partition: <offset> in {OFFSET_DIGITS} digits with {' '.join((LOG, *_BY_SUFFIX))}, or {', '.join(_BY_NAME)}"
        )
    try:
        return reader(disk, path)
    except (Corrupt, NewerFormat) as error:
        return Table(str(path), ("problem",), [], str(error))


def files_of(disk: Disk, directory: Path) -> Iterator[Path]:
    """Yield the files of a partition's directory that can be described, in order."""
    for name in disk.list_dir(directory):
        if name in _BY_NAME or (has_offset(name) and name[OFFSET_DIGITS:] in (LOG, *_BY_SUFFIX)):
            yield directory / name


def _log(disk: Disk, path: Path, *, records: bool) -> Table:
    columns: tuple[str, ...] = (
        "offset",
        "last",
        "position",
        "size",
        "count",
        "codec",
        "producer",
        "epoch",
        "sequence",
        "timestamp",
        "kind",
    )
    if records:
        columns = ("offset", "timestamp", "key", "value", "headers", "kind")
    describe = describer_of(path.parent.name)
    rows: list[tuple[Any, ...]] = []
    file = disk.open(path)
    try:
        position = 0
        while position < file.size:
            header = read_header(file.read(position, HEADER.size))
            batch = file.read(position, header.size)
            if len(batch) < header.size:
                raise Corrupt(f"a torn batch at byte {position}: {len(batch)} of {header.size} bytes")
            if not crc_holds(batch, 0, header):
                raise Corrupt(
                    f"the CRC of the batch at offset {header.base_offset}, byte {position}, does not hold"
                )
            rows += (
                _record_rows(header, batch, describe) if records else [_batch_row(header, batch, position)]
            )
            position += header.size
    except Corrupt as error:
        return Table(str(path), columns, rows, str(error))
    finally:
        file.close()
    return Table(str(path), columns, rows)


def _kind(header: BatchHeader, batch: bytes) -> str:
    if not header.is_control:
        return "transactional" if header.is_transactional else "plain"
    marker = read_marker(batch)
    if marker is None:
        return "control"
    if marker.group is None:
        return f"{marker.type.name} by coordinator epoch {marker.coordinator_epoch}"
    return f"{marker.type.name} {marker.group or 'default'}#{marker.commit_sequence} by coordinator epoch {marker.coordinator_epoch}"


def _batch_row(header: BatchHeader, batch: bytes, position: int) -> tuple[Any, ...]:
    return (
        header.base_offset,
        header.last_offset,
        position,
        header.size,
        header.record_count,
        header.codec.name.lower(),
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.max_timestamp,
        _kind(header, batch),
    )


def _record_rows(header: BatchHeader, batch: bytes, describe: Describe | None) -> list[tuple[Any, ...]]:
    kind = _kind(header, batch)
    rows: list[tuple[Any, ...]] = []
    for record in decode_records(batch):
        told = None
        if describe is not None and not header.is_control and record.key is not None:
            told = describe(record.key, record.value)
        key, value = told or (_text(record.key), _text(record.value))
        headers = ", ".join(f"{name}={_text(content)}" for name, content in record.headers)
        rows.append((record.offset, record.timestamp_ms, key, value, headers, kind))
    return rows


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.hex()
    else:
        text = text if text.isprintable() else content.hex()
    return text if len(text) <= TEXT_SIZE_MAX else text[: TEXT_SIZE_MAX - 1] + "…"


def _offset_index(disk: Disk, path: Path) -> Table:
    index = OffsetIndex(offset_of(path.name), disk.read_bytes(path))
    return Table(str(path), ("offset", "position"), [index[place] for place in range(len(index))])


def _time_index(disk: Disk, path: Path) -> Table:
    index = TimeIndex(offset_of(path.name), disk.read_bytes(path))
    return Table(str(path), ("timestamp", "offset"), [index[place] for place in range(len(index))])


def _txn_index(disk: Disk, path: Path) -> Table:
    index = TransactionIndex(disk.read_bytes(path))
    columns = ("producer", "first offset", "last offset", "stable offset")
    return Table(str(path), columns, [tuple(index[place]) for place in range(len(index))])


def _producers(disk: Disk, path: Path) -> Table:
    columns = (
        "producer",
        "epoch",
        "last sequence",
        "last offset",
        "coordinator epoch",
        "open since offset",
        "batches",
    )
    rows = [
        (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.coordinator_epoch,
            producer.txn_first_offset,
            len(producer.batches),
        )
        for producer in decode_either(path.name, disk.read_bytes(path))
    ]
    return Table(str(path), columns, rows)


def _summary(disk: Disk, path: Path) -> Table:
    return Table(str(path), ("field", "value"), list(asdict(Summary.decode(disk.read_bytes(path))).items()))


def _epochs(disk: Disk, path: Path) -> Table:
    return Table(
        str(path), ("epoch", "start offset"), list(LeaderEpochs.decode(disk.read_bytes(path)).entries)
    )


def _rows_of(row: struct.Struct, columns: tuple[str, ...]) -> Reader:
    """Make a reader of a file that consists of rows of one struct."""

    def read(disk: Disk, path: Path) -> Table:
        content = disk.read_bytes(path)
        torn = len(content) % row.size
        whole = memoryview(content)[: len(content) - torn]
        problem = f"a torn row at byte {len(whole)}: {torn} of {row.size} bytes" if torn else None
        return Table(str(path), columns, list(row.iter_unpack(whole)), problem)

    return read


def _commit_summary(disk: Disk, path: Path) -> Table:
    fields = asdict(CommitSummary.decode(disk.read_bytes(path)))
    rows = [(name, list(value) if isinstance(value, tuple) else value) for name, value in fields.items()]
    return Table(str(path), ("field", "value"), rows)


def _start(disk: Disk, path: Path) -> Table:
    return Table(str(path), ("start offset",), [(decode_log_start(disk.read_bytes(path), path),)])


def _metadata(disk: Disk, path: Path) -> Table:
    return Table(str(path), ("topic id",), [(str(read_partition_metadata(disk, path.parent)),)])


def _named(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name in fields)


_BY_SUFFIX: Final[dict[str, Reader]] = {
    INDEX: _offset_index,
    TIMEINDEX: _time_index,
    TXNINDEX: _txn_index,
    SUMMARY: _summary,
    SNAPSHOT: _producers,
    PRODUCERS: _producers,
    ENTRIES_SUFFIX: _rows_of(ENTRY, _named(Entry._fields)),
    EXTENTS_SUFFIX: _rows_of(EXTENT, _named(Extent._fields)),
    SUMMARY_SUFFIX: _commit_summary,
}
_BY_NAME: Final[dict[str, Reader]] = {
    EPOCH_FILE: _epochs,
    LOG_START_FILE: _start,
    VIEW_START_FILE: _start,
    METADATA_FILE: _metadata,
}
