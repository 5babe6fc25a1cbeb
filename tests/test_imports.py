"""What a process of stablelog imports before it works: each module costs every start processor time.

`python -m bench --only imports` measures the time. These tests have no clock: they hold which modules there may be.
"""

import subprocess
import sys

from bench.imports import BROKER, HEALTH

# The packages that a broker may import. `crc32c` is not among them: `stablelog.crc32c` loads its extension alone.
OF_A_BROKER = {"stablelog", "kio", "phantom", "typing_extensions", "cramjam", "_cramjam"}
# Parts of stablelog and of Python that a broker imports only when it uses them.
LATER = (
    "stablelog.client",
    "stablelog.ops",
    "stablelog.spark",
    "stablelog.testing",
    "stablelog.tier",
    "stablelog.cli.core_commands",
    "stablelog.cli.output",
    "stablelog.broker.monitoring.health_pages",
    "stablelog.broker.monitoring.metrics_server",
    "stablelog.broker.security.logins",
    "kio.serial",
    "argparse",
    "email",
    "http",
    "importlib.metadata",
    "secrets",
    "shutil",
    "tempfile",
    "wsgiref",
    "zipfile",
)
TELL = "print('MODULES', *(name for name in {*sys.modules} - before if sys.modules[name] is not None))"
VERSION = "import sys; from stablelog.__main__ import run; sys.argv = ['stablelog', '--version']; run()"


def imported(program, after="pass"):
    """The modules that a program imports, without those of the interpreter's start and of the program `after`."""
    text = f"{after}\nimport sys; before = set(sys.modules)\n{program}\n{TELL}"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def packages(modules):
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


def ours(modules):
    return {name for name in modules if name.partition(".")[0] == "stablelog"}


def test_a_broker_imports_what_it_needs_to_start():
    found = imported(BROKER)
    assert packages(found) <= OF_A_BROKER
    late = {name for name in found if any(f"{name}.".startswith(f"{part}.") for part in LATER)}
    assert not late


def test_the_version_needs_no_command():
    found = imported(VERSION)
    assert ours(found) == {
        "stablelog",
        "stablelog.__main__",
        "stablelog.cli",
        "stablelog.cli.main",
        "stablelog.cli.output",
    }
    assert packages(found) == {"stablelog"}
    assert not found & {
        "argparse",
        "asyncio",
        "dataclasses",
        "inspect",
        "logging",
        "pathlib",
        "socket",
        "subprocess",
    }


def test_a_question_of_health_needs_no_broker():
    found = imported(HEALTH)
    assert {name.removeprefix("stablelog.cli.") for name in ours(found)} == {
        *("stablelog", "stablelog.__main__", "stablelog.cli", "stablelog.errors", "stablelog.json_text"),
        *(
            "stablelog.types",
            "core_commands",
            "exit_codes",
            "health",
            "main",
            "output",
            "pairs",
            "properties",
        ),
    }
    assert packages(found) == {"stablelog", "kio"}
    assert not found & {"asyncio", "http", "email", "logging", "ssl", "subprocess", "urllib.request"}


def test_a_test_session_imports_the_plugin_alone():
    """The plugin is loaded in every run of pytest where stablelog is installed, also for tests that do not use it."""
    plugin = imported("import stablelog.testing.pytest_plugin", after="import pytest")
    assert ours(plugin) == {"stablelog", "stablelog.testing", "stablelog.testing.pytest_plugin"}
    assert packages(plugin) == {"stablelog"}
