"""The content of the backfill: the number of segments and of committed records is the one that was asked for."""

import pytest

import stablelog
from peers import backfill
from stablelog.log.indexes.transaction_index import TransactionIndex
from tests.java.load import create_topic

pytestmark = pytest.mark.extended

SEGMENTS, ABORTED = 4, (1, 3)


def test_the_segments_and_the_aborted_transactions_are_those_that_were_asked_for(tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        create_topic(broker.bootstrap, "topic", backfill.TOPIC_SETTINGS)
        backfill.fill(broker.bootstrap, "topic", SEGMENTS, ABORTED)
        assert backfill.read(broker.bootstrap, "topic") == backfill.committed_count(SEGMENTS, ABORTED)
    segments = sorted((tmp_path / "data" / "topic-0").glob("*.log"))
    assert len(segments) == SEGMENTS + 1, "the last one is the active segment"
    indexes = [path.with_suffix(".txnindex") for path in segments]
    with_aborts = [
        number
        for number, path in enumerate(indexes)
        if path.exists() and len(TransactionIndex(path.read_bytes()))
    ]
    assert with_aborts == list(ABORTED)
