"""The benchmarks of the data source run here in miniature, and give every figure that the issue's goals are held against."""

import math
import os
import subprocess
import sys

import pytest

from bench import after_start, columns, spark_read, spark_session, spark_tasks, spark_write
from bench.contestants import OURS
from bench.report import Section
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


@pytest.mark.night
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


@pytest.mark.extended
def test_what_was_aborted_counts_as_read_and_not_as_delivered(prepared, monkeypatch):
    monkeypatch.setattr(spark_session, "WARM_UP_COUNT", 0)
    rows = spark_read.Rows("t", 100, 18_000)
    bench = spark_read.Bench(prepared, "", None, 1)
    monkeypatch.setattr(bench, "read", lambda topic, **_: prepared.range(10))
    section = bench.beside_none_aborted(rows, rows)
    by_name = {row.what: row for row in section.rows}
    delivered, read = by_name["delivered, M rows/s"], by_name["read, M rows/s"]
    assert read.median(OURS) == pytest.approx(delivered.median(OURS) * 20 / 18)
    assert read.median("none aborted") == delivered.median("none aborted")


def test_every_frame_is_held_against_the_other_of_its_round(monkeypatch):
    monkeypatch.setattr(spark_session, "WARM_UP_COUNT", 1)
    drains = []

    def drain(frame):
        drains.append(frame)

    def cost(work):
        work()
        return spark_session.Cost(seconds=len(drains), cpu_seconds=2 * len(drains))

    monkeypatch.setattr(spark_session, "drain", drain)
    monkeypatch.setattr(spark_session, "cost", cost)
    section = Section("t", beside="other")
    ours = [spark_session.Contender(name, name, 10**6) for name in ("a", "b")]
    spark_session.Contest(section, ours, ("c", 10**6), spark_session.Cost(0.5, 1.0)).run(2)
    assert drains == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    by_name = {row.what: row for row in section.rows}
    row = by_name["a, M rows/s"]
    assert [1 / rate for rate in row.runs[OURS]] == pytest.approx([6, 8])
    assert [1 / rate for rate in row.runs["other"]] == pytest.approx([5, 7])
    row = by_name["b, M rows per processor second"]
    assert [1 / rate for rate in row.runs[OURS]] == pytest.approx([8, 18])
    assert [1 / rate for rate in row.runs["other"]] == pytest.approx([10, 14])
    assert by_name["b, M rows/s"].limit == 2
    assert by_name["b, M rows per processor second"].limit == 1


def test_a_process_that_ended_takes_nothing_off_the_cost_of_a_query(monkeypatch):
    looks = iter([{(1, 5): 100, (2, 6): 700}, {(1, 5): 150, (2, 9): 30}])  # another process, and the same id
    monkeypatch.setattr(spark_session, "processor_ticks", lambda: next(looks))
    assert spark_session.cost(lambda: None).cpu_seconds == pytest.approx(80 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.extended
def test_the_processor_time_of_a_child_counts():
    busy = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(); sys.stdout.flush(); input()"

    def work():
        child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append(child)
        child.stdout.readline()

    children = []
    try:
        assert spark_session.cost(work).cpu_seconds > 0.25
    finally:
        for child in children:
            child.communicate(b"\n")


@pytest.mark.night
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


@pytest.mark.night
def test_the_first_readers_after_a_start_are_held_against_the_next(prepared):
    first, whole = after_start.run(prepared, 1, 4_000_000, segment_size=1 << 20)
    assert [row.what.split(" segment")[0] for row in first.rows] == [
        "first fetch from a warm",
        "first fetch from a cold",
        "the next fetch, ms",
    ]
    assert {row.beside for row in whole.rows} == {"again"}
    assert all(row.ratio is not None and row.wanted.value == 0.8 for row in whole.rows)
    for section in (first, whole):
        assert_measured(section)


def test_planning_finds_every_segment_anew_and_again(tmp_path):
    spark_tasks.fill_segments(tmp_path / "data" / "events-0", 30)
    plan = spark_tasks.planned(spark_tasks.read_options({"path": str(tmp_path / "data")}))
    sizes = [path.stat().st_size for path in (tmp_path / "data" / "events-0").glob("*.log")]
    assert len(sizes) == 31
    assert plan() == plan() == sum(sizes)
    assert_measured(spark_tasks.planning([10], 1))


@pytest.mark.extended
def test_the_memory_of_a_task_is_seen_while_it_reads_and_while_it_writes(tmp_path, stablelog_broker):
    spark_tasks.fill_log(tmp_path / "events-0", 4 << 20, 64 << 10, 1000, Codec.ZSTD)
    assert spark_tasks.read_memory_mb({"path": str(tmp_path)}) > 1
    spark_session.make_topic(stablelog_broker.bootstrap, "memory")
    assert spark_tasks.write_memory_mb(stablelog_broker.bootstrap, 1 << 20, 1000) > 1


@pytest.mark.extended
def test_the_decoder_and_the_encoder_do_what_is_timed():
    log, rows = columns.log_of(30_000, aborted_every=10)
    columns.decode(log, rows, columns.ALL, aborted=True)
    assert columns.least_s(log, 1) > 0
