"""Rows of an index on their way to its file."""

from stablelog.views import (
    row_file,
)
from stablelog.views.extents import EXTENT
from stablelog.views.row_file import TAIL_SIZE
from tests.views.committed_log import Log


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
