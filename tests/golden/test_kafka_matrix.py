"""Directories of Apache Kafka with transactions in every state; `python -m tests.golden.kafka_matrix` makes all of them."""

import itertools

import pytest

from tests.golden.archives import archives, read_archive
from tests.golden.cells import all_cells, covering
from tests.golden.checks import Failures, check


@pytest.mark.extended
@pytest.mark.parametrize("path", archives(), ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_every_transaction_of_kafkas_is_as_kafka_left_it(path):
    """From every offset, by both isolations and by time; open ones stay open, and their producers decide them."""
    failures = Failures()
    check(*read_archive(path), failures)
    assert failures.by_cell == {}


def test_every_pair_of_values_is_among_the_kept_cells():
    kept = [cell for path in archives() for cell in read_archive(path)[1]]
    assert len(archives()) == 4
    cells = all_cells(tuple(sorted({cell.version for cell in kept})))
    for strength in (2, 3):
        assert covering(kept, strength), strength
        assert combinations_of(kept, strength) == combinations_of(cells, strength)


def combinations_of(cells, strength):
    rows = [[(name, getattr(cell, name)) for name in cell.__slots__] for cell in cells]
    return {found for row in rows for found in itertools.combinations(row, strength)}
