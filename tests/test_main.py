"""The program of the command line is `python -m stablelog`, too, and starts without libraries that it does not use."""

import subprocess
import sys
from importlib.metadata import version

from tests.commands import ROOT


def test_the_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "stablelog", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"stablelog {version('stablelog')}\n"
    assert 'stablelog = "stablelog.__main__:run"' in (ROOT / "pyproject.toml").read_text()


def test_the_program_does_not_import_an_installed_hypothesis():
    program = (
        "import atexit, sys; sys.argv = ['stablelog', 'serve', '--help']; from stablelog.__main__ import run; "
        "atexit.register(lambda: print(sys.modules['kio'].__name__, 'hypothesis.strategies' in sys.modules)); run()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "kio False"
