"""Which facts are findings. Facts in order, and unknown ones, have none; each finding says what to do."""

import dataclasses
from pathlib import Path

import pytest

from stablelog.log.verify import FileFinding
from stablelog.ops.doctor.facts import (
    BrokerFacts,
    DirectoryFacts,
    Limits,
    LockHolder,
    Rights,
    Versions,
    Volume,
)
from stablelog.ops.doctor.findings import (
    ADDRESS_SPACE_MIN,
    CLOCK_MS_MIN,
    FREE_MIN,
    MAPPINGS_MIN,
    MEMORY_MIN,
    action_of,
    broker_findings,
    clock_findings,
    directory_findings,
    limit_findings,
    version_findings,
    volume_findings,
)

DATA = Path("/data")
NOW_MS = CLOCK_MS_MIN + 1_000_000
VERSIONS = Versions("1.0", "CPython 3.13.0", "Linux", {})
LIMITS = Limits(1024, 1 << 20, None, 4 << 30, MAPPINGS_MIN)
UNKNOWN_LIMITS = Limits(None, None, None, None, None)
VOLUME = Volume("/data", "ext4", total=100 << 30, free=50 << 30, inodes_free=1000, reserve=64 << 20)
RIGHTS = Rights("kafka", "kafka")
DIRECTORY = DirectoryFacts(DATA, rights=RIGHTS, lock="free", recorded_ms=NOW_MS)
BROKER = BrokerFacts("h:1", brokers={1: "h:1"}, partitions=3, volume=VOLUME)


def only(findings):
    """The only finding, which says what to do."""
    (found,) = findings
    assert found.subject
    assert found.problem
    assert found.action
    return found


def test_what_is_in_order_has_no_finding():
    assert [*version_findings(VERSIONS)] == []
    assert [*limit_findings(LIMITS, 1000)] == []
    assert [*clock_findings(NOW_MS)] == []
    assert [*volume_findings(VOLUME)] == []
    assert [*directory_findings(DIRECTORY, NOW_MS)] == []
    assert [*broker_findings(BROKER, DIRECTORY)] == []


def test_what_is_unknown_has_no_finding():
    assert [*limit_findings(UNKNOWN_LIMITS, 10**6)] == []
    assert [*volume_findings(Volume("/data"))] == []
    assert [*directory_findings(DirectoryFacts(DATA), NOW_MS)] == []
    assert [*broker_findings(BrokerFacts("h:1"), None)] == []


def test_python_without_assertions():
    found = only(version_findings(dataclasses.replace(VERSIONS, is_optimized=True)))
    assert "-O" in found.action


@pytest.mark.parametrize(
    ("changed", "least", "text"),
    [
        ("open_files_max", 1024 + 4 * 100, "files"),
        ("memory", MEMORY_MIN, "of memory"),
        ("address_space", ADDRESS_SPACE_MIN, "address space"),
        ("mappings", MAPPINGS_MIN, "ranges of files"),
    ],
)
def test_a_limit_is_a_finding_below_its_least_value(changed, least, text):
    assert [*limit_findings(dataclasses.replace(LIMITS, **{changed: least}), 100)] == []
    found = only(limit_findings(dataclasses.replace(LIMITS, **{changed: least - 1}), 100))
    assert text in found.problem


def test_a_clock_that_was_never_set():
    assert only(clock_findings(0)).subject == "clock"
    assert [*clock_findings(CLOCK_MS_MIN)] == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"is_read_only": True}, "read-only"),
        ({"file_system": "nfs4"}, "network"),
        ({"file_system": "tmpfs"}, "in memory"),
        ({"inodes_free": 0}, "inode"),
        ({"free": FREE_MIN - 1}, "less than one segment"),
        ({"free": 60 << 20, "reserve_missing": 68 << 20}, "need 68 MiB"),
        ({"free": 0, "is_full": True}, "is full"),
    ],
)
def test_a_file_system(changed, text):
    assert text in only(volume_findings(dataclasses.replace(VOLUME, **changed))).problem


@pytest.mark.parametrize("free", [FREE_MIN, FREE_MIN + 1])
def test_space_for_a_segment_is_enough(free):
    assert [*volume_findings(dataclasses.replace(VOLUME, free=free))] == []


def test_a_directory_that_cannot_be_read_is_the_only_finding():
    facts = dataclasses.replace(DIRECTORY, failure="Not a directory", rights=None, recorded_ms=NOW_MS * 2)
    found = only(directory_findings(facts, NOW_MS))
    assert found.problem == "it cannot be read as a directory: Not a directory"
    assert "--data" in found.action


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"is_usable": False}, "may not list"),
        ({"unusable": 1, "first_unusable": DATA / "t-0"}, "may not read and write it"),
        ({"unusable": 3, "first_unusable": DATA / "t-0"}, "nor 2 others"),
        ({"foreign": 1, "first_foreign": DATA / "t-0", "foreign_owner": "root"}, "to the user root, and the"),
        ({"foreign": 2, "first_foreign": DATA / "t-0", "foreign_owner": "root"}, "so do 1 others"),
        ({"exposed": (DATA / "users.json",)}, "other users may read"),
    ],
)
def test_rights(changed, text):
    facts = dataclasses.replace(DIRECTORY, rights=dataclasses.replace(RIGHTS, **changed))
    assert text in only(directory_findings(facts, NOW_MS)).problem


def test_a_refusal_is_what_to_do():
    found = only(directory_findings(dataclasses.replace(DIRECTORY, refusal="use another one"), NOW_MS))
    assert found.action == "use another one"


def test_a_file_system_without_locks():
    found = only(directory_findings(dataclasses.replace(DIRECTORY, lock="unsupported"), NOW_MS))
    assert "no locks" in found.problem


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_lock_is_a_finding_only_if_its_holder_is_stopped(is_stopped):
    facts = dataclasses.replace(DIRECTORY, lock="held", holder=LockHolder(12, "python", is_stopped))
    findings = [*directory_findings(facts, NOW_MS)]
    assert len(findings) == is_stopped
    if is_stopped:
        assert "kill -CONT 12" in only(findings).action


@pytest.mark.parametrize(("ahead_ms", "count"), [(1000, 0), (1001, 1), (-100_000, 0)])
def test_a_clock_behind_that_of_the_last_broker(ahead_ms, count):
    facts = dataclasses.replace(DIRECTORY, recorded_ms=NOW_MS + ahead_ms)
    assert len([*directory_findings(facts, NOW_MS)]) == count


def test_each_fault_of_a_file_is_a_finding_with_its_path():
    faults = tuple(FileFinding(DATA / name, "it is damaged") for name in ("acls.json", "t-0"))
    findings = [*directory_findings(dataclasses.replace(DIRECTORY, faults=faults), NOW_MS)]
    assert [one.subject for one in findings] == ["/data/acls.json", "/data/t-0"]
    assert all(one.action for one in findings)


@pytest.mark.parametrize(
    ("name", "message", "action"),
    [
        ("cluster.json", "the CRC is wrong", "older copy"),
        (
            "cluster.json",
            "of version 9; this release reads versions up to 2",
            "Start the release that wrote it",
        ),
        ("meta.properties", "is gone; the next start writes it again", "Nothing"),
        ("meta.properties", "says node.id=x", "Restore it"),
        (".kafka_cleanshutdown", "is damaged", "Nothing"),
        ("__transaction_state-0", "is missing", "whole directory /data/__transaction_state-0"),
        ("__consumer_offsets-3/00.log", "is damaged", "whole directory /data/__consumer_offsets-3"),
        ("t-0/log-start-offset", "is missing", "Restore it"),
    ],
)
def test_what_to_do_about_a_fault(name, message, action):
    assert action in action_of(FileFinding(DATA / name, message))


def test_a_broker_that_does_not_respond_is_the_only_finding_about_it():
    facts = dataclasses.replace(BROKER, failure="no broker responds", offline=3, refusals=("no",))
    found = only(broker_findings(facts, None))
    assert found.problem == "no broker responds"
    assert "Start the broker" in found.action


def test_a_broker_that_does_not_respond_beside_a_held_lock_runs():
    facts = dataclasses.replace(BROKER, failure="no broker responds")
    held = dataclasses.replace(DIRECTORY, lock="held")
    assert "so it runs or starts" in only(broker_findings(facts, held)).action
    assert "Start the broker" in only(broker_findings(facts, DIRECTORY)).action


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"refusals": ("not authorized",)}, "not authorized"),
        ({"offline": 2}, "2 of 3 partitions are offline"),
        ({"volume": dataclasses.replace(VOLUME, free=0, is_full=True)}, "refuses new records"),
    ],
)
def test_a_broker(changed, text):
    assert text in only(broker_findings(dataclasses.replace(BROKER, **changed), None)).problem


def test_the_volume_of_a_broker_elsewhere_is_not_judged_by_its_free_space():
    facts = dataclasses.replace(BROKER, volume=dataclasses.replace(VOLUME, free=1))
    assert [*broker_findings(facts, None)] == []
