"""A slice of the demo: both kills, the aborts, the follower, Spark and the picture."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.spark
def test_a_slice_of_the_demo_loses_nothing(tmp_path):
    picture = tmp_path / "flights.svg"
    command = [sys.executable, "-m", "demo", "--rows", "3000", "--picture", str(picture)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=290, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    for label in ("lost", "duplicated", "seen", "follower"):
        assert words[words.index(label) + 1] == "0", done.stdout
    assert "back after" in done.stdout
    assert "a successor fences it" in done.stdout
    assert picture.read_text().startswith("<svg")
