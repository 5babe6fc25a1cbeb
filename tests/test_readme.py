"""README fits on two screens, its figures are those of the pages, and all that it shows runs."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documented
from tests.fresh_copy import bash, make_copy
from tests.mutants import rules

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LINES_MAX, PROGRAM_LINES_MAX = 120, 8
KAFKA_IS_FASTER = "reading records of 100 bytes (**here Kafka is faster**)"
TIMEOUT_S = 120
SETUP_TIMEOUT_S = 1800
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
COMMANDS = re.findall(r"(?<=\n\n)((?:    .*\n)+)", README)


def row_of(text, label):
    """The cells of a row of a table."""
    (cells,) = re.findall(rf"^\| {re.escape(label)} \| (.*) \|$", text, re.M)
    return [cell.strip() for cell in cells.split("|")]


def test_readme_is_short():
    assert len(README.splitlines()) <= LINES_MAX
    assert len(PROGRAMS) == 3
    for program in PROGRAMS:
        assert len([line for line in program.splitlines() if line]) <= PROGRAM_LINES_MAX


@pytest.mark.parametrize(
    ("label", "row"),
    [
        (
            "time within which 99 % of the commits end (transactions with one record)",
            "commit of 1 record, p99 ms",
        ),
        ("memory of the broker at the end of all measurements", "memory after that, MB"),
        (
            "time from the start of the broker until it has acknowledged the first record",
            "start to first acknowledged record, s",
        ),
        (
            "transactions per second of one producer, with one record each",
            "transactions of 1 record, per s",
        ),
        (KAFKA_IS_FASTER, "fetch 100 B, MB/s"),
    ],
)
def test_each_figure_of_readme_is_one_of_the_benchmarks(label, row):
    figures = documented.page("benchmarks.md").partition("<!-- figures -->")[2]
    synced = figures.partition("**Acknowledged on disk")[2].partition("\n**")[0]
    started = figures.partition("**Start, and nothing to do")[2].partition("\n**")[0]
    measured = row_of(synced + started, row)
    assert [cell.split()[0] for cell in row_of(README, label)] == measured[:2]


def test_kafka_is_faster_where_readme_says_so():
    ours, kafkas = (float(cell.split()[0]) for cell in row_of(README, KAFKA_IS_FASTER))
    assert ours < kafkas


def test_the_figures_of_the_proof_are_those_of_the_tests():
    text = " ".join(README.partition("## How it is tested")[2].partition("\n## ")[0].split())
    count = sum(len(rules.read(path.read_text())) for path in (ROOT / "tests/mutants/rules").glob("*.txt"))
    assert f"{count} deliberate faults" in text
    protocol = documented.section("Test suites of clients")
    suites = dict(re.findall(r"^\| (\S+), `[^`]+` \| [\d.]+ \| (\d+ \| \d+ \| \d+) \|$", protocol, re.M))
    (go, librdkafka, python) = (
        suites[name].split(" | ")[::2] for name in ("franz-go", "librdkafka", "kafka-python")
    )
    assert f"franz-go: {go[0]} passed, {go[1]} failed" in text
    assert f"librdkafka: {librdkafka[0]} passed, {librdkafka[1]} failed" in text
    assert f"kafka-python: {python[0]} passed, {python[1]} failed" in text


@pytest.mark.extended
def test_the_program_of_readme_prints_its_transaction(tmp_path):
    (program,) = [text for text in PROGRAMS if "client.transaction" in text]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 [b'3 chairs']\n", "")


@pytest.mark.extended
def test_the_test_of_readme_passes(tmp_path):
    (program,) = [text for text in PROGRAMS if "def test_" in text]
    (tmp_path / "test_shop.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    "is_installed",
    [
        pytest.param(True, id="prepared"),
        pytest.param(
            False, id="from nothing", marks=[pytest.mark.night, pytest.mark.timeout(SETUP_TIMEOUT_S)]
        ),
    ],
)
def test_the_first_lines_run_in_a_copy_of_the_folder(tmp_path, is_installed):
    first, second = COMMANDS
    assert [line.strip() for line in first.splitlines()[:2]] == ["make setup", ". .venv/bin/activate"]
    copy = make_copy(tmp_path, is_installed=is_installed)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    serve = "stablelog serve --data log\n"
    assert first.endswith(serve)
    # The second terminal is the same shell. `consume` returns when it has all that was committed before.
    script = f"{first.replace(serve, f'{serve.strip()} --port {port} &')}\n{second}"
    printed = bash(script, copy, port, SETUP_TIMEOUT_S if not is_installed else TIMEOUT_S)
    assert printed.endswith("hello\nworld\n")
