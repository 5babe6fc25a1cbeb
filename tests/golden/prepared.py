"""Takes Kafka's directory back to where a decision was made and not yet carried out: without completion, without markers.

A killed Kafka leaves indexes that are behind or ahead of the log, so the files are only cut. A stopped one leaves them
whole, and a snapshot at the end: they are made again with this project's own log, whose files are equal to Kafka's
(`tests/golden/test_kafka_directory.py` proves it), and what Kafka has no file for is removed.
"""

import shutil
from pathlib import Path

from stablelog.batch.header import BatchHeader, headers_in
from stablelog.batch.records import decode_records
from stablelog.coordinators.transactions.records import decode_transaction, transaction_key
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.env.local_disk import LocalDisk
from stablelog.log.files.names import INDEX, TIMEINDEX, TXNINDEX
from stablelog.log.indexes.transaction_index import ENTRY, TransactionIndex
from stablelog.log.model import LogConfig
from stablelog.log.opening import open_partition
from stablelog.log.retention import is_log, offset_of
from tests.golden.cells import STOPPED, Cell

STATE_LOG = "__transaction_state"
END_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
OURS = ("*.producers", "*.summary", "log-start-offset")
KEPT = ("leader-epoch-checkpoint", "partition.metadata")


def prepare(data: Path, cells: list[Cell]) -> None:
    """Make the decided transactions of these cells pending again, in a directory of one end of Kafka's."""
    for cell in cells:
        if cell.decision is None:
            continue
        directory, decided = remove_completion(data, cell.transactional_id)
        _settle(data, directory, cell)
        kept = {(cell.topic, index) for index in cell.kept_markers}
        for topic, index in sorted(decided.partitions - kept):
            directory = data / f"{topic}-{index}"
            remove_marker(directory, decided.producer_id)
            _settle(data, directory, cell)


def remove_completion(data: Path, transactional_id: str) -> tuple[Path, TransactionMetadata]:
    """Remove the last record of an id, which says that its transaction is complete.

    Returns:
        The partition's directory, and the decision, which is the id's last record now.
    """
    found = [
        (path, at, header, decode_transaction(record.value))
        for directory in sorted(data.glob(f"{STATE_LOG}-*"))
        for path in _logs(directory)
        for content in [path.read_bytes()]
        for at, header in headers_in(content)
        for record in decode_records(content, at)
        if record.key == transaction_key(transactional_id)
    ]
    path, at, header, complete = found[-1]
    decided = found[-2][3]
    assert complete.state.is_complete, f"{transactional_id} is {complete.state.label}"
    assert decided.state.is_decided, f"{transactional_id} was {decided.state.label}"
    assert header.record_count == 1
    _remove(path, at, header)
    return path.parent, decided


def remove_marker(directory: Path, producer_id: int) -> None:
    """Remove the last batch of a producer, which is a marker; also snapshots behind it, which know of it."""
    found = [
        (path, at, header)
        for path in _logs(directory)
        for at, header in headers_in(path.read_bytes())
        if header.producer_id == producer_id
    ]
    path, at, header = found[-1]
    assert header.is_control, f"the last batch of {producer_id} in {path} is one of records"
    _remove(path, at, header)
    for snapshot in directory.glob("*.snapshot"):
        if offset_of(snapshot.name) > header.base_offset:
            snapshot.unlink()


def _remove(path: Path, at: int, header: BatchHeader) -> None:
    """Remove a batch; what the segment's indexes say of it, or of what moves into its place, goes too."""
    content = path.read_bytes()
    path.write_bytes(content[:at] + content[at + header.size :])
    for suffix in (INDEX, TIMEINDEX):
        path.with_suffix(suffix).write_bytes(b"")
    aborted = path.with_suffix(TXNINDEX)
    if aborted.exists():
        index = TransactionIndex(aborted.read_bytes())
        kept = [
            txn for txn in map(index.__getitem__, range(len(index))) if txn.last_offset != header.base_offset
        ]
        aborted.write_bytes(b"".join(ENTRY.pack(0, *txn) for txn in kept))


def _logs(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if is_log(path.name))


def _settle(data: Path, directory: Path, cell: Cell) -> None:
    """Have everything beside a log that was cut say what Kafka would say of it."""
    end = _end_offset(directory)
    for path in directory.glob("*.snapshot"):
        if offset_of(path.name) > end:
            path.unlink()
    topic, _, index = directory.name.rpartition("-")
    for name in END_CHECKPOINTS:
        _lower(data / name, topic, index, end)
    if cell.end == STOPPED:
        _close_again(directory, _log_start(data, topic, index))


def _end_offset(directory: Path) -> int:
    path = _logs(directory)[-1]
    return max((header.next_offset for _, header in headers_in(path.read_bytes())), default=int(path.stem))


def _lower(path: Path, topic: str, index: str, end: int) -> None:
    if not path.exists():
        return
    version, count, *rows = path.read_text().splitlines()
    lowered = [
        f"{topic} {index} {min(int(row.split()[2]), end)}" if row.split()[:2] == [topic, index] else row
        for row in rows
    ]
    path.write_text("\n".join([version, count, *lowered, ""]))


def _log_start(data: Path, topic: str, index: str) -> int:
    rows = (data / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    return next((int(row.split()[2]) for row in rows if row.split()[:2] == [topic, index]), 0)


def _close_again(directory: Path, log_start: int) -> None:
    kept = {name: (directory / name).read_bytes() for name in KEPT}
    interval = 4096 if directory.name.startswith(STATE_LOG) else 100
    partition = open_partition(
        LocalDisk(),
        directory,
        LogConfig(index_interval_bytes=interval),
        topic="",
        partition=0,
        clean=False,
        now_ms=0,
        log_start_offset=log_start,
    )
    partition.close()
    for pattern in OURS:
        for path in directory.glob(pattern):
            path.unlink()
    for name, content in kept.items():
        (directory / name).write_bytes(content)


def prepared_copy(data: Path, target: Path, cells: list[Cell]) -> Path:
    """A copy of Kafka's directory in which the decisions of these cells are pending."""
    shutil.copytree(data, target)
    prepare(target, cells)
    return target
