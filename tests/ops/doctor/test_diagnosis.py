"""The diagnosis: each finding once, and what its document has."""

import dataclasses
from pathlib import Path

from stablelog.log.verify import FileFinding
from stablelog.ops.doctor.diagnosis import Diagnosis
from stablelog.ops.doctor.facts import BrokerFacts, DirectoryFacts, Limits, ShownSetting, Versions, Volume
from stablelog.ops.doctor.findings import CLOCK_MS_MIN

ALONE = Diagnosis(
    Versions("1.0", "CPython 3.13.0", "Linux", {"kio": "1"}),
    Limits(1024, 1 << 20, None, 4 << 30, 65_530),
    CLOCK_MS_MIN,
)
FAULT = FileFinding(Path("/data/acls.json"), "it is damaged")
DIRECTORY = DirectoryFacts(
    Path("/data"), partitions=2, faults=(FAULT, FAULT), settings=(ShownSetting("a", "1", "x"),)
)
BROKER = BrokerFacts("h:1", volume=Volume("/elsewhere"), settings=(ShownSetting("b", "2", "y"),))


def test_without_a_directory_and_a_broker_a_report_is_of_the_machine():
    document = ALONE.document()
    assert document["versions"]["libraries"] == {"kio": "1"}
    assert (document["disk"], document["directory"], document["broker"]) == (None, None, None)
    assert (document["settings"], document["findings"]) == ([], [])


def test_each_finding_is_reported_once():
    (found,) = dataclasses.replace(ALONE, directory=DIRECTORY).findings
    assert found.subject == "/data/acls.json"


def test_the_partitions_of_the_directory_count_for_the_limits():
    crowded = dataclasses.replace(DIRECTORY, partitions=1 << 20, faults=())
    (found,) = dataclasses.replace(ALONE, directory=crowded).findings
    assert found.subject == "limits"


def test_the_settings_of_the_broker_come_before_those_of_the_directory():
    diagnosis = dataclasses.replace(ALONE, directory=DIRECTORY, broker=BROKER)
    assert [one["setting"] for one in diagnosis.document()["settings"]] == ["b", "a"]


def test_the_disk_is_that_of_the_directory_if_there_is_one():
    diagnosis = dataclasses.replace(ALONE, broker=BROKER)
    assert diagnosis.document()["disk"]["path"] == "/elsewhere"
    diagnosis = dataclasses.replace(diagnosis, volume=Volume("/data"))
    assert diagnosis.document()["disk"]["path"] == "/data"
