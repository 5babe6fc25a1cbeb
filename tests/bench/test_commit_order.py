"""The benchmarks of commit order, in miniature: they run, and what they measure is what they say."""

import pytest

import stablelog
from bench import commit_cuts, commit_fetch, commit_open, limits, report
from bench.contestants import OURS
from bench.interleaved import ORDERS, ORDINARY, Shape, served

SHAPE = Shape(writers=4, batches=3, records=2, record_size=5_000, size=240_000)


@pytest.fixture(scope="module")
def best():
    return limits.Limits(1, 1, 1, 1, 1, 1, 1)


@pytest.fixture
def section():
    return report.Section("Commit order", beside=ORDINARY)


@pytest.mark.extended
def test_the_same_transactions_are_read_and_weighed_in_both_orders(tmp_path, best, section):
    data = tmp_path / "data"
    with served(data, [SHAPE]) as broker:
        for contestant in ORDERS:
            got = commit_fetch.fetch_undecoded(broker, SHAPE.topic(contestant))
            assert got.size > SHAPE.record_count * SHAPE.record_size
            assert got.broker_ms_per_mb > 0
        commit_fetch.measure_fetch(broker, (SHAPE,), 1, best, section)
        commit_fetch.measure_reading(broker, (SHAPE,), 1, section)
    commit_fetch.measure_index(data, (SHAPE,), section)
    figures = {row.what.split(": ")[1]: row.median(OURS) for row in section.rows}
    # An entry of 64 bytes, three extents of 24, and its part of the summary.
    assert 64 + 3 * 24 <= figures["on disk, B per transaction"] < 200
    assert figures["one transaction, cold"] >= 0  # none where the directory is in memory
    assert all(row.ratio is not None for row in section.rows if "fetch" in row.what)


@pytest.mark.extended
def test_cuts_are_asked_for_and_r_comes_to_the_last_commit(best, section, monkeypatch):
    monkeypatch.setattr(commit_cuts, "PARTITION_COUNTS", (1, 3))
    with stablelog.serve() as broker:
        commit_cuts.measure_answers(broker, 5, best, section)
        lag = commit_cuts.measure_lag(broker, 1, best, section)
    assert lag.commit_count == len(lag.ms) > 0
    assert min(lag.commits) == 0


@pytest.mark.extended
def test_an_open_transaction_withholds_others_in_an_ordinary_topic_and_nothing_in_commit_order(best, section):
    with stablelog.serve() as broker:
        commit_open.measure_open(broker, 5, best, section)
    withheld = section.rows[-1]
    assert withheld.runs == {OURS: [0], ORDINARY: [20]}
    assert withheld.reached


@pytest.mark.night
def test_a_long_transaction_is_written_committed_and_read_while_others_commit(section):
    with stablelog.serve() as broker:
        commit_open.measure_long(broker, 3, section)
    assert {row.what: bool(row.runs.get(OURS)) for row in section.rows if not row.runs.get(OURS)} == {}
