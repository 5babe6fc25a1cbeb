"""The commands of docs/guides/secure.md do what the document says: a team's broker with TLS, passwords and ACLs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documented
from tests.waiting import until

pytestmark = pytest.mark.extended

TEAM = [
    *documented.take("secure.md", "umask 077"),
    *documented.take("secure.md", "export STABLELOG_BOOTSTRAP"),
]
(ACLS,) = documented.take("secure.md", "stablelog acls list")
(QUOTAS,) = documented.take("secure.md", "stablelog quotas list")
BIN = str(Path(sys.executable).parent)
TIMEOUT_S = 120


def commands(port):
    """The two blocks of the recipe for a team, for this machine and a free port."""
    assert len(TEAM) == 2
    return [block.replace("log.example.org", "localhost").replace("9094", str(port)) for block in TEAM]


def bash(directory, script):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_team_has_a_broker_with_tls_passwords_and_acls(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before, after = commands(port)
    setup, serve = before.rstrip().rsplit("\n", 1)
    done = bash(tmp_path, setup)
    assert done.returncode == 0, done.stderr
    command = [f"{BIN}/stablelog", *serve.split()[1:], "--set", "stablelog.disk.reserve.bytes=0"]
    with (
        (tmp_path / "serve.log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as broker,
    ):
        try:
            told = tmp_path / "serve.log"
            until(
                lambda: "stablelog is ready" in told.read_text() or broker.poll() is not None, told.read_text
            )
            done = bash(tmp_path, after)
            assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "hello"), (
                done.stderr + told.read_text()
            )
            admin = f"export STABLELOG_BOOTSTRAP=localhost:{port} STABLELOG_COMMAND_CONFIG=admin.properties\n"
            for block in (ACLS, QUOTAS):
                done = bash(tmp_path, admin + block)
                assert done.returncode == 0, done.stderr
            denied = bash(
                tmp_path,
                f"stablelog topics create others --bootstrap localhost:{port} --command-config alice.properties",
            )
            assert denied.returncode != 0
            assert "not authorized to CREATE" in denied.stderr
        finally:
            broker.send_signal(signal.SIGTERM)
    assert broker.returncode == 0
    assert (tmp_path / "data" / "users.json").stat().st_mode & 0o077 == 0
    for secret in ("admin.txt", "alice.txt"):
        assert (tmp_path / secret).read_text().strip() not in told.read_text()
