"""The benchmark of the native client's writes runs here at a small size. The speed is measured only by the benchmark."""

import pytest

from bench import client_writes
from bench.contestants import OURS

pytestmark = pytest.mark.extended


def test_each_way_is_measured_beside_aiokafka(monkeypatch):
    monkeypatch.setattr(client_writes, "SHAPES", ((1, 2), (30, 2)))
    (section,) = client_writes.run(1, 1, lambda _: None)
    assert {row.what.rsplit(", ", 1)[0] for row in section.rows if row.what.endswith("p50 ms")} == {
        f"transactions of {size}, {way}" for size in (1, 30) for way in client_writes.WAYS
    }
    for row in section.rows:
        assert row.median(OURS) > 0
        assert row.median(client_writes.AIOKAFKA) > 0
