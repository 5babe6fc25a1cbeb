"""What a type checker tells a user: right programs have no error, and a misspelt name or a swapped argument has one."""

import re
import subprocess
import sys

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.extended

CASES = ROOT / "tests" / "typing_cases.py"


def test_mypy_accepts_what_is_right_and_refuses_each_mistake():
    mistakes = {
        number: words
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        for words in re.findall(r"# wrong: (.*)$", line)
    }
    # With the project's own options, which are strict, mypy finds its results about the package in its cache.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found = dict.fromkeys(mistakes, "")
    for line in done.stdout.splitlines():
        where = re.match(r"tests/typing_cases\.py:(\d+): error: (.*)$", line)
        if where:
            number = int(where[1])
            assert number in mistakes, line
            found[number] += where[2]
    assert done.stderr == ""
    for number, words in mistakes.items():
        assert words in found[number], f"line {number}: {found[number] or done.stdout}"
