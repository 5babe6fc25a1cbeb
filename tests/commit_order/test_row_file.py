"""Rows of an index on their way to its file."""

import struct

import pytest

from stablelog.commit_order import row_file
from stablelog.commit_order.extents import EXTENT
from stablelog.commit_order.row_file import TAIL_SIZE, RowFile
from stablelog.errors import DiskError
from stablelog.testing.sim_disk import SimDisk
from tests.commit_order.committed_log import DIRECTORY, Files, Log


def test_rows_of_an_index_go_to_its_file_in_pieces(monkeypatch):
    monkeypatch.setattr(row_file, "TAIL_SIZE", 40 * EXTENT.size)
    assert TAIL_SIZE == 64 << 10
    log, written = Log(), []
    log.disk.fault = lambda called, path: (
        written.append(path) if called == "writing" and path.suffix == ".commitextents" else None
    )
    for _ in range(100):
        log.append(1, size=600)
        log.end(1)
    log.sync()
    assert len(written) == 2
    assert log.read_all(0, 1 << 30) == log.expected()


def test_rows_of_a_file_that_was_closed_stay_in_memory_and_it_is_not_opened_again(monkeypatch):
    files, disk, row = Files(monkeypatch), SimDisk(), struct.Struct(">q")
    disk.make_dir(DIRECTORY)
    rows = RowFile(disk, DIRECTORY / "0.commitindex", row)
    rows.append(row.pack(1))
    rows.write()
    rows.close()
    rows.append(row.pack(2))
    with pytest.raises(DiskError):
        rows.write()
    assert (len(rows), rows[1]) == (2, (2,))
    assert not files.open
