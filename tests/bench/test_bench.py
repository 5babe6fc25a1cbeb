"""Every benchmark runs here in miniature, so that none rots, and its report says what was measured."""

import re
import struct

import pytest

from bench import aborts, limits, loads, report
from bench.contestants import KAFKA, OURS
from tests import documented


@pytest.mark.extended
def test_records_produced_are_fetched_with_and_without_decoding(stablelog_broker):
    with loads.topic_of(stablelog_broker.bootstrap, 100, 2_000) as topic:
        assert loads.produce(stablelog_broker.bootstrap, topic) > 0
        assert loads.fetch(stablelog_broker.bootstrap, topic) > 0
        assert loads.fetch_undecoded(stablelog_broker.bootstrap, topic) > 0


@pytest.mark.extended
def test_transactions_are_timed_one_by_one(stablelog_broker):
    done = loads.transactions(stablelog_broker.bootstrap, 2, 0.1, producers=2)
    assert done.per_s == pytest.approx(len(done.commit_ms) / 0.1)
    half, most, all_of_them = (loads.percentile(done.commit_ms, percent) for percent in (50, 99, 100))
    assert 0 < half <= most <= all_of_them == max(done.commit_ms)


def test_a_record_is_followed_from_end_to_end(stablelog_broker):
    assert 0 < loads.end_to_end(stablelog_broker.bootstrap, 20) < loads.PATIENCE_S * 1000


@pytest.mark.extended
def test_aborts_are_looked_up_in_every_segment():
    with aborts.filled([1, 4], 100) as logs:
        for count, directory in logs.items():
            assert len(list(directory.glob("*.log"))) == count + 1
            found = aborts.look_up(directory, count)
            assert found.us > 0
            assert found.opening_us > 0


@pytest.mark.extended
def test_the_machine_has_limits():
    best = limits.measure()
    assert best.memory_copy_mb_s > best.loopback_mb_s > 0
    assert best.sync_ms > 0


def test_a_ratio_is_of_runs_that_were_made_one_after_the_other():
    row = report.Row("speed", report.Wanted(2))
    for ours, theirs in ((10, 1), (20, 10), (300, 100)):
        row.add(OURS, ours)
        row.add(KAFKA, theirs)
    assert row.ratio == 3
    assert row.reached is True
    assert row.cells() == ("speed", "20", "10", "3", "≥ 2", "")


def test_less_than_one_is_wanted_at_most():
    row = report.Section("Speed").row("time", wanted=0.5)
    row.runs = {OURS: [6], KAFKA: [10]}
    assert row.reached is False
    assert row.cells()[4] == "≤ 0.5"


def test_a_ratio_can_be_wanted_below_one_and_of_another_contestant():
    section = report.Section("Speed", beside="Parquet")
    row = section.row("rows", wanted=report.Wanted(0.45))
    row.runs = {OURS: [6], "Parquet": [10]}
    assert row.reached is True
    assert row.cells() == ("rows", "6", "10", "0.6", "≥ 0.45", "")
    assert section.headings[2:4] == ("Parquet", "ratio")


def test_a_figure_is_wanted_where_there_is_nobody_beside():
    section = report.Section("Speed", beside="")
    row = section.row("ms", wanted=report.Wanted(200, at_most=True, of_figure=True), limit=40)
    assert row.reached is None
    row.add(OURS, 199)
    assert row.reached is True
    row.add(OURS, 205)
    assert row.reached is False
    assert section.headings[2:4] == ("", "")


def test_without_kafka_there_is_no_ratio():
    row = report.Row("speed", report.Wanted(2), runs={OURS: [1.0]})
    assert row.ratio is None
    assert row.reached is None


def test_the_document_keeps_its_words_and_gets_new_figures(tmp_path):
    path = tmp_path / "benchmarks.md"
    path.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    section = report.Section("Speed")
    section.row("produce, MB/s").add(OURS, 1234)
    report.write_document([section], path)
    text = path.read_text()
    assert "| produce, MB/s | 1,234 |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- figures -->\n")
    assert text.endswith("<!-- end of figures -->\nafter\n")


def test_what_was_not_measured_again_stays_in_the_document(tmp_path):
    path = tmp_path / "benchmarks.md"
    path.write_text("<!-- figures -->\n<!-- end of figures -->\n")
    for title, figure in (("Speed", 1), ("Size", 2), ("Speed", 3)):
        section = report.Section(title)
        section.row(f"{title} of it").add(OURS, figure)
        report.write_document([section], path)
    text = path.read_text()
    assert text.count("| Speed of it | 3 |") == text.count("| Size of it | 2 |") == 1
    assert "| Speed of it | 1 |" not in text
    assert text.count("Measured on") == 1


def rows_of_the_document():
    """The figures of the document: each row as its cells by their headings."""
    figures = report.FIGURES.search(report.DOCUMENT.read_text())[0]
    for lines in re.findall(r"(?:^\|.*\|\n)+", figures, re.M):
        head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines()]
        yield from (dict(zip(head, row, strict=True)) for row in rows)


def test_the_document_begins_with_figures_of_its_tables():
    begin = documented.section("What the figures say")
    shown = re.findall(r"^\| .* \| ([\d.]+) \| [\w' ]+: ([\d.]+) \| ([\d.]+) \|$", begin, re.M)
    assert len(shown) == 5
    known = {tuple(row.values())[1:4] for row in rows_of_the_document()}
    assert set(shown) <= known


def test_the_document_names_each_goal_that_was_not_reached():
    goals = documented.section("What the figures say").partition("| goal |")[2]
    missed = set()
    for row in rows_of_the_document():
        if row.get("wanted"):
            kind, wanted = row["wanted"].split()
            shown = row.get("ratio") or row["stablelog"]
            found = float(shown.replace(",", ""))
            # The wanted figure of a callback is in milliseconds, and its ratio is to the time by the clock.
            if "by the clock" not in row and (
                found < float(wanted) if kind == "≥" else found > float(wanted)
            ):
                missed.add(shown)
    assert len(missed) > 5
    assert all(re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d.]\d)", goals) for shown in missed), missed


def test_a_segment_that_is_not_proven_in_time_is_asked_for_again():
    name, not_leader_or_follower = b"t", 6
    answer = (
        bytes(4 + 4 + 4 + 2) + name + bytes(4) + struct.pack(">ihqqi", 0, not_leader_or_follower, -1, -1, -1)
    )
    assert loads.end_of_records(memoryview(answer + bytes(4)), len(name), 7) == 7
