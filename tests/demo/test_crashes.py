"""A slice of the demo: both kills, the aborts, the follower, Spark and the picture."""

import subprocess
import sys
from pathlib import Path

import pytest

from demo.crashes import scene
from demo.crashes.scene import Fleet


class Producers:
    """Children that say what they are told to say."""

    def __init__(self, *lines):
        self._script = "; ".join(f"print({line!r})" for line in lines)

    def start(self, *_):
        return subprocess.Popen(
            [sys.executable, "-c", self._script or "pass"], stdout=subprocess.PIPE, text=True
        )


def test_producers_that_say_nothing_end_the_demo_with_a_sentence(monkeypatch):
    monkeypatch.setattr(scene, "SILENCE_MAX_S", 0.01)
    with pytest.raises(SystemExit, match="no producer has said anything"):
        Fleet(Producers(), "nowhere", None, 0).next_said()


def test_producers_that_always_fail_end_the_demo_with_a_sentence():
    fleet = Fleet(Producers("resumes 0"), "nowhere", None, 0)
    fleet.start("JFK")
    with pytest.raises(SystemExit, match="the last one was JFK's"):
        while True:
            airport, word, _ = fleet.next_said()
            if word == "ended":
                fleet.replace(airport)
    assert fleet.restarts == scene.RESTARTS_MAX + 1


# The scene with larger micro-batches: each takes seconds, however few rows it has.
SLICE = """
import sys
from demo.__main__ import main
from demo.crashes import scene
scene.SPARK_BATCHES = 2
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_slice_of_the_demo_loses_nothing(tmp_path):
    picture = tmp_path / "flights.svg"
    command = [sys.executable, "-c", SLICE, "--rows", "3000", "--picture", str(picture)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    for label in ("lost", "duplicated", "seen", "follower"):
        assert words[words.index(label) + 1] == "0", done.stdout
    assert "back after" in done.stdout
    assert "Spark: killed -9" in done.stdout
    assert "a successor fences it" in done.stdout
    assert picture.read_text().startswith("<svg")
