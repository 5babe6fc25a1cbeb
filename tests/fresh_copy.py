"""A copy of the project's folder, in which a test types what README says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "target", "dist", "__pycache__", ".hypothesis", ".*_cache", "*.egg-info"
)
SCRIPT = """#!{python}
from stablelog.__main__ import run
run()
"""


def make_copy(directory, *, is_installed):
    """Copy the folder. With `is_installed`, the copy has an environment with the packages of this one, in which
    `make setup` finds nothing to do: an installation takes minutes and needs an index of packages.
    """
    copy = directory / "stablelog"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
    if is_installed:
        _make_environment(copy)
    return copy


def _make_environment(copy):
    environment = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "aa_copy.pth").write_text("\n".join([str(copy / "src"), *others]) + "\n")
    command = environment / "bin" / "stablelog"
    command.write_text(SCRIPT.format(python=environment / "bin" / "python"))
    command.chmod(0o755)
    (environment / ".installed").touch()


def bash(script, directory, port, timeout_s):
    """Run a script as a shell with jobs runs it; commands find the broker at a port. Its jobs end with it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        ["bash", "-c", f"set -m\nset -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        cwd=directory,
        env=kept | {"STABLELOG_BOOTSTRAP": f"127.0.0.1:{port}", "STABLELOG_TIMEOUT": "60", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
