"""Directories of Apache Kafka that are kept for `make test`: packed, each with what Kafka served of it."""

import io
import json
import lzma
import tarfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA
from tests.golden.cells import Cell
from tests.golden.kafka_writer import CellSeen
from tests.golden.look import PartitionSeen, Record, TransactionSeen

FOLDER = Path(__file__).parent / "kafka_cells"
SEEN = "seen.json"
INDEXES = (".index", ".timeindex")


def archives() -> list[Path]:
    """Those that are kept."""
    return sorted(FOLDER.glob("*.tar.xz"))


def write_archive(data: Path, cells: list[Cell], seen: dict[Cell, CellSeen], now_ms: int) -> Path:
    """Pack a directory, of one version and end."""
    FOLDER.mkdir(exist_ok=True)
    ((version, end),) = {(cell.version, cell.end) for cell in cells}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(data.rglob("*")):
            if path.is_file() and path.name != ".lock" and not _is_preallocated(path):
                _add(tar, str(path.relative_to(data)), path.read_bytes())
        rows = [{"cell": asdict(cell), **_row(seen[cell])} for cell in cells]
        content = {"now_ms": now_ms, "cells": rows}
        _add(tar, SEEN, json.dumps(content, separators=(",", ":")).encode())
    path = FOLDER / f"kafka-{version}-{end}.tar.xz"
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return path


def _is_preallocated(path: Path) -> bool:
    """Indexes of the controllers' log: 10 MiB of zeros, which nobody reads."""
    return path.suffix in INDEXES and path.parent.name.startswith("__cluster_metadata")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def read_archive(path: Path) -> tuple[SimDisk, dict[Cell, CellSeen], int]:
    """A directory as a simulated disk on which all of it is durable, what Kafka served, and when."""
    with tarfile.open(path) as tar:
        contents = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}
    told = json.loads(contents.pop(SEEN))
    disk = durable_disk((DATA / name, content) for name, content in contents.items())
    return disk, {Cell(**row["cell"]): _seen(row) for row in told["cells"]}, told["now_ms"]


def loaded(data: Path) -> SimDisk:
    """A directory as a simulated disk on which all of it is durable."""
    paths = [path for path in sorted(data.rglob("*")) if path.is_file()]
    return durable_disk((DATA / path.relative_to(data), path.read_bytes()) for path in paths)


def durable_disk(files: Iterable[tuple[Path, bytes]]) -> SimDisk:
    """A simulated disk with these files, which a power cut does not change."""
    disk = SimDisk()
    for path, content in files:
        disk.make_dir(path.parent)
        disk.write_atomic(path, content)
        for directory in path.parents:
            disk.sync_dir(directory)
    return disk


def _row(seen: CellSeen):
    txn = seen.transaction
    return {
        "group_offset": seen.group_offset,
        "transaction": [txn.state, txn.producer_id, txn.producer_epoch, sorted(txn.partitions)],
        "partitions": [
            [
                p.start_offset,
                p.stable_offset,
                p.end_offset,
                [[r.offset, r.timestamp_ms, _text(r.key), _text(r.value)] for r in p.all_records],
                [r.offset for r in p.committed],
                p.producers,
            ]
            for p in seen.partitions
        ],
    }


def _seen(row) -> CellSeen:
    state, producer_id, producer_epoch, partitions = row["transaction"]
    txn = TransactionSeen(state, producer_id, producer_epoch, frozenset(map(tuple, partitions)))
    found = []
    for start, stable, end, records, committed, producers in row["partitions"]:
        all_records = [Record(offset, ms, _bytes(key), _bytes(value)) for offset, ms, key, value in records]
        decided = [record for record in all_records if record.offset in committed]
        found.append(
            PartitionSeen(start, stable, end, decided, all_records, [tuple(row) for row in producers])
        )
    return CellSeen(txn, found, row["group_offset"])


def _text(content):
    return None if content is None else content.decode("latin-1")


def _bytes(text):
    return None if text is None else text.encode("latin-1")
