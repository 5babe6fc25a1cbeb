"""The benchmarks of the data source run here in miniature, and give every figure that the issue's goals are held against."""

import math

import pytest

from bench import columns, spark_read, spark_session, spark_tasks, spark_write
from bench.contestants import OURS
from stablelog.batch.header import Codec


def assert_measured(section):
    for row in section.rows:
        figures = [figure for runs in row.runs.values() for figure in runs]
        assert figures, row.what
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures), row.what


@pytest.fixture(scope="module")
def prepared(spark):
    with spark_session.prepared(spark):
        yield spark


def test_reads_are_held_against_parquet_and_against_none_aborted(prepared, monkeypatch):
    monkeypatch.setattr(spark_session, "WARM_UP_COUNT", 0)
    by_parquet, by_none = spark_read.run(prepared, 1, 400, with_connector=False)
    assert {row.beside for row in by_parquet.rows} == {"Parquet"}
    aims = [row.wanted.value for row in by_parquet.rows if row.wanted is not None]
    assert aims == [0.45, 0.45, 0.55, 0.55, 0.8, 0.8]  # by the clock, and by processor time
    for section in (by_parquet, by_none):
        assert_measured(section)
        assert all(row.ratio is not None for row in section.rows)
    assert all(row.limit for row in by_parquet.rows)


def test_what_was_aborted_counts_as_read_and_not_as_delivered(prepared, monkeypatch):
    monkeypatch.setattr(spark_session, "WARM_UP_COUNT", 0)
    rows = spark_read.Rows("t", 100, None, 18_000)
    bench = spark_read.Bench(prepared, "", None, 1)
    monkeypatch.setattr(bench, "_read", lambda topic, **_: prepared.range(10))
    section = bench.beside_none_aborted(rows, rows)
    by_name = {row.what: row for row in section.rows}
    delivered, read = by_name["delivered, M rows/s"], by_name["read, M rows/s"]
    assert read.median(OURS) == pytest.approx(delivered.median(OURS) * 20 / 18)
    assert read.median("none aborted") == delivered.median("none aborted")


def test_writes_and_micro_batches_have_a_limit_beside_them(prepared, monkeypatch):
    monkeypatch.setattr(spark_write, "TRIGGER_COUNT", 2)
    monkeypatch.setattr(spark_write, "FIRST_TRIGGERS", 1)
    [section] = spark_write.run(prepared, 1, 400)
    assert_measured(section)
    by_name = {row.what: row for row in section.rows}
    batch = by_name["micro-batch of 10 rows, topic to topic, ms"]
    assert len(batch.runs[OURS]) >= 1  # rows of two partitions may come in two micro-batches
    assert batch.limit > 0
    assert by_name["100 B, M rows/s"].wanted.of_figure
    assert by_name["of that, addBatch, ms"].median(OURS) <= batch.median(OURS)


def test_planning_finds_every_segment_anew_and_again(tmp_path):
    spark_tasks.fill_segments(tmp_path / "data" / "events-0", 30)
    plan = spark_tasks.planned(spark_tasks.read_options({"path": str(tmp_path / "data")}))
    sizes = [path.stat().st_size for path in (tmp_path / "data" / "events-0").glob("*.log")]
    assert len(sizes) == 31
    assert plan() == plan() == sum(sizes)
    assert_measured(spark_tasks.planning([10], 1))


def test_the_memory_of_a_task_is_seen_while_it_reads_and_while_it_writes(tmp_path, stablelog_broker):
    spark_tasks.fill_log(tmp_path / "events-0", 4 << 20, 64 << 10, 1000, Codec.ZSTD)
    assert spark_tasks.read_memory_mb(str(tmp_path)) > 1
    spark_session.make_topic(stablelog_broker.bootstrap, "memory")
    assert spark_tasks.write_memory_mb(stablelog_broker.bootstrap, 1 << 20, 1000) > 1


def test_the_decoder_and_the_encoder_do_what_is_timed():
    log, rows = columns.log_of(30_000, aborted_every=10)
    columns.decode(log, rows, columns.ALL, aborted=True)
    assert columns.least_s(log, 1) > 0
