"""The quotas on disk: there after any crash, and never read as if there were none."""

import random
from pathlib import Path

import pytest

from stablelog.data_directory.quota_file import decode_quotas, encode_quotas, quota_file
from stablelog.data_directory.registered_file import with_crc
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.security.quotas.entities import Entity, NamePlaceholder
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.wire.quotas import QuotaKey
from tests.broker.directory.test_dynamic_settings import META, META_CONTENT

DATA = Path("/data")
BEFORE = {Entity(user="alice"): {QuotaKey.PRODUCER_BYTE_RATE: 1024.0}}
AFTER = {
    Entity(user="alice", client_id=NamePlaceholder.DEFAULT): {QuotaKey.REQUEST_PERCENTAGE: 12.5},
    Entity(ip=NamePlaceholder.DEFAULT): {QuotaKey.CONNECTION_CREATION_RATE: 5.0},
}


def fresh():
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(META, META_CONTENT)
    return disk, quota_file(disk, DATA)


@pytest.mark.parametrize("first", [True, False], ids=["first change", "later change"])
def test_after_a_crash_at_any_moment_the_quotas_are_those_before_or_after(first):
    def prepared():
        disk, stored = fresh()
        if not first:
            stored.store(encode_quotas(BEFORE))
        return disk, stored

    disk, stored = prepared()
    begun = disk.steps
    stored.store(encode_quotas(AFTER))
    assert disk.steps > begun
    for crash_at in range(begun + 1, disk.steps + 1):
        for seed in range(5):
            crashing, storing = prepared()
            crashing.crash_at = crash_at
            with pytest.raises(SimulatedCrash):
                storing.store(encode_quotas(AFTER))
            found = quota_file(crashing.crash(random.Random(seed)), DATA).load()
            assert found in ({} if first else BEFORE, AFTER)
    assert quota_file(disk.crash(random.Random(0)), DATA).load() == AFTER


def test_a_file_with_any_bit_changed_or_any_end_missing_is_refused_by_name():
    disk, stored = fresh()
    stored.store(encode_quotas(AFTER))
    whole = disk.read_bytes(stored.path)
    assert decode_quotas(whole) == AFTER
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    for damaged in (*flipped, *(whole[:end] for end in range(len(whole) - 1))):
        disk.write_atomic(stored.path, damaged)
        with pytest.raises(DamageError, match=r"^/data/quotas.json, .*cannot be read"):
            stored.load()


def test_a_file_that_was_written_and_is_lost_is_refused_by_name():
    disk, stored = fresh()
    stored.store(encode_quotas(AFTER))
    disk.remove(stored.path)
    with pytest.raises(DamageError, match=r"^/data/quotas.json, .*the file is missing. Restore the file; or"):
        stored.load()


def test_a_file_of_a_newer_version_is_refused_by_name_and_version():
    disk, stored = fresh()
    text = encode_quotas({}).split(b"\n")[0].replace(b'"version":1', b'"version":2')
    disk.write_atomic(stored.path, with_crc(text))
    with pytest.raises(UnknownFormatError, match=r"^/data/quotas.json: .*of version 2"):
        stored.load()


@pytest.mark.parametrize(
    "rows",
    [
        "7",
        '[[{"user":"a"}]]',
        '[[{"group":"a"},{}]]',
        '[[{"user":"a"},{"producer_byte_rate":0}]]',
        '[[{"user":"a"},{"producer_byte_rate":"x"}]]',
        '[[{"user":"a"},{"nonsense":1}]]',
        '[[{"user":7},{"producer_byte_rate":1}]]',
    ],
)
def test_a_file_that_holds_no_quotas_is_refused(rows):
    disk, stored = fresh()
    disk.write_atomic(stored.path, with_crc(b'{"version":1,"quotas":%s}' % rows.encode()))
    with pytest.raises(DamageError, match="the file does not hold the clients' quotas"):
        stored.load()
