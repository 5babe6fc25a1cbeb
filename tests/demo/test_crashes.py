"""A slice of the demo: both kills, the aborts, the follower, Spark and the picture."""

import io
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.busy import EXIT_CODE, LateError
from demo.children import Children
from demo.crashes import pipeline, scene
from demo.crashes.drivers import Drivers, run_pipeline
from demo.crashes.follow import Follower
from demo.crashes.history import (
    CURVES,
    STREAMED,
    WRITTEN,
    History,
    Kill,
    Txn,
    longest,
    read_transactions,
    stable_offsets,
)
from demo.crashes.picture import LEFT, RIGHT, SPARK, WIDTH, draw, steps
from demo.crashes.scene import Fleet
from demo.svg import BAD, INK
from tests.chaos.confluent import patiently, producer_of
from tests.demo.drawn import check_legible, lines_of
from tests.demo.fake_driver import ERROR
from tests.quick_java import QUICK_JAVA
from tests.spark.reading import make
from tests.waiting import until


class Producers:
    """Children that say what they are told to say, and end with an exit code."""

    def __init__(self, *lines, code=0):
        self._script = "; ".join([*(f"print({line!r})" for line in lines), f"raise SystemExit({code})"])

    def start(self, *_):
        return subprocess.Popen([sys.executable, "-c", self._script], stdout=subprocess.PIPE, text=True)


def test_producers_that_say_nothing_end_the_demo_with_a_sentence(monkeypatch):
    monkeypatch.setattr(scene, "SILENCE_MAX_S", 0.01)
    with pytest.raises(LateError, match="no producer has said anything"):
        Fleet(Producers(), "nowhere", None, 0).next_said()


@pytest.mark.parametrize(("code", "kind"), [(3, SystemExit), (EXIT_CODE, LateError)])
def test_producers_that_always_fail_end_the_demo_with_a_sentence(code, kind):
    fleet = Fleet(Producers("resumes 0", code=code), "nowhere", None, 0)
    fleet.start("JFK")
    with pytest.raises(SystemExit, match="the last one was JFK's") as ended:
        while True:
            airport, word, number = fleet.next_said()
            if word == "ended":
                assert number == code
                fleet.replace(airport, number)
    assert type(ended.value) is kind
    assert fleet.restarts == scene.RESTARTS_MAX + 1


def test_a_consumer_group_that_does_not_catch_up_is_late(monkeypatch):
    monkeypatch.setattr(scene, "CATCH_UP_S", 0)
    follower = Follower("nowhere", History())
    follower.followed.count = 7
    with pytest.raises(LateError, match="the consumer group has read 7 of 9 flights 0 s after"):
        scene.wait_for(follower, 9)
    scene.wait_for(follower, 7)


class FakeDrivers(Children):
    """Children that run a fake driver in place of Spark."""

    def start(self, _module, *arguments, errors=None):
        return super().start("tests.demo.fake_driver", *arguments, errors=errors)


@pytest.fixture
def supervise(tmp_path):
    """Run the pipeline with fake drivers, of which the first ones fail in this way. Return what is said and seen."""

    def run(failures, code):
        for name, value in (("failures", failures), ("code", code), ("rows", 0)):
            (tmp_path / name).write_text(str(value))
        said, history = io.StringIO(), History()
        console = Console(file=said, width=80)
        found = ended = None
        with FakeDrivers() as children:
            used = Drivers(children, "nowhere", tmp_path / "checkpoint", 10)
            try:
                found = run_pipeline(console, used, 10, history)
            except SystemExit as error:
                ended = error
        return said.getvalue(), history, found, ended

    return run


def test_a_driver_that_fails_once_is_replaced_and_its_whole_error_is_printed(supervise):
    said, history, failures, ended = supervise(1, 1)
    assert ended is None
    assert failures == 1
    assert [one.what for one in history.kills] == ["the Spark driver"]
    assert history.progress[STREAMED][-1][1] == 10
    assert "a driver has ended with an error of its own, exit code 1" in said
    for row in ERROR.splitlines():
        assert row.strip() in said
    assert said.count("Task not serializable") == said.count("Caused by: java.io.IOException: [why]") == 1
    assert "restart 1 of at most 2: a new driver goes on from the checkpoint" in said
    assert said.index("Caused by") < said.index("restart 1 of") < said.index("killed -9 in the middle")


def test_a_pipeline_without_errors_has_no_restart(supervise):
    said, history, failures, ended = supervise(0, 1)
    assert (failures, ended, len(history.kills)) == (0, None, 1)
    assert "restart" not in said


@pytest.mark.parametrize(("code", "kind"), [(1, SystemExit), (EXIT_CODE, LateError), (-9, SystemExit)])
def test_drivers_that_always_fail_end_the_demo_with_their_errors(supervise, code, kind):
    said, _, _, ended = supervise(99, code)
    assert type(ended) is kind
    assert "3 Spark drivers have ended with errors of their own, which are printed above" in str(ended)
    assert said.count("Caused by: java.io.IOException: [why]") == 3
    assert "restart 2 of at most 2" in said
    assert "restart 3" not in said


class Starting:
    """A streaming query that says these things of itself, and then has failed."""

    def __init__(self, *messages):
        self.messages = [*messages]

    @property
    def isActive(self):
        return bool(self.messages)

    @property
    def status(self):
        return {"message": self.messages.pop(0)}


def test_the_next_query_starts_when_the_sources_of_the_one_before_are_open(monkeypatch):
    monkeypatch.setattr(pipeline, "POLL_S", 0)
    query = Starting("Initializing StreamExecution", "Initializing sources", "Processing new data", "more")
    pipeline.wait_for_sources(query)
    assert query.messages == ["more"]


def test_the_next_query_starts_if_the_one_before_has_failed(monkeypatch):
    monkeypatch.setattr(pipeline, "POLL_S", 0)
    query = Starting("Initializing sources", "Initializing sources")
    pipeline.wait_for_sources(query)
    assert not query.isActive


class Query:
    """A streaming query that has copied seven rows, and runs or has ended, with or without an error."""

    def __init__(self, error=None, *, runs=False):
        self.error, self.isActive = error, runs
        self.lastProgress = {"batchId": 3, "numInputRows": 7}

    def awaitTermination(self):
        if self.error is not None:
            raise self.error


def test_a_driver_prints_its_last_batch_too(capsys):
    pipeline.follow([Query(), Query()])
    assert capsys.readouterr().out == "batch 7\n"


def test_a_driver_ends_when_one_of_its_queries_has_failed():
    with pytest.raises(ValueError, match="no room"):
        pipeline.follow([Query(runs=True), Query(ValueError("no room"))])


# The scene with larger micro-batches: each takes seconds, however few rows it has.
SLICE = """
import sys
from demo.__main__ import main
from demo.crashes import drivers
drivers.BATCHES = 2
sys.exit(main())
"""


@pytest.mark.extended
@pytest.mark.spark
def test_a_slice_of_the_demo_loses_nothing(tmp_path):
    picture = tmp_path / "flights.svg"
    command = [sys.executable, "-c", SLICE, "--rows", "3000", "--picture", str(picture)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=800,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    for label in ("lost", "duplicated", "seen", "follower"):
        assert words[words.index(label) + 1] == "0", done.stdout
    assert "back after" in done.stdout
    assert "Spark: killed -9" in done.stdout
    assert "a successor fences it" in done.stdout
    assert picture.read_text().startswith("<svg")


def test_the_last_stable_offset_is_that_of_the_oldest_open_transaction():
    one, two = Txn(0, 10, True, 1.0, 4.0), Txn(3, 12, False, 2.0, 5.0)
    alone = Txn(13, 15, True, 6.0, 7.0)
    found = stable_offsets([one, two, alone])
    assert found == [(1.0, 0), (2.0, 0), (4.0, 3), (5.0, 13), (6.0, 13), (7.0, 16)]
    assert longest([one, two, alone], 3.0) == one
    assert longest([one, two, alone], 9.0) is None


def test_the_transactions_of_the_picture_are_those_of_the_files(stablelog_broker):
    began_ms = time.time() * 1000
    make(stablelog_broker.bootstrap, "drawn", 1)
    producer = producer_of(stablelog_broker.bootstrap, "drawn", timeout_ms=60_000)
    for number in range(4):
        producer.begin_transaction()
        producer.produce("drawn", b"x", partition=0)
        producer.flush(60)
        patiently(producer.abort_transaction if number == 1 else producer.commit_transaction)
    directory = stablelog_broker.data / "drawn-0"
    until(lambda: len(read_transactions(directory, began_ms)) == 4, "a marker is missing")
    found = read_transactions(directory, began_ms)
    assert [(one.first_offset, one.marker_offset, one.committed) for one in found] == [
        (0, 1, True),
        (2, 3, False),
        (4, 5, True),
        (6, 7, True),
    ]
    assert all(-1 < one.began_s <= one.ended_s < 60 for one in found)


@pytest.mark.parametrize("kill_count", [0, 1, 3])
def test_the_picture_shows_each_kill(tmp_path, kill_count):
    history = History()
    for name in CURVES:
        history.progress[name] += [(1.0, 10), (9.0, 1000)]
    history.kills += [
        Kill(2.0, "the producer of JFK", WRITTEN),
        Kill(5.0, "the broker", WRITTEN),
        Kill(8.0, "the Spark driver", STREAMED),
    ][:kill_count]
    transactions = [
        Txn(2 * number, 2 * number + 1, number != 9, number / 5, number / 5 + 0.1) for number in range(40)
    ]
    draw(tmp_path / "flights.svg", "Flights & kills", "flights-1", history, transactions)
    picture = ET.fromstring((tmp_path / "flights.svg").read_text())
    words = [element.text for element in picture.iter() if element.text]
    check_legible(tmp_path / "flights.svg", width=WIDTH)
    for kill in history.kills:
        assert f"{kill.what}: kill -9" in words
    assert len([one for one in words if one.startswith("open for")]) == min(kill_count, 2)


def test_the_curve_of_spark_rises_in_steps():
    assert steps([(0.0, 0), (5.0, 0), (6.0, 10), (9.0, 20)]) == [
        (5.0, 0), (6.0, 0), (6.0, 10), (9.0, 10), (9.0, 20)
    ]  # fmt: skip


def drawn_with(path, *kills, transactions=(), batches=((5.0, 0), (7.0, 50), (9.0, 100))):
    """A picture of ten seconds with these kills, as its elements."""
    history = History()
    history.progress[WRITTEN].append((4.0, 100))
    history.progress[STREAMED] += batches
    history.progress[STREAMED].append((10.0, 100))
    history.kills += kills
    draw(path, "Flights & kills", "flights-1", history, transactions)
    return list(ET.parse(path).getroot().iter())


def test_the_picture_has_a_dot_for_each_micro_batch(tmp_path):
    elements = drawn_with(tmp_path / "flights.svg", batches=[(2.0, 0), (5.0, 20), (7.0, 70), (9.0, 100)])
    dots = [element for element in elements if element.tag.endswith("circle")]
    assert [float(dot.get("cx")) for dot in dots] == pytest.approx(
        [LEFT + at_s / 10 * (RIGHT - LEFT) for at_s in (5, 7, 9)], abs=0.1
    )
    assert {dot.get("fill") for dot in dots} == {SPARK}
    (curve,) = (
        one.get("points") for one in elements if one.tag.endswith("line") and one.get("stroke") == SPARK
    )
    corners = [point.split(",") for point in curve.split()]
    assert all(before[0] == after[0] or before[1] == after[1] for before, after in pairwise(corners))
    assert any("a step for each micro-batch" in (element.text or "") for element in elements)


@pytest.mark.parametrize(
    "times_s", [(2.0, 2.4, 9.5), (9.2, 9.6, 9.8), (0.5, 0.6, 0.7), (7.2, 8.8, 9.9), (3.0, 8.0, 9.5)]
)
def test_the_labels_of_kills_cross_no_label_and_no_line(tmp_path, times_s):
    path = tmp_path / "flights.svg"
    what = (("the producer of JFK", WRITTEN), ("the broker", WRITTEN), ("the Spark driver", STREAMED))
    drawn_with(path, *(Kill(at_s, *each) for at_s, each in zip(times_s, what, strict=True)))
    labels = check_legible(path, width=WIDTH)
    lines = lines_of(path, INK)
    assert len(lines) == 3
    assert not [
        (label.words, at)
        for label in labels
        for at, top, bottom in lines
        if label.left < at < label.right and min(label.bottom, bottom) - max(label.top, top) > 1
    ]


@pytest.mark.parametrize("seconds", [0.004, 0.02])
def test_the_enlarged_parts_of_the_picture_show_aborted_transactions(tmp_path, seconds):
    """One in twenty is aborted, and each takes a few milliseconds of the seconds that are drawn."""
    transactions, at_s = [], 0.0
    for number in range(200):
        lasts_s = 1.5 if number in (70, 140) else seconds
        transactions.append(Txn(20 * number, 20 * number + 19, number % 20 != 15, at_s, at_s + lasts_s))
        at_s += lasts_s
    elements = drawn_with(
        tmp_path / "flights.svg",
        *(
            Kill(transactions[number].began_s + 0.1, what, WRITTEN)
            for number, what in ((70, "one"), (140, "other"))
        ),
        transactions=transactions,
    )
    crosses = [one for one in elements if one.tag.endswith("path") and one.get("stroke") == BAD]
    assert len(crosses) >= 1 + 2 * 2  # in the legend, and before and after each kill
    words = [element.text for element in elements]
    assert words.count("open for 1.5 s,") == 2
    assert words.count("aborted") == 1
