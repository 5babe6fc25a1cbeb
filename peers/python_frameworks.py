"""Where do stream processing frameworks of Python come from, for tests that run them on a broker?

Each is installed from PyPI, once, into a virtual environment of its own in `target/frameworks`: they pin versions of
clients and libraries that are not those of this project. Where they cannot be had, `NotAvailableError` says why, and
whoever asked skips with that word.

    subprocess.run([python_frameworks.python_with(python_frameworks.FASTSTREAM), "program.py"])
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from peers.apache_kafka import NotAvailableError, locked

FOLDER = Path(__file__).parents[1] / "target" / "frameworks"
INSTALL_TIMEOUT_S = 300


class Framework(NamedTuple):
    """What is installed.

    Attributes:
        name: of the project at PyPI.
        version: of it.
        extras: of the project.
        pins: requirements of the clients that it uses.
    """

    name: str
    version: str
    extras: str = ""
    pins: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        """As an installer takes them."""
        return [f"{self.name}{self.extras}=={self.version}", *self.pins]


FASTSTREAM = Framework(
    "faststream", "0.7.8", "[kafka,confluent]", ("aiokafka==0.14.0", "confluent-kafka==2.16.1")
)
QUIX_STREAMS = Framework("quixstreams", "3.28.1")
FAUST = Framework("faust-streaming", "0.15.3", "", ("aiokafka==0.14.0",))


def python_with(framework: Framework) -> Path:
    """The Python of a virtual environment with a framework; made if it is not there yet, in less than a minute.

    Several processes may ask at once: one makes it, the others wait for it.

    Raises:
        NotAvailableError: it could not be installed.
    """
    digest = hashlib.sha256("\n".join([sys.version, *framework.requirements]).encode()).hexdigest()[:16]
    environment = FOLDER / f"{framework.name}-{digest}"
    installed = environment / ".installed"
    with locked(FOLDER):
        if not installed.exists():
            sys.stderr.write(f"installing {framework.name} {framework.version} from PyPI\n")
            shutil.rmtree(environment, ignore_errors=True)
            _install(environment, framework)
            installed.touch()
    return environment / "bin" / "python"


def _install(environment: Path, framework: Framework) -> None:
    python = environment / "bin" / "python"
    uv = shutil.which("uv")
    if uv is None:
        commands = [
            [sys.executable, "-m", "venv", str(environment)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"],
        ]
    else:
        commands = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(environment)],
            [uv, "pip", "install", "--quiet", "--python", str(python)],
        ]
    commands[1] += framework.requirements
    for command in commands:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotAvailableError(
                f"{framework.name} was not installed from PyPI within {INSTALL_TIMEOUT_S} s"
            ) from None
        if done.returncode != 0:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise NotAvailableError(
                f"{framework.name} could not be installed from PyPI: {lines[-1] if lines else 'it says nothing'}"
            )
