"""`stablelog storage`, as people and programs call it."""

import json

import pytest

from stablelog.testing.s3 import serve_s3
from tests.cli.test_cli import run


@pytest.fixture
def s3():
    with serve_s3() as server:
        yield server


def checked(s3, *words, url="s3://bucket/prefix"):
    options = [word for pair in s3.options.items() for word in ("--option", "=".join(pair))]
    return run("storage", "check", url, "--allow-http", *options, *words)


def test_a_good_store_passes(s3):
    done = checked(s3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok ") == 6
    assert "a key is created once" in done.stdout
    assert "6 promises of s3://bucket/prefix, 0 faults" in done.stderr + done.stdout
    assert "test" not in done.stdout, "no credentials"


def test_a_store_that_ignores_conditions_is_told(s3):
    s3.ignores_conditions = True
    done = checked(s3, "--json")
    assert done.returncode == 1
    findings = {finding["promise"]: finding["fault"] for finding in json.loads(done.stdout)}
    assert "If-None-Match" in findings["a key is created once"]
    assert findings["ranges of an object"] == ""
    assert "FAULT  a key is created once" in checked(s3).stdout


def test_what_cannot_be_opened_or_reached_is_one_line(s3, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for url, says in (
        ("bucket", "is no URL of an object store"),
        ((tmp_path / "file" / "x").as_uri(), "cannot be opened"),
        ("s3://other/prefix", "was rejected"),
    ):
        done = checked(s3, url=url)
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
    done = run("storage", "check", "memory:///", "--option", "x")
    assert done.returncode == 2
    assert "--option 'x' is not NAME=VALUE" in done.stderr
