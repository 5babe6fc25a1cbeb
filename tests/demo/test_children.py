"""Nothing that the demo has started outlives it."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[2]
NAME = "STABLELOG_TEST_FAMILY"
DEADLINE_S = 120
PARENT = """
import subprocess, sys, time
from demo.children import Children

with Children() as children:
    child = children.start("tests.demo.child_with_a_child")
    print(child.stdout.readline(), flush=True)
    {then}
"""

HANGING_BROKER = """
import stablelog.embedded
from demo.children import Children

class Broker(stablelog.embedded.EmbeddedBroker):
    def _launch(self):
        process = super()._launch()
        print("it is started", flush=True)
        return process

stablelog.embedded.EmbeddedBroker = Broker
stablelog.embedded.PROCESS = "import time; time.sleep(600)"
with Children(), stablelog.embedded.serve():
    pass
"""


class Family:
    """A process and all that descend from it: they inherit a name in their environment."""

    def __init__(self) -> None:
        self._mark = f"{NAME}={uuid.uuid4()}"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = os.environ | dict([self._mark.split("=")])
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def members(self) -> dict[int, str]:
        """Those that are running, and their command lines."""
        return dict(self._members())

    def _members(self) -> Iterator[tuple[int, str]]:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended, or is not ours
            if self._mark.encode() in environment and command:
                yield int(process.name), command.replace(b"\0", b" ").decode(errors="replace")

    def wait_until(self, *, is_there: str) -> None:
        """Wait for a member whose command line has this word."""
        until(
            lambda: any(is_there in command for command in self.members().values()),
            lambda: f"no {is_there} among {self.members()}",
            patience_s=DEADLINE_S,
        )

    def wait_for_the_end(self) -> None:
        """Wait until nobody is left."""
        until(lambda: not self.members(), self.members, patience_s=DEADLINE_S)

    def kill(self) -> None:
        """Kill whoever is left."""
        for process_id in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


@pytest.fixture
def family() -> Iterator[Family]:
    found = Family()
    yield found
    found.kill()


# A signal that comes right before one long sleep would be handled after it: Python looks for signals between its steps.
FOR_LONG = "while True: time.sleep(0.1)"


@pytest.mark.parametrize(
    ("then", "number", "code"),
    [
        (FOR_LONG, signal.SIGTERM, 128 + signal.SIGTERM),
        (FOR_LONG, signal.SIGINT, 128 + signal.SIGINT),
        ("raise ValueError('an exception')", None, 1),
        ("pass", None, 0),
    ],
    ids=["SIGTERM", "Ctrl-C", "exception", "end"],
)
def test_a_child_and_what_it_has_started_end_with_the_demo(family, then, number, code):
    parent = family.start("-c", PARENT.format(then=then))
    assert parent.stdout is not None
    assert parent.stdout.readline() == "both run\n"
    if number is not None:
        parent.send_signal(number)
    parent.communicate(timeout=DEADLINE_S)
    assert parent.returncode == code
    family.wait_for_the_end()


@pytest.mark.extended
def test_a_broker_that_does_not_come_up_ends_with_who_waits_for_it(family):
    demo = family.start("-c", HANGING_BROKER)
    assert demo.stdout is not None
    assert demo.stdout.readline() == "it is started\n"
    family.wait_until(is_there="-c import time; time.sleep")
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 128 + signal.SIGINT
    family.wait_for_the_end()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("crashes", ("stablelog.cli.serve", "demo.crashes.produce", "org.apache.spark")),
        ("cuts", ("stablelog.cli.serve", "demo.cuts.spark_job", "org.apache.spark")),
        ("tiers", ("stablelog.cli.serve", "demo.tiers.store", "org.apache.spark")),
    ],
)
def test_ctrl_c_ends_the_broker_and_all_other_processes(family, tmp_path, scene, words):
    demo = family.start("-m", "demo", scene, "--rows", "20000", "--data", str(tmp_path / "data"))
    for word in words:
        family.wait_until(is_there=word)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 128 + signal.SIGINT, said
    assert "Traceback" not in said
    family.wait_for_the_end()
