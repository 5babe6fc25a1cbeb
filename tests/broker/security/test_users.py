"""The file of users: its loss or damage keeps the broker from starting, and only its owner reads it."""

import asyncio
import json

import pytest
from crc32c import crc32c

from stablelog.broker.directory.noted_file import USERS, encode_json
from stablelog.broker.security.users import Users
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError, NewerFormatError, RefusedError
from stablelog.log.files.kafka_files import META_FILE
from stablelog.security.credentials import Deletion, Upsertion
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, opened

PATH = DATA / USERS.name


def upsertion(user="alice", iterations=4096):
    return Upsertion(user, 1, iterations, b"salt", b"s" * 32)


def fresh():
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(DATA / META_FILE, b"version=1\n")
    return disk, Users(disk, DATA)


def test_users_are_kept():
    disk, users = fresh()
    assert users.credentials.users == {}
    assert not disk.exists(PATH)
    users.alter([], [upsertion(), upsertion("bob")])
    made_up = users.credentials.find_any("nobody")
    for _ in range(2):
        users = Users(disk, DATA)
        assert users.credentials.users.keys() == {"alice", "bob"}
        assert users.credentials.find_any("nobody") == made_up
    users.alter([Deletion("alice", 1)], [])
    assert Users(disk, DATA).credentials.users.keys() == {"bob"}


def test_a_change_without_effect_writes_nothing():
    disk, users = fresh()
    users.alter([Deletion("alice", 1)], [upsertion(iterations=1)])
    assert not disk.exists(PATH)


def test_a_full_disk_changes_nothing():
    disk, users = fresh()
    users.alter([], [upsertion()])
    disk.fail_at = disk.steps + 1
    with pytest.raises(RefusedError, match="the users' credentials cannot be stored"):
        users.alter([], [upsertion("bob")])
    assert users.credentials.users.keys() == {"alice"}


def test_only_the_owner_reads_the_file(tmp_path):
    (tmp_path / META_FILE).write_bytes(b"version=1\n")
    users = Users(LocalDisk(), tmp_path)
    for user in ("alice", "bob"):
        users.alter([], [upsertion(user)])
        assert (tmp_path / USERS.name).stat().st_mode & 0o777 == 0o600


def changed(content, change):
    members = json.loads(content.splitlines()[0])
    change(members)
    text = json.dumps(members).encode()
    return text + b"\n%08x\n" % crc32c(text)


@pytest.mark.parametrize(
    ("content", "error", "why"),
    [
        (None, DamageError, "it is missing; restore it, or remove"),
        (lambda _old: b"", DamageError, "CRC"),
        (lambda old: old.replace(b"alice", b"malice"), DamageError, "CRC"),
        (lambda old: changed(old, lambda members: members.pop("secret")), DamageError, "does not hold users"),
        (lambda old: changed(old, lambda members: members["users"]["alice"].pop("SCRAM-SHA-256")), None, ""),
        (lambda old: changed(old, lambda members: members.update(version=2)), NewerFormatError, "version 2"),
        (
            lambda _old: encode_json(1, {"users": {}, "secret": "c2hvcnQ="}),
            DamageError,
            "secret is incomplete",
        ),
    ],
)
def test_a_broker_does_not_start_without_its_users(content, error, why):
    async def life():
        disk = SimDisk()
        async with opened(disk) as desk:
            desk.broker.users.alter([], [upsertion()])
        if content is None:
            disk.remove(PATH)
        else:
            disk.write_atomic(PATH, content(disk.read_bytes(PATH)))
        if error is None:
            async with opened(disk):
                return
        with pytest.raises(error, match=rf"^/data/users\.json.*{why}") as refused:
            async with opened(disk):
                pass
        assert "c2hvcnQ" not in str(refused.value)

    asyncio.run(life())
