"""What a newcomer types first does what README says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = pytest.mark.extended

README = (Path(__file__).parents[1] / "README.md").read_text()
TIMEOUT_S = 120
COMMAND = "import sys; from stablelog.cli.main import run; sys.argv[0] = 'stablelog'; run()"


def stablelog(arguments, bootstrap, given=""):
    """What a command prints."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments.split(), "--bootstrap", bootstrap],
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    ).stdout


def test_the_first_log_gives_back_what_went_in(stablelog_broker):
    (given, produce) = re.findall(r"^    printf '(.*)' \| stablelog (produce .*)$", README, re.M)[0]
    (consume,) = re.findall(r"^    stablelog (consume .*)$", README, re.M)
    (create,) = re.findall(r"^    stablelog (topics create .*)$", README, re.M)
    stablelog(create, stablelog_broker.bootstrap)
    stablelog(produce, stablelog_broker.bootstrap, given.replace(r"\n", "\n"))
    until(
        lambda: stablelog(consume, stablelog_broker.bootstrap) == "hello\nworld\n",
        "what was committed does not come",
        patience_s=TIMEOUT_S,
    )


def test_the_first_program_runs_and_its_client_complains_of_nothing(tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "FAIL" not in done.stderr, "librdkafka complains of a broker that has gone before its client"
