"""No cut shows a part of a transaction, in whatever history; and the histories find whoever breaks that.

They run in a process of their own, in which sets of names have the same order each time: a seed is a history.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuts.mutants import MUTANTS, changed
from tests.scale import SEED

COUNT = int(os.environ.get("STABLELOG_HISTORIES", "80"))
ROOT = Path(__file__).parents[2]


def run(*arguments, timeout_s):
    return subprocess.run(
        [sys.executable, "-m", "tests.cuts.history", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        check=False,
    )


@pytest.mark.extended
@pytest.mark.timeout(600 + COUNT)
def test_no_cut_shows_a_part_of_a_transaction():
    done = run("--seeds", f"{SEED}:{SEED + COUNT}", timeout_s=590 + COUNT)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


# Faults that few histories find; from this seed on, both are found early.
RARE = {"recovered_as_decided", "deletions_forget_open_transactions"}
RARE_SEED = 35


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_fault_changes_something_that_is_there(mutant):
    sound, faulty = changed(mutant)
    assert faulty is not sound


@pytest.mark.night
@pytest.mark.parametrize("first", [0, RARE_SEED])
def test_the_histories_find_every_fault_that_is_made_on_purpose(first):
    known = {mutant.__name__ for mutant in MUTANTS}
    assert known >= RARE
    names = sorted(known - RARE if first == 0 else RARE)
    done = run("--seeds", f"{first}:{first + 400}", "--mutants", *names, timeout_s=800)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": found by seed ") == len(names)
