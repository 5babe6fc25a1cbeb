"""What a command imports before it asks its question: each module costs every command processor time."""

import subprocess
import sys

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.extended

PROGRAM = """
import sys
sys.modules["hypothesis"] = None
from stablelog.cli.commands import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    found = sys.modules
    names = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names and found[name] is not None}
    print("MODULES", *sorted(names))
"""
LISTED = ROOT / "tests" / "cli" / "imported_modules.txt"


def imported(*words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True, timeout=120
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES"))
    return set(line.split()[1:])


def ours(names):
    return {name for name in names if name.startswith(("stablelog.", "kio.schema."))}


def test_a_command_that_asks_one_question_imports_what_it_needs_alone(stablelog_broker):
    """A new module in the list has to be worth its time: another place is an import in the function that uses it."""
    found = imported("topics", "list", "--bootstrap", stablelog_broker.bootstrap)
    assert ours(found) == set(LISTED.read_text().split())
    packages = {name.split(".")[0] for name in found - ours(found) if not name.startswith("_")}
    known = "stablelog kio crc32c typer annotated_doc click shellingham typing_extensions"
    assert packages - set(known.split()) == set()
