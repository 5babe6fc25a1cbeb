"""A slice of the demo: both kills, the aborts, the follower, Spark and the picture."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.busy import EXIT_CODE, LateError
from demo.crashes import scene
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
from demo.crashes.picture import draw
from demo.crashes.scene import Fleet
from tests.chaos.confluent import patiently, producer_of
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


class Drivers:
    """Spark drivers that all end with an exit code."""

    def __init__(self, code):
        self._code = code

    def next(self):
        return subprocess.Popen(
            [sys.executable, "-c", f"raise SystemExit({self._code})"], stdout=subprocess.PIPE, text=True
        )

    def why_it_failed(self):
        return "its last words"


@pytest.mark.parametrize(("code", "kind"), [(1, SystemExit), (EXIT_CODE, LateError)])
def test_drivers_that_always_fail_end_the_demo_with_a_sentence(code, kind):
    console = Console(file=io.StringIO())
    with pytest.raises(SystemExit, match="its last words") as ended:
        scene.run_pipeline(console, Drivers(code), 10, History())
    assert type(ended.value) is kind


# The scene with larger micro-batches: each takes seconds, however few rows it has.
SLICE = """
import sys
from demo.__main__ import main
from demo.crashes import scene
scene.SPARK_BATCHES = 2
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
    for kill in history.kills:
        assert f"{kill.what}: kill -9" in words
    assert len([one for one in words if one.startswith("open for")]) == min(kill_count, 2)
