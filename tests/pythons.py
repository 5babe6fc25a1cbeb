"""The quick tests on every Python from 3.11 to 3.14 that is found, each in an environment of its own.

python -m tests.pythons

It looks for `python3.N` on the path and among the versions of pyenv, and names the versions that it does not find. The exit
code is 1 if tests failed on one, or if it finds none at all.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINORS = (11, 12, 13, 14)
# The rooms that decide, both clients against a broker, and the commands: without Spark and other clients.
TESTS = (
    "tests/batch",
    "tests/wire",
    "tests/log",
    "tests/coordinators",
    "tests/commit_order",
    "tests/tier",
    "tests/client",
)
# Helpers of these tests import PySpark, numpy and aiokafka.
REQUIREMENTS = (
    "pytest>=8,<9.2",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "confluent-kafka",
    "aiokafka",
    "trustme",
)


def interpreters():
    """The interpreter of each minor version: {11: path}."""
    found = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in MINORS:
        of_pyenv = sorted(pyenv.glob(f"3.{minor}.*/bin/python"))
        on_path = shutil.which(f"python3.{minor}")
        for path in (*reversed(of_pyenv), *([on_path] if on_path else [])):
            words = [str(path), "-c", "import sys, ssl, ctypes; print(sys.version_info[1])"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.stdout.strip() == str(minor):
                found[minor] = str(path)
                break
    return found


def is_green(minor, interpreter):
    """Install the project for one interpreter, and run the tests."""
    directory = ROOT / "target" / f"python3.{minor}"
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", directory], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-e", f"{ROOT}[all,spark]", *REQUIREMENTS], check=True)
    tests = [
        python,
        "-m",
        "pytest",
        "-q",
        "-n",
        "auto",
        "--dist",
        "loadgroup",
        "-m",
        "not extended",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run([*tests, *TESTS], cwd=ROOT, check=False).returncode == 0


def main():
    found = interpreters()
    failed = []
    for minor, interpreter in found.items():
        print(f"Python 3.{minor}: {interpreter}", flush=True)
        if not is_green(minor, interpreter):
            failed.append(minor)
    for minor in MINORS:
        state = "not found" if minor not in found else "failed" if minor in failed else "passed"
        print(f"Python 3.{minor}: {state}")
    sys.exit(bool(failed) or not found)


if __name__ == "__main__":
    main()
