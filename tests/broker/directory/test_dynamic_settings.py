"""The broker's dynamic settings on disk: there after any crash, and never read as if they had not been given."""

import errno
import random
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.data_directory.registered_file import with_crc
from stablelog.data_directory.settings_file import META_LINE, Dynamic, decode_settings, encode_settings
from stablelog.errors import DamageError, RefusedError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash

DATA = Path("/data")
META = DATA / "meta.properties"
META_CONTENT = b"version=1\ncluster.id=x\nnode.id=1\n"
NOTHING = Dynamic({}, {})
BEFORE, AFTER = {"log.retention.ms": "1000"}, {"log.retention.ms": "-1", "message.max.bytes": "17"}


def fresh(meta=META_CONTENT):
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(META, meta)
    return disk, DynamicSettings(disk, DATA)


def test_settings_are_read_as_they_were_stored():
    _, stored = fresh()
    assert stored.load() == NOTHING
    for settings in (BEFORE, AFTER, {}):
        for defaults in (AFTER, {}, BEFORE):
            for groups in ({}, {"billing": AFTER}):
                stored.store(settings, defaults, groups)
                assert stored.load() == (settings, defaults, groups)


@pytest.mark.parametrize("meta", [META_CONTENT, META_CONTENT.rstrip(), b""])
def test_that_the_file_exists_is_noted_once_and_the_rest_of_the_meta_file_stays(meta):
    disk, stored = fresh(meta)
    stored.store(BEFORE)
    stored.store(AFTER)
    lines = disk.read_bytes(META).decode().splitlines()
    assert [line for line in lines if line] == [*meta.decode().splitlines(), META_LINE]


@pytest.mark.parametrize("first", [True, False], ids=["first change", "later change"])
def test_after_a_crash_at_any_moment_the_settings_are_those_before_or_after(first):
    def prepared():
        disk, stored = fresh()
        if not first:
            stored.store(BEFORE)
        return disk, stored

    disk, stored = prepared()
    begun = disk.steps
    stored.store(AFTER)
    for crash_at in range(begun + 1, disk.steps + 1):
        for seed in range(10):
            crashing, storing = prepared()
            crashing.crash_at = crash_at
            with pytest.raises(SimulatedCrash):
                storing.store(AFTER)
            after = DynamicSettings(crashing.crash(random.Random(seed)), DATA)
            assert after.load() in (NOTHING if first else Dynamic(BEFORE, {}), Dynamic(AFTER, {}))
            after.store(AFTER)
            assert after.load() == Dynamic(AFTER, {})
    survivor = DynamicSettings(disk.crash(random.Random(0)), DATA)
    assert survivor.load() == Dynamic(AFTER, {}), "what was answered is durable"


@pytest.mark.parametrize("late", [False, True])
def test_a_disk_that_fails_at_any_operation_refuses_and_leaves_what_can_be_read(late):
    disk, stored = fresh()
    begun = disk.steps
    stored.store(AFTER)
    for fail_at in range(begun + 1, disk.steps + 1):
        failing, storing = fresh()
        failing.fail_at, failing.fails_late, failing.number = fail_at, late, errno.ENOSPC
        with pytest.raises(RefusedError, match=r"cannot be stored.*ENOSPC") as refused:
            storing.store(AFTER)
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert DynamicSettings(failing, DATA).load() in (NOTHING, Dynamic(AFTER, {}))


def test_a_file_with_any_bit_changed_or_any_end_missing_is_refused_by_name():
    disk, stored = fresh()
    stored.store(BEFORE)
    whole = disk.read_bytes(stored.path)
    assert decode_settings(whole) == Dynamic(BEFORE, {})
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    cut = [whole[:end] for end in range(len(whole) - 1)]
    for damaged in (*flipped, *cut):
        disk.write_atomic(stored.path, damaged)
        with pytest.raises(DamageError, match=r"^/data/broker.json, .*cannot be read"):
            stored.load()


def test_a_file_that_was_written_and_is_lost_is_refused_by_name():
    disk, stored = fresh()
    stored.store({})
    disk.remove(stored.path)
    with pytest.raises(
        DamageError,
        match=r"^/data/broker.json, .*the file is missing. Restore the file; or, to start without its content, remove",
    ):
        stored.load()
    disk.write_atomic(META, META_CONTENT)
    assert stored.load() == NOTHING, "as the message says"


def test_a_file_of_a_newer_version_is_refused_by_name_and_version():
    disk, stored = fresh()
    text = encode_settings({}).split(b"\n")[0].replace(b'"version":1', b'"version":4')
    disk.write_atomic(stored.path, with_crc(text))
    with pytest.raises(
        UnknownFormatError, match=r"^/data/broker.json: .*of version 4; this release reads versions up to 3"
    ):
        stored.load()
