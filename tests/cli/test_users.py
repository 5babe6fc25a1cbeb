"""`stablelog users`: adds and removes users of a running broker, and of one that does not run."""

import os
import pty
import subprocess
import sys

import pytest

import stablelog
from stablelog.data_directory.registered_file import USERS
from stablelog.data_directory.user_file import decode_users
from stablelog.security.credentials import is_password
from stablelog.wire.sasl.scram import Mechanism
from tests.cli.test_cli import IN_THE_FOREGROUND, answer, run
from tests.clients.drivers import unique


def stored(data):
    return decode_users((data / USERS.name).read_bytes())


@pytest.mark.extended
def test_the_users_of_a_running_broker(stablelog_broker, tmp_path):
    at, user = stablelog_broker.bootstrap, unique("user")
    (tmp_path / "password").write_text("first secret\r\n")
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "scram-sha-512")
    for words in ((*both, "--iterations", "4096"), ()):
        (done,) = answer(
            "users", "add", user, "--password-file", str(tmp_path / "password"), *words, bootstrap=at
        )
        assert done["user"] == user
    found = [row for row in answer("users", "list", bootstrap=at)[0] if row["user"] == user]
    assert [(row["mechanism"], row["iterations"]) for row in found] == [
        ("SCRAM-SHA-256", 4096),
        ("SCRAM-SHA-512", 8192),
    ]
    credentials = stored(stablelog_broker.data)
    for mechanism in Mechanism:
        assert is_password(credentials.find(mechanism, user), "first secret")
    (done,) = answer("users", "remove", user, "--mechanism", "SCRAM-SHA-256", bootstrap=at)
    assert done["mechanisms"] == ["SCRAM-SHA-256"]
    assert answer("users", "remove", user, bootstrap=at)[0]["mechanisms"] == ["SCRAM-SHA-512"]
    gone = run("users", "remove", user, bootstrap=at)
    assert (gone.returncode, gone.stderr) == (2, f"stablelog: user {user!r} has no such credential\n")


@pytest.mark.extended
def test_the_first_user_is_added_before_the_first_start(tmp_path, monkeypatch):
    data = tmp_path / "data"
    monkeypatch.setenv("ADMIN_PASSWORD", "admin secret")
    done = run("users", "add", "admin", "--data", str(data), "--password-env", "ADMIN_PASSWORD")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "set the password of admin for SCRAM-SHA-512\n"
    assert (data / USERS.name).stat().st_mode & 0o777 == 0o600
    with stablelog.serve(data) as broker:
        assert [row["user"] for row in answer("users", "list", bootstrap=broker.bootstrap)[0]] == ["admin"]
        answer("users", "add", "other", "--password-file", "-", bootstrap=broker.bootstrap, given="x")
        locked = run("users", "list", "--data", str(data))
        assert locked.returncode == 2
        assert "is in use" in locked.stderr or "another broker" in locked.stderr
    assert [row["user"] for row in answer("users", "list", "--data", str(data), bootstrap=None)[0]] == [
        "admin",
        "other",
    ]
    assert run("users", "remove", "admin", "--data", str(data)).returncode == 0
    assert not stored(data).find_any("admin").is_known
    assert is_password(stored(data).find_any("other"), "x")


def test_a_new_directory_belongs_to_the_node_that_is_named(tmp_path):
    data = str(tmp_path / "data")
    assert (
        run(
            "users", "add", "a", "--data", data, "--node-id", "7", "--password-file", "-", given="x"
        ).returncode
        == 0
    )
    again = run("users", "add", "a", "--data", data, "--node-id", "8", "--password-file", "-", given="x")
    assert "node.id=7" in again.stderr


@pytest.mark.parametrize(
    ("words", "given", "why"),
    [
        ((), "", "no password: give --password-file FILE"),
        (("--password-file", "-"), "", "the password must have 1 to 4096 bytes"),
        (("--password-file", "-"), "x" * 4097, "the password must have 1 to 4096 bytes"),
        (("--password-file", "-"), "secret\nsecret\n", "more than one line"),
        (("--password-file", "nowhere"), "", "--password-file nowhere cannot be read: No such file"),
        (("--password-env", "NOT_THERE"), "", "no variable NOT_THERE"),
        (("--password-env", "HOME", "--password-file", "-"), "", "either"),
        (("--password-file", "-", "--mechanism", "PLAIN"), "x", "SCRAM-SHA-256 or SCRAM-SHA-512"),
        (("--password-file", "-", "--iterations", "4095"), "x", "4096"),
        (("--password-file", "-", "--node-id", "1"), "x", "--node-id needs --data"),
    ],
)
def test_what_is_missing_or_wrong_is_said_before_anything_is_done(words, given, why):
    done = run("users", "add", "alice", *words, bootstrap="127.0.0.1:1", given=given)
    assert done.returncode == 2
    assert why in done.stderr
    assert "secret" not in done.stderr


def test_other_directories_are_not_touched(tmp_path):
    missing = run("users", "list", "--data", str(tmp_path / "missing"))
    assert missing.returncode == 2
    assert not (tmp_path / "missing").exists()
    (tmp_path / "letter.txt").write_text("mine")
    foreign = run("users", "add", "a", "--data", str(tmp_path), "--password-file", "-", given="x")
    assert foreign.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.extended
def test_the_password_is_asked_for_twice_at_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        IN_THE_FOREGROUND,
        "users",
        "add",
        "alice",
        "--data",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True
    ) as asking:
        os.close(theirs)
        shown = b""
        for prompt in (b"Password: ", b"confirmation: "):
            while prompt not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, b"typed secret\n")
        assert asking.wait(60) == 0
    os.close(ours)
    assert b"secret" not in shown
    assert is_password(stored(tmp_path / "data").find_any("alice"), "typed secret")
