"""The blocks of the guides for operators, run as they stand there: only ports and directories are others."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import stablelog
from stablelog.broker.settings.config import BrokerConfig
from stablelog.cli.properties import read_properties
from tests import documented
from tests.commands import run
from tests.waiting import until

BIN = str(Path(sys.executable).parent)
TIMEOUT_S = 120
STORE = "file:///srv/objects"

(SETTINGS,) = documented.take("deploy.md", "cat > server.properties")
(SERVE,) = documented.take("deploy.md", "stablelog serve --data data --config")
(FIRST_RECORD,) = documented.take("deploy.md", "stablelog consume greetings")
(UNIT,) = documented.take("deploy.md", "[Service]")
(PROGRAM,) = documented.take("deploy.md", "with stablelog.serve()")
(GROUP,) = documented.take("deploy.md", "stablelog.group=payments")
(VERIFY,) = documented.take("back-up.md", "stablelog verify")
(RESTORE,) = documented.take("back-up.md", "stablelog restore")
(SERVE_RESTORED,) = documented.take("back-up.md", "stablelog serve")
(CHECK,) = documented.take("tiers.md", "stablelog storage check")
(SERVE_TIERS,) = documented.take("tiers.md", "stablelog serve")
(LISTED,) = documented.take("tiers.md", "stablelog storage ls")
(TIERED_TOPIC,) = documented.take("tiers.md", "stablelog topics create flights")
PROPERTIES = [
    *documented.take("secure.md", "listener.security.protocol.map"),
    *documented.take("secure.md", "ssl.principal.mapping.rules"),
    *(
        block
        for block in documented.take("secure.md", "authorizer.class.name")
        if not block.startswith(("umask", "export"))
    ),
]


class Machine:
    """A directory in which the blocks of a page run, with a free port in place of 9092."""

    def __init__(self, directory):
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "STABLELOG_BOOTSTRAP": f"127.0.0.1:{self.port}",
        }

    def here(self, block):
        """The block, for this machine."""
        store = f"file://{self.directory}/objects"
        return block.replace("9092", str(self.port)).replace("=9644", "=0").replace(STORE, store)

    def bash(self, block):
        done = subprocess.run(
            ["bash", "-e", "-c", self.here(block)],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def serving(self, block, *more):
        """Run the command of a block, which is that of a broker."""
        told = self.directory / "serve.log"
        words = [*shlex.split(self.here(block)), *more, "--set", "stablelog.disk.reserve.bytes=0"]
        with (
            told.open("w") as log,
            subprocess.Popen(
                words, cwd=self.directory, env=self.environment, stdout=log, stderr=log
            ) as broker,
        ):
            try:
                until(lambda: "is ready" in told.read_text() or broker.poll() is not None, told.read_text)
                yield
            finally:
                broker.send_signal(signal.SIGTERM)
        assert broker.returncode == 0, told.read_text()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.extended
def test_a_broker_is_deployed(machine):
    machine.bash(SETTINGS)
    with machine.serving(SERVE):
        assert machine.bash(FIRST_RECORD).splitlines()[-1] == "hello"
        assert "payments" in machine.bash(GROUP)


def test_the_unit_starts_a_broker_with_options_that_it_has(tmp_path):
    (command,) = re.findall(r"^ExecStart=(\S+) (serve .*)$", UNIT, re.M)
    options = re.findall(r"--[a-z]+", command[1])
    assert options
    help_text = run("serve", "--help").stdout
    assert all(option in help_text for option in options)
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "stablelog.service"
        unit.write_text(UNIT.replace(command[0], sys.executable).replace("User=stablelog\n", ""))
        done = subprocess.run(
            ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
        )
        assert "stablelog.service" not in done.stderr


def test_a_program_starts_a_broker(capsys):
    exec(PROGRAM, {"stablelog": stablelog})
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", capsys.readouterr().out)


@pytest.mark.extended
def test_a_topic_has_tiers_and_a_lost_disk_is_restored(machine):
    port = ("--port", str(machine.port))
    machine.bash("mkdir objects")
    machine.bash(CHECK)
    with machine.serving(SERVE_TIERS, *port, "--set", "remote.log.manager.task.interval.ms=200"):
        machine.bash(TIERED_TOPIC)
        machine.bash("echo hello | stablelog produce flights")
        until(lambda: "flights" in machine.bash(f"{LISTED.strip()} || true"), "a manifest of the topic")
    machine.bash("cp -a data backup")
    machine.bash(VERIFY)
    machine.bash("mv data lost")
    machine.bash(RESTORE)
    assert "flights" in (machine.directory / "report.json").read_text()
    with machine.serving(SERVE_RESTORED, *port):
        assert "flights" in machine.bash("stablelog topics list")


@pytest.mark.parametrize("block", PROPERTIES, ids=lambda block: block.partition("=")[0])
def test_the_settings_of_a_secure_broker_are_read(tmp_path, block):
    path = tmp_path / "server.properties"
    path.write_text(block)
    given = read_properties(path)
    assert BrokerConfig(given).static == given
