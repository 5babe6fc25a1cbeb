"""The benchmark of TLS runs here at a small size. The speed is measured only by the benchmark."""

import sys

import pytest

from bench import tls
from bench.contestants import OURS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the processor time of a process"),
    pytest.mark.extended,
]


def test_rates_with_and_without_tls_are_measured():
    (section,) = tls.run(1, 1_000, str, with_kafka=False)
    found = {row.what: row.median(OURS) for row in section.rows}
    for load in ("produce", "fetch"):
        share = found[f"{load}, TLS, MB/s"] / found[f"{load}, plain, MB/s"]
        assert found[f"{load}, TLS as a share of plain"] == pytest.approx(share)
        assert all(
            found[f"{load}, {kind}, broker's processor ms per MB"] is not None for kind in ("plain", "TLS")
        )
