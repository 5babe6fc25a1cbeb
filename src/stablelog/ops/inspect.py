"""The content of a partition's files as tables, for `stablelog inspect`. Damaged and incomplete files are shown as far
as they can be read.
"""

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stablelog.batch.header import BatchHeader, Buffer
from stablelog.batch.markers import read_marker
from stablelog.batch.records import decode_records
from stablelog.commit_order.extents import EXTENT, BatchExtent
from stablelog.commit_order.first_sequence import FirstSequence, decode_first_sequences
from stablelog.commit_order.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    SUMMARY_SUFFIX,
    CommitSummary,
    Entry,
)
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.files.names import (
    FIRST_SEQUENCE_FILE,
    INDEX,
    LOG,
    OFFSET_DIGITS,
    PRODUCERS,
    REMOTE_LOG_START_FILE,
    REMOTE_MANIFEST_FILE,
    REMOTE_PART_PREFIX,
    RESTORED_FILE,
    SNAPSHOT,
    SUMMARY,
    TIMEINDEX,
    TXNINDEX,
    VIEW_START_FILE,
    has_offset,
    offset_of,
)
from stablelog.log.files.partition_metadata import METADATA_FILE, decode_partition_metadata
from stablelog.log.files.restored import decode_restored
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.producer_state.snapshots import decode_either
from stablelog.log.segments.scan import check_crc, scan_batches
from stablelog.ops.coordinator_records import Describe, describer_of
from stablelog.tier.manifest import Manifest, decode_part, decode_without_parts
from stablelog.tier.remote_segment import RemoteSegment

TEXT_SIZE_MAX = 80
Columns = tuple[str, ...]
Row = tuple[Any, ...]
Decode = Callable[[bytes, Path], Iterable[Row]]
BATCH_COLUMNS: Final = (
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
RECORD_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers", "kind")


@dataclass(frozen=True, slots=True)
class Table:
    """The content of a file as a table. `problem` describes the damage at which reading has stopped; None if the whole
    file was read. A cell may be a dict: the fields of a record of a coordinator's log.
    """

    title: str
    columns: Columns
    rows: list[Row]
    problem: str | None = None


def inspect_file(disk: Disk, path: Path, *, records: bool) -> Table:
    """Make a table of one file of a partition. Records of the coordinators' logs are decoded.

    Args:
        disk: the disk of the file.
        path: the path of the file.
        records: whether a log file is shown record by record, and not batch by batch.

    Raises:
        DamageError: the file is of an unknown kind.
    """
    kind = _kind_of(path.name)
    if kind == LOG:
        return _table(
            path, RECORD_COLUMNS if records else BATCH_COLUMNS, _log_rows(disk, path, records=records)
        )
    if kind not in _KINDS:
        raise DamageError(
            f"{path} is of no kind that can be shown. Name a partition's directory, a data directory, or a file of a "
            f"partition: <offset> in {OFFSET_DIGITS} digits with {' '.join((LOG, *_BY_SUFFIX))}, or {', '.join(_BY_NAME)}"
        )
    columns, decode = _KINDS[kind]
    return _table(path, columns, _decoded(disk, path, decode))


def _kind_of(name: str) -> str:
    """Return the key of a file's kind in the table `_KINDS`: the suffix of the file's name, its whole name, or the
    beginning of its name.
    """
    if has_offset(name):
        return name[OFFSET_DIGITS:]
    return REMOTE_PART_PREFIX if name.startswith(REMOTE_PART_PREFIX) else name.lstrip(".")


def _decoded(disk: Disk, path: Path, decode: Decode) -> Iterator[Row]:
    yield from decode(disk.read_bytes(path), path)


def _table(path: Path, columns: Columns, found: Iterator[Row]) -> Table:
    """Make a table of the rows that the iterator `found` yields. If it raises DamageError, the table has the rows
    before the damage, and the damage as its `problem`.
    """
    rows = []
    try:
        for row in found:
            rows.append(row)  # noqa: PERF402 - the rows before the damage stay
    except (DamageError, UnknownFormatError) as error:
        return Table(str(path), columns, rows, str(error))
    return Table(str(path), columns, rows)


def files_of(disk: Disk, directory: Path) -> Iterator[Path]:
    """Yield the files of a partition's directory that can be shown, in the order of their names."""
    for name in disk.list_dir(directory):
        if _kind_of(name) in (LOG, *_KINDS):
            yield directory / name


def _log_rows(disk: Disk, path: Path, *, records: bool) -> Iterator[Row]:
    """Yield a row for each batch or for each record of a log file, up to the first damage.

    Args:
        disk: the disk of the file.
        path: the path of the log file.
        records: whether each row is a record; otherwise each row is a batch.
    """
    describe = describer_of(path.parent.name)
    with contextlib.closing(disk.open(path)) as file:
        for position, header, batch in scan_batches(file.read, 0, file.size):
            check_crc(header, batch, position)
            if records:
                yield from _record_rows(header, batch, describe)
            else:
                yield _batch_row(header, batch, position)


def _kind(header: BatchHeader, batch: Buffer) -> str:
    if not header.is_control:
        return "transactional" if header.is_transactional else "plain"
    marker = read_marker(batch)
    if marker is None:
        return "control"
    if marker.group is None:
        return f"{marker.type.name} by coordinator epoch {marker.coordinator_epoch}"
    return f"{marker.type.name} {marker.group or 'default'}#{marker.commit_sequence} by coordinator epoch {marker.coordinator_epoch}"


def _batch_row(header: BatchHeader, batch: Buffer, position: int) -> Row:
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


def _record_rows(header: BatchHeader, batch: Buffer, describe: Describe | None) -> Iterator[Row]:
    kind = _kind(header, batch)
    for record in decode_records(batch):
        described = None
        if describe is not None and not header.is_control and record.key is not None:
            described = describe(record.key, record.value)
        key, value = described or (_text(record.key), _text(record.value))
        headers = ", ".join(f"{name}={_text(content)}" for name, content in record.headers)
        yield record.offset, record.timestamp_ms, key, value, headers, kind


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


def _rows_of(row: struct.Struct) -> Decode:
    """Return the decoder of a file that consists of rows of this binary structure. The decoder yields the fields of
    each row.
    """

    def decode(content: bytes, _path: Path) -> Iterator[Row]:
        torn = len(content) % row.size
        whole = memoryview(content)[: len(content) - torn]
        yield from row.iter_unpack(whole)
        if torn:
            raise DamageError(
                f"the entry at byte {len(whole)} is incomplete: it has {torn} of {row.size} bytes"
            )

    return decode


def _entries_of(make: Callable[[bytes, Path], OffsetIndex | TimeIndex | TransactionIndex]) -> Decode:
    """Return the decoder of an index file, which yields a row for each entry.

    Args:
        make: makes the object of the index from the bytes of the file and the path of the file.
    """

    def decode(content: bytes, path: Path) -> Iterator[Row]:
        index = make(content, path)
        return (tuple(index[place]) for place in range(len(index)))

    return decode


def _producers(content: bytes, path: Path) -> Iterator[Row]:
    for producer in decode_either(path.name, content):
        yield (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.coordinator_epoch,
            producer.txn_first_offset,
            len(producer.batches),
        )


def _fields(content: bytes, decode: Callable[[bytes], Summary | CommitSummary]) -> Iterator[Row]:
    for name, value in asdict(decode(content)).items():
        yield name, list(value) if isinstance(value, tuple) else value


def _named(fields: tuple[str, ...]) -> Columns:
    return tuple(name.replace("_", " ") for name in fields)


_PRODUCERS = (
    (
        "producer",
        "epoch",
        "last sequence",
        "last offset",
        "coordinator epoch",
        "open since offset",
        "batches",
    ),
    _producers,
)
_REMOTE_SEGMENT = ("base offset", "end offset", "size", "state", "segment id")


def _segment_rows(segments: Iterable[RemoteSegment]) -> Iterator[Row]:
    for one in segments:
        yield one.base_offset, one.end_offset, one.size, one.state.name, str(one.segment_id)


def _manifest_rows(manifest: Manifest) -> Iterator[Row]:
    """Yield the rows of a manifest, the list of a partition's segments in the object store: first a row for each of its
    parts (separate objects, each with some of the segments), then a row for each segment that is in the manifest
    itself.
    """
    for part in manifest.parts:
        yield part.base_offset, None, part.size, f"PART ({part.segment_count} segments)", part.part_id.hex
    yield from _segment_rows(manifest.segments)


_START = ("start offset",), lambda content, path: [(decode_log_start(content, path),)]
_FIELDS = ("field", "value")
_BY_SUFFIX: Final[dict[str, tuple[Columns, Decode]]] = {
    INDEX: (
        ("offset", "position"),
        _entries_of(lambda content, path: OffsetIndex(offset_of(path.name), content)),
    ),
    TIMEINDEX: (
        ("timestamp", "offset"),
        _entries_of(lambda content, path: TimeIndex(offset_of(path.name), content)),
    ),
    TXNINDEX: (
        ("producer", "first offset", "last offset", "stable offset"),
        _entries_of(lambda content, _: TransactionIndex(content)),
    ),
    SUMMARY: (_FIELDS, lambda content, _: _fields(content, Summary.decode)),
    SNAPSHOT: _PRODUCERS,
    PRODUCERS: _PRODUCERS,
    ENTRIES_SUFFIX: (_named(Entry._fields), _rows_of(ENTRY)),
    EXTENTS_SUFFIX: (_named(BatchExtent._fields), _rows_of(EXTENT)),
    SUMMARY_SUFFIX: (_FIELDS, lambda content, _: _fields(content, CommitSummary.decode)),
}
_BY_NAME: Final[dict[str, tuple[Columns, Decode]]] = {
    EPOCH_FILE: (("epoch", "start offset"), lambda content, _: LeaderEpochs.decode(content).entries),
    LOG_START_FILE: _START,
    VIEW_START_FILE: _START,
    FIRST_SEQUENCE_FILE: (FirstSequence._fields, lambda content, _: decode_first_sequences(content)),
    REMOTE_LOG_START_FILE: _START,
    RESTORED_FILE: (_FIELDS, lambda content, path: asdict(decode_restored(content, path)).items()),
    REMOTE_MANIFEST_FILE: (_REMOTE_SEGMENT, lambda content, _: _manifest_rows(decode_without_parts(content))),
    REMOTE_PART_PREFIX: (_REMOTE_SEGMENT, lambda content, _: _segment_rows(decode_part(content))),
    METADATA_FILE: (
        ("topic id",),
        lambda content, path: [(str(decode_partition_metadata(content, path)),)],
    ),
}
_KINDS: Final = _BY_SUFFIX | _BY_NAME
