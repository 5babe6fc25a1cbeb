"""The file of users: its loss or damage keeps the broker from starting, and only its owner reads it."""

import asyncio
import errno
import json
import threading

import pytest
from crc32c import crc32c

from stablelog.data_directory.meta_properties import META_FILE
from stablelog.data_directory.registered_file import USERS, encode_json
from stablelog.data_directory.user_file import encode_users, user_file
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError, DiskError, RefusedError, UnknownFormatError
from stablelog.security.credentials import CredentialDeletion, CredentialUpsertion
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, opened

PATH = DATA / USERS.name


def upsertion(user="alice", iterations=4096):
    return CredentialUpsertion(user, 1, iterations, b"salt", b"s" * 32)


def at_desk(conversation, disk=None):
    async def talk():
        async with opened(disk) as desk:
            await conversation(desk.broker)

    asyncio.run(talk())


def names_on(disk):
    return user_file(disk, DATA).load().users.keys()


def test_users_are_kept():
    disk, made_up = SimDisk(), []

    async def begin(broker):
        users = broker.users
        assert users.credentials.users == {}
        assert not disk.exists(PATH)
        await users.alter_credentials([], [upsertion(), upsertion("bob")])
        made_up.append(users.credentials.find_any("nobody"))

    async def go_on(broker):
        assert broker.users.credentials.users.keys() == {"alice", "bob"}
        assert [broker.users.credentials.find_any("nobody")] == made_up

    async def remove(broker):
        await broker.users.alter_credentials([CredentialDeletion("alice", 1)], [])

    for conversation in (begin, go_on, go_on, remove):
        at_desk(conversation, disk)
    assert names_on(disk) == {"bob"}


def test_a_change_without_effect_writes_nothing():
    async def conversation(broker):
        await broker.users.alter_credentials([CredentialDeletion("alice", 1)], [upsertion(iterations=1)])
        assert not broker.disk.exists(PATH)

    at_desk(conversation)


def test_a_disk_that_refuses_changes_nothing(monkeypatch):
    async def conversation(broker):
        await broker.users.alter_credentials([], [upsertion()])

        def refuse(path, _content, **_options):
            raise DiskError(f"writing {path} failed", errno.EIO)

        with monkeypatch.context() as broken:
            broken.setattr(broker.disk, "write_atomic", refuse)
            with pytest.raises(RefusedError, match="the users' credentials cannot be stored"):
                await broker.users.alter_credentials([], [upsertion("bob")])
        assert broker.users.credentials.users.keys() == {"alice"}
        await broker.users.alter_credentials([], [upsertion("carol")])
        assert names_on(broker.disk) == {"alice", "carol"}

    at_desk(conversation)


def test_the_file_is_written_in_a_thread_once_it_is_noted(monkeypatch):
    async def conversation(broker):
        await broker.users.alter_credentials([], [upsertion()])
        write, threads = broker.disk.write_atomic, []

        def watched(path, content, **options):
            threads.append(threading.current_thread())
            return write(path, content, **options)

        with monkeypatch.context() as watching:
            watching.setattr(broker.disk, "write_atomic", watched)
            await broker.users.alter_credentials([], [upsertion("bob")])
        assert threads
        assert threading.main_thread() not in threads

    at_desk(conversation)


def test_the_event_loop_writes_what_the_disk_refuses_a_thread(monkeypatch, caplog):
    """The event loop may use the reserve. Nothing is refused then, so nothing is logged."""

    async def conversation(broker):
        await broker.users.alter_credentials([], [upsertion()])
        write = broker.disk.write_atomic

        def watched(path, content, **options):
            if threading.current_thread() is not threading.main_thread():
                raise DiskError(f"writing {path} failed", errno.ENOSPC)
            return write(path, content, **options)

        with monkeypatch.context() as full:
            full.setattr(broker.disk, "write_atomic", watched)
            await broker.users.alter_credentials([], [upsertion("bob")])
        assert names_on(broker.disk) == {"alice", "bob"}

    at_desk(conversation)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_changes_at_the_same_time_are_made_one_after_another():
    async def conversation(broker):
        names = [f"user-{number}" for number in range(20)]
        await asyncio.gather(*(broker.users.alter_credentials([], [upsertion(name)]) for name in names))
        assert broker.users.credentials.users.keys() == set(names)
        assert names_on(broker.disk) == set(names)

    at_desk(conversation)


def test_only_the_owner_reads_the_file(tmp_path):
    (tmp_path / META_FILE).write_bytes(b"version=1\n")
    file = user_file(LocalDisk(), tmp_path)
    credentials = file.load()
    for user in ("alice", "bob"):
        credentials, _ = credentials.with_changes([], [upsertion(user)])
        file.store(encode_users(credentials))
        assert (tmp_path / USERS.name).stat().st_mode & 0o777 == 0o600


def changed(content, change):
    members = json.loads(content.splitlines()[0])
    change(members)
    text = json.dumps(members).encode()
    return text + b"\n%08x\n" % crc32c(text)


@pytest.mark.parametrize(
    ("content", "error", "why"),
    [
        (
            None,
            DamageError,
            "the file is missing. Restore the file; or, to start without its content, remove",
        ),
        (lambda _old: b"", DamageError, "CRC"),
        (lambda old: old.replace(b"alice", b"malice"), DamageError, "CRC"),
        (lambda old: changed(old, lambda members: members.pop("secret")), DamageError, "does not hold users"),
        (lambda old: changed(old, lambda members: members["users"]["alice"].pop("SCRAM-SHA-256")), None, ""),
        (
            lambda old: changed(old, lambda members: members.update(version=2)),
            UnknownFormatError,
            "version 2",
        ),
        (
            lambda _old: encode_json(1, {"users": {}, "secret": "c2hvcnQ="}),
            DamageError,
            "secret in the file is incomplete",
        ),
    ],
)
def test_a_broker_does_not_start_without_its_users(content, error, why):
    async def life():
        disk = SimDisk()
        async with opened(disk) as desk:
            await desk.broker.users.alter_credentials([], [upsertion()])
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
