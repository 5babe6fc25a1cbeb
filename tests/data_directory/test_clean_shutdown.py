"""The file that marks a clean stop: Kafka's, its damage, and that of a later release."""

import json
from pathlib import Path

import pytest

from stablelog.data_directory.clean_shutdown import (
    CLEAN_SHUTDOWN,
    CLEAN_SHUTDOWN_FILE,
    CLEAN_SHUTDOWN_VERSION,
    check_clean_shutdown,
    was_stopped_cleanly,
)
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk

PATH = Path("/data") / CLEAN_SHUTDOWN_FILE


def disk_with(content):
    disk = SimDisk()
    disk.make_dir(PATH.parent)
    disk.write_atomic(PATH, content)
    return disk


def test_what_the_broker_writes_is_what_kafka_reads():
    assert json.loads(CLEAN_SHUTDOWN) == {"version": 0, "brokerEpoch": -1}


@pytest.mark.parametrize("content", [CLEAN_SHUTDOWN, b"", b'{"version":0,"brokerEpoch":7}'])
def test_a_file_of_kafkas_or_ours_or_an_empty_one_of_an_old_kafka_marks_a_clean_stop(content):
    disk = disk_with(content)
    check_clean_shutdown(disk, PATH)
    assert was_stopped_cleanly(disk, PATH)


def test_without_the_file_the_stop_was_not_clean():
    disk = SimDisk()
    disk.make_dir(PATH.parent)
    assert not was_stopped_cleanly(disk, PATH)
    with pytest.raises(FileNotFoundError):
        check_clean_shutdown(disk, PATH)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"x", "the file must contain a version and a broker epoch"),
        (CLEAN_SHUTDOWN[:-1], "the file must contain a version and a broker epoch"),
        (b"7", "the file must contain a version and a broker epoch"),
        (b'{"version":0}', "the file must contain a version and a broker epoch"),
        (b'{"version":"x","brokerEpoch":1}', "the file must contain a version and a broker epoch"),
        (b'{"version":-1,"brokerEpoch":1}', "the file has version -1, and only version 0 exists"),
        (b'{"version":30000,"brokerEpoch":1}', "the file has version 30000, and only version 0 exists"),
    ],
)
def test_a_damaged_file_is_named_and_counts_as_a_clean_stop(content, why, caplog):
    disk = disk_with(content)
    with pytest.raises(DamageError, match=f"^{PATH} is damaged: {why}$"):
        check_clean_shutdown(disk, PATH)
    assert was_stopped_cleanly(disk, PATH)
    assert (
        f"the broker treats its last stop as clean, although the file that records the stop is damaged: {PATH} is damaged: {why}"
        in caplog.text
    )


def test_a_file_of_a_later_release_is_refused_by_path_and_version():
    disk = disk_with(b'{"version":%d,"brokerEpoch":1}' % (CLEAN_SHUTDOWN_VERSION + 1))
    for read in (check_clean_shutdown, was_stopped_cleanly):
        with pytest.raises(
            UnknownFormatError, match=f"^{PATH}: the sign of a clean stop of version 1; this release"
        ):
            read(disk, PATH)
