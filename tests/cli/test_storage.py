"""`stablelog storage`, as people and programs call it."""

import json
import os

import pytest

from stablelog.cli.storage import COLUMNS, GARBAGE_COLUMNS
from stablelog.testing.s3 import serve_s3
from tests.broker.tiering.world import World
from tests.commands import run


@pytest.fixture
def s3():
    with serve_s3() as server:
        yield server


def checked(s3, *words, url="s3://bucket/prefix"):
    options = [word for pair in s3.options.items() for word in ("--option", "=".join(pair))]
    return run("storage", "check", url, "--allow-http", *options, *words)


@pytest.mark.extended
def test_a_good_store_passes(s3):
    done = checked(s3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok ") == 9
    assert "a key is created once" in done.stdout
    assert "6 promises of s3://bucket/prefix, 0 faults" in done.stderr + done.stdout
    assert "test" not in done.stdout, "no credentials"


@pytest.mark.extended
def test_a_store_that_ignores_conditions_is_told(s3):
    s3.ignores_conditions = True
    done = checked(s3, "--json")
    assert done.returncode == 1
    findings = {finding["promise"]: finding["fault"] for finding in json.loads(done.stdout)}
    assert "If-None-Match" in findings["a key is created once"]
    assert findings["ranges of an object"] == ""
    assert "FAULT  a key is created once" in checked(s3).stdout


@pytest.fixture
def url(tmp_path):
    """The URL of a directory with the objects of a partition of five segments."""
    world = World()
    world.copy_all()
    for key, content in world.store_objects.objects.items():
        (tmp_path / "store" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / key).write_bytes(content)
    return (tmp_path / "store").as_uri()


def test_the_partitions_of_a_store_are_listed(url):
    (found,) = json.loads(run("storage", "ls", url, "--json").stdout)
    assert (found["topic"], found["partition"], found["segments"], found["unnamed"]) == ("t", 0, 5, 0)
    done = run("storage", "ls", url, "--topic", "t")
    assert done.returncode == 0
    for column in COLUMNS:
        assert column in done.stdout
    assert str(found["size"]) in done.stdout


def test_a_good_store_is_verified_and_each_damaged_object_is_one_line(url, tmp_path):
    done = run("storage", "verify", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 segments of 1 partition" in done.stdout
    assert "0 faults" in done.stdout
    logs = sorted((tmp_path / "store").rglob("*.log"))
    logs[0].unlink()
    content = logs[1].read_bytes()
    logs[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = run("storage", "verify", url, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["segments"] == 5
    assert [tmp_path / "store" / one["key"] for one in found["faults"]] == logs[:2]
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    for line, says in zip(lines, ("the object is missing", "the CRC of the batch at byte"), strict=True):
        assert line.startswith(url)
        assert says in line


def test_a_damaged_manifest_is_a_fault_of_its_partition(url, tmp_path):
    manifest = max((tmp_path / "store").rglob("manifest/*"))
    manifest.write_bytes(manifest.read_bytes()[:-1])
    for command in ("ls", "verify"):
        done = run("storage", command, url)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert manifest.name in line


@pytest.mark.extended
def test_a_store_or_a_topic_that_is_not_there_is_one_line(url, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in ("ls", "verify"):
        for words, says in (
            ((url, "--topic", "flights"), "has no topic 'flights'"),
            (((tmp_path / "empty").as_uri(),), "has no objects of a broker"),
        ):
            done = run("storage", command, *words)
            assert done.returncode == 2
            assert says in done.stderr
            assert done.stderr.count("\n") == 1


@pytest.mark.extended
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


@pytest.mark.extended
def test_what_nothing_needs_is_listed_and_deleted_on_demand(url, tmp_path):
    assert json.loads(run("storage", "clean", url, "--json").stdout)["objects"] == 0
    log, *_ = sorted((tmp_path / "store").rglob("*.log"))
    orphan = log.with_name(f"{log.name[:20]}-=AAAAAAAAAAAAAAAAAAAAAA.log")
    orphan.write_bytes(b"orphan")
    assert "0 objects of 0 bytes found" in run("storage", "clean", url).stdout, "it is too young"
    os.utime(orphan, (0, 0))
    done = run("storage", "clean", url)
    assert done.returncode == 0
    assert "1 object of 6 bytes found" in done.stdout
    assert "--delete deletes them" in done.stdout
    for column in GARBAGE_COLUMNS:
        assert column in done.stdout
    assert orphan.exists()
    done = run("storage", "clean", url, "--delete")
    assert "1 object of 6 bytes deleted" in done.stdout
    assert not orphan.exists()
    assert json.loads(run("storage", "verify", url, "--json").stdout)["faults"] == []


def test_the_objects_of_a_deleted_topic_are_found(url, tmp_path):
    (topic,) = (tmp_path / "store" / "t.t").iterdir()
    (topic / "deleted").write_bytes((tmp_path / "store" / "cluster").read_bytes())
    assert json.loads(run("storage", "ls", url, "--json").stdout) == []
    done = json.loads(run("storage", "clean", url, "--delete", "--json").stdout)
    assert done["partitions"][0]["why"] == "a deleted topic"
    assert done["objects"] == 11
    assert not list(topic.rglob("*.log"))


def test_a_damaged_manifest_is_told_and_nothing_is_deleted(url, tmp_path):
    log, *_ = sorted((tmp_path / "store").rglob("*.log"))
    os.utime(log, (0, 0))
    *_, manifest = sorted((tmp_path / "store").rglob("manifest/*"))
    manifest.write_bytes(manifest.read_bytes()[:-1])
    done = run("storage", "clean", url, "--delete")
    assert done.returncode == 1
    assert manifest.name in done.stderr
    assert log.exists()


@pytest.mark.parametrize("words", [["--older-than-days", "0"], ["--topic", "missing"]])
def test_a_clean_with_a_wrong_option_is_refused(url, words):
    assert run("storage", "clean", url, *words).returncode != 0
