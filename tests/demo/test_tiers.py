"""The third scene: what it counts, what it proves, its picture, and a slice of it from end to end."""

import io
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.busy import EXIT_CODE, LateError
from demo.children import Children
from demo.flights import AIRPORTS, read_flights
from demo.tiers import STORE_URL, scene
from demo.tiers.backfill import Backfill, load, store_options
from demo.tiers.picture import WIDTH, draw
from demo.tiers.proof import Place, Reading, Source, Verdict, prove
from demo.tiers.report import report, said_of
from demo.tiers.results import DISK_LOST, SPARK, Phase, Read, Results
from demo.tiers.segments import Segment, Stay, Tier, tier_of
from demo.tiers.store import DELETE, GET_INDEXES, GET_LOG, GET_OTHER, LIST, PUT, kind_of
from demo.tiers.store_watch import StoreWatch
from demo.tiers.time_axis import TimeAxis
from demo.tiers.write import by_day, first_days, rows_of_whole_days
from stablelog.env.objects.opening import open_store
from tests.demo.drawn import check_legible

FLIGHTS = list(read_flights(200))
ROWS = range(200)


def read_by(*, without=(), doubled=(), doomed=(), changed=()):
    """The reading of a consumer that gets each flight once, except for these rows."""
    source, reading = Source(FLIGHTS), Reading()
    for flight in FLIGHTS:
        value = flight.encode(doomed=flight.row in doomed)
        if flight.row in changed:
            value = value.replace(b'"carrier":"', b'"carrier":"x')
        for _ in range(0 if flight.row in without else 2 if flight.row in doubled else 1):
            source.check(reading, Place(0, flight.row), value)
    return reading


def test_a_reader_that_gets_each_flight_once_passes():
    verdict = prove(ROWS, read_by())
    assert verdict == Verdict(200, 0, 0, 0, 0)
    assert verdict.is_good


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"without": (7,)}, "1 lost, 0 duplicated, 0 aborted ones shown"),
        ({"doubled": (7, 8)}, "0 lost, 2 duplicated, 0 aborted ones shown"),
        ({"doomed": (7,)}, "1 lost, 0 duplicated, 1 aborted ones shown"),
        ({"changed": (7,)}, "1 lost, 0 duplicated, 0 aborted ones shown, 1 unlike the source"),
        ({"without": (7,), "doubled": (8,)}, "1 lost, 1 duplicated, 0 aborted ones shown"),
    ],
)
def test_a_reader_fails_if_one_record_is_wrong(fault, said):
    verdict = prove(ROWS, read_by(**fault))
    assert not verdict.is_good
    assert str(verdict) == said


def test_a_reader_fails_if_it_gets_a_flight_that_is_not_in_its_part_of_the_log():
    verdict = prove(range(199), read_by())
    assert (verdict.is_good, verdict.changed_count) == (False, 1)


def test_the_last_offsets_of_a_reading_are_those_of_each_partition():
    reading = Reading([Place(0, 5), Place(2, 9), Place(0, 3)], [10, 11, 12])
    assert reading.last_offsets() == {0: 5, 2: 9}


def test_a_day_is_whole_in_the_store_if_its_marker_is_there():
    days = by_day(FLIGHTS, "JFK")
    assert len(days) == 1
    (flights,) = days.values()
    rows = [flight.row for flight in flights]
    reading = Reading([Place(1, offset) for offset in range(len(rows))], rows)
    marker = len(rows)
    assert rows_of_whole_days([days], reading, (0, marker + 1, 0), with_marker=True) == set(rows)
    assert rows_of_whole_days([days], reading, (0, marker, 0), with_marker=True) == set()
    assert rows_of_whole_days([days], reading, (0, marker, 0), with_marker=False) == set(rows)
    assert rows_of_whole_days([days], reading, (0, marker - 1, 0), with_marker=False) == set()


class Options:
    """A reader of Spark that keeps its options."""

    def __init__(self):
        self.read = self
        self.given = []

    def format(self, name):
        self.given.append(name)
        return self

    def option(self, name, value):
        self.given.append((name, value))
        return self

    def load(self, url):
        return [*self.given, url]


def test_spark_is_given_the_store_and_no_broker():
    given = load(Options(), STORE_URL, "flights", store_options("http://127.0.0.1:1"))
    assert given[0] == "stablelog"
    assert given[-1] == STORE_URL
    assert dict(given[1:-1]) == {
        "subscribe": "flights",
        "store.endpoint": "http://127.0.0.1:1",
        "store.access_key_id": "demo",
        "store.secret_access_key": "demo",
        "store.region": "us-east-1",
        "store.allow_http": "true",
    }


def test_each_flight_is_in_one_transaction_of_its_airport():
    days = {airport: by_day(FLIGHTS, airport) for airport in AIRPORTS}
    found = Counter(flight.row for each in days.values() for flights in each.values() for flight in flights)
    assert found == Counter(ROWS)
    first = first_days(days["JFK"], 1)
    assert list(first) == [min(days["JFK"])]


@pytest.mark.parametrize(
    ("request_kind", "key", "kind"),
    [
        ("get", "log/t.flights/=id/0/00-=id.log", GET_LOG),
        ("get", "log/t.flights/=id/0/00-=id.indexes", GET_INDEXES),
        ("get", "log/t.flights/=id/0/manifest/1-1", GET_OTHER),
        ("get", "log/t.__consumer_offsets/=id/0/00-=id.log", GET_OTHER),
        ("head", "log/cluster", GET_OTHER),
        ("list", "", LIST),
        ("delete", "log/t.flights/=id/0/00-=id.log", DELETE),
        ("put", "log/t.flights/=id/0/00-=id.log", PUT),
        ("part", "log/t.flights/=id/0/00-=id.log", PUT),
    ],
)
def test_requests_are_counted_by_kind(request_kind, key, kind):
    assert kind_of(request_kind, key) == kind


def test_the_store_s_process_counts_what_a_client_requests():
    with Children() as children:
        watch = StoreWatch(children, 0)
        with watch.reachable():
            store = open_store(STORE_URL, allow_http=True)
            store.create("t.flights/one.log", b"12345")
            before = watch.requests()
            assert store.get("t.flights/one.log") == b"12345"
            found = watch.requests().since(before)
    assert before.counts[PUT] == 1
    assert (found.counts, found.sizes[GET_LOG]) == (Counter({GET_LOG: 1}), 5)


@pytest.mark.parametrize(
    ("base_offset", "tier"),
    [(0, Tier.STORE), (10, Tier.BOTH), (20, Tier.LOCAL), (30, Tier.GROWING)],
)
def test_a_segment_is_in_a_tier(base_offset, tier):
    assert tier_of(base_offset, [10, 20, 30], remote_end=20) is tier


def test_a_segment_is_lost_if_it_is_neither_on_the_disk_nor_in_the_store():
    assert tier_of(20, [], remote_end=20) is Tier.LOST


def test_the_stays_of_a_segment_have_no_gaps():
    segment = Segment(0, 0)
    for at_s, tier in enumerate((Tier.GROWING, Tier.GROWING, Tier.LOCAL, Tier.STORE, Tier.STORE)):
        segment.note(tier, at_s)
    assert segment.stays == [Stay(Tier.GROWING, 0, 2), Stay(Tier.LOCAL, 2, 3), Stay(Tier.STORE, 3, 4)]


def results_of(*verdicts: Verdict) -> Results:
    """The results of a scene with these reads."""
    phases = [
        Phase("eleven months are written", 0, 8),
        Phase(DISK_LOST, 8, 9),
        *(Phase("a <reader>", 9 + number, 10 + number) for number in range(len(verdicts))),
    ]
    requests = Counter({GET_LOG: 12, GET_INDEXES: 3, LIST: 1})
    reads = [
        Read(
            "a <reader>",
            3 + number,
            "written by then",
            200,
            verdict,
            1.0,
            5_000_000,
            20_000_000,
            requests,
            11,
        )
        for number, verdict in enumerate(verdicts)
    ]
    segments = []
    for place in range(len(AIRPORTS)):
        segment = Segment(place, 0)
        for at_s, tier in enumerate(Tier):
            segment.note(tier, float(at_s))
        segments.append(segment)
    return Results(200, 2, 20, 7, phases, reads, segments, requests, 1 << 19, 30, 5.0)


def test_the_axis_of_time_draws_a_long_phase_without_changes_shorter_than_it_was():
    axis = TimeAxis([Phase("one", 2, 12), Phase(SPARK, 12, 112), Phase("last", 112, 122)], 0, 240)
    assert [axis(at_s) for at_s in (0, 2, 12, 62, 112, 122, 130)] == pytest.approx(
        [0, 0, 100, 120, 140, 240, 240]
    )
    assert axis.shortened == Phase(SPARK, 12, 112)
    assert [at_s for at_s, _ in axis.ticks() if 12 < at_s < 112] == []
    assert axis.ticks()[0] == (2, "0 s")


def test_the_axis_of_time_is_even_if_no_phase_is_long():
    axis = TimeAxis([Phase("one", 0, 10), Phase(SPARK, 10, 11), Phase("last", 11, 20)], 0, 200)
    assert axis.shortened is None
    assert axis(10.5) == pytest.approx(105)


GOOD, BAD = Verdict(200, 0, 0, 0, 0), Verdict(199, 1, 0, 0, 0)


def reported(results):
    console = Console(file=io.StringIO(), width=100)
    return report(console, results), console.file.getvalue()


def test_the_report_has_the_requests_beside_kafka_s():
    ok, said = reported(results_of(GOOD, GOOD))
    assert ok
    assert re.search(r"200 +5\.0 +20\.0 +12 \+ 3 \+ 1 +11 \+ 33", said)
    assert re.search(r"lost +0\n", said)


@pytest.mark.parametrize("verdicts", [(GOOD, BAD), (BAD, GOOD), ()])
def test_the_scene_fails_if_a_reader_lost_a_record(verdicts):
    results = results_of(*verdicts)
    assert not results.is_good
    if verdicts:
        ok, said = reported(results)
        assert not ok
        assert re.search(rf"lost +{verdicts[-1].lost_count}\n", said)


def words_of(path):
    return " ".join("".join(ET.parse(path).getroot().itertext()).split())


def test_the_picture_has_the_tiers_the_reads_and_the_requests(tmp_path):
    draw(tmp_path / "tiers.svg", results_of(GOOD))
    words = words_of(tmp_path / "tiers.svg")
    check_legible(tmp_path / "tiers.svg", width=WIDTH)
    assert (
        "200 flights in 30 transactions, in a partition for each airport, in segments of 512 KiB. At the end 0 are lost"
        in words
    )
    assert "a <reader>" in words
    assert "all 200 flights written by then" in words
    assert "of these 0 lost, 0 duplicated, 0 aborted ones shown" in words
    assert "5.0 MB from the disk, 20.0 MB from the store" in words
    assert "12 + 3 + 1" in words
    assert "11 + 33" in words
    assert "computed from the code of Apache Kafka 4.2, not measured" in words
    assert "7 flights that were only there" in words
    for tier in Tier:
        assert tier.value in words


def test_the_names_of_many_short_phases_cross_nothing_and_stay_in_the_picture(tmp_path):
    results = results_of(GOOD)
    results.phases[:] = [Phase(f"a phase with the name {number}", number, number + 1) for number in range(7)]
    draw(tmp_path / "tiers.svg", results)
    labels = check_legible(tmp_path / "tiers.svg", width=WIDTH)
    assert len([label for label in labels if "a phase with the name" in label.words]) == 2


def test_the_report_of_the_reads_fits_a_narrow_terminal():
    results = results_of(GOOD)
    results.reads[0] = replace(results.reads[0], name="consumer, restored log", expected_count=336_776)
    results.reads[0].requests.update({GET_LOG: 62, GET_INDEXES: 22, LIST: 12})
    console = Console(file=io.StringIO(), width=80)
    report(console, results)
    said = console.file.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert "74 + 25 + 13" in said


def test_the_picture_says_that_records_are_lost(tmp_path):
    draw(tmp_path / "tiers.svg", results_of(BAD))
    words = words_of(tmp_path / "tiers.svg")
    assert "At the end 1 are lost" in words
    assert "199 read of 200 flights written by then" in words
    assert "of these 1 lost" in words


def test_what_is_computed_does_not_look_like_what_was_counted(tmp_path):
    draw(tmp_path / "tiers.svg", results_of(GOOD, GOOD))
    words = words_of(tmp_path / "tiers.svg")
    assert words.count("Kafka, computed *") == 2
    assert "stablelog's are counted, Kafka's are computed" in words
    boxes = [one for one in ET.parse(tmp_path / "tiers.svg").getroot().iter() if one.tag.endswith("rect")]
    dashed = {one.get("fill") for one in boxes if one.get("stroke-dasharray")}
    plain = {one.get("fill") for one in boxes if not one.get("stroke-dasharray")}
    assert len(dashed) == 2
    assert not dashed & plain


def test_each_read_is_told_with_the_flights_that_it_has_to_find():
    assert said_of(results_of(BAD).reads[0]).startswith(
        "a <reader>: 199 flights in 1.0 s. Of the 200 flights written by then: [bold red]1 lost"
    )


def test_a_condition_that_does_not_come_true_is_late(monkeypatch):
    monkeypatch.setattr(scene, "COPY_S_MAX", 0.0)
    with pytest.raises(LateError, match="the sealed segments are not copied after 0 s"):
        scene.wait_until(lambda: False, "the sealed segments are not copied")


@pytest.mark.parametrize(("code", "kind"), [(1, SystemExit), (EXIT_CODE, LateError)])
def test_a_backfill_that_came_too_late_makes_the_scene_late(tmp_path, code, kind):
    class Jobs:
        def start(self, *_, errors):
            errors.write_text("Python worker failed")
            return subprocess.Popen(
                [sys.executable, "-c", f"raise SystemExit({code})"], stdout=subprocess.PIPE, text=True
            )

    with pytest.raises(SystemExit, match=r"(?s)the Spark job .*Python worker failed") as ended:
        Backfill(Jobs(), "nowhere", None, tmp_path / "spark.log").wait_until_ready()
    assert type(ended.value) is kind


@pytest.mark.spark
@pytest.mark.night
def test_a_slice_of_the_scene_loses_nothing(tmp_path):
    picture = tmp_path / "tiers.svg"
    command = [sys.executable, "-m", "demo", "tiers", "--rows", "4000", "--picture", str(picture)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for label in ("lost", "duplicated", "aborted yet shown", "unlike the source"):
        assert re.search(rf"^  {label} +0$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"of the source +4,000  \([1-9][0-9,]* more were aborted\)", done.stdout), done.stdout
    assert re.search(r"Spark, no broker: [1-9][\d,]* flights .* 0 lost, 0 duplicated", done.stdout), (
        done.stdout
    )
    assert "stablelog restore" in done.stdout
    disk, store = (
        float(size) for size in re.search(r"both tiers +[\d,]+ +([\d.]+) +([\d.]+)", done.stdout).groups()
    )
    assert disk > 0
    assert store > 0
    assert words_of(picture).startswith("A log in two tiers")
