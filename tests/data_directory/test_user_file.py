"""The content of `users.json`: the credentials come back, and an error quotes no part of them."""

from pathlib import Path

import pytest

from stablelog.data_directory.registered_file import encode_json
from stablelog.data_directory.user_file import decode_users, encode_users, user_file
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.security.credentials import SECRET_SIZE, CredentialTable, CredentialUpsertion
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.sasl.scram import Mechanism

DATA = Path("/data")
SECRET = bytes(range(SECRET_SIZE))
USERS, _ = CredentialTable(SECRET).with_changes(
    [],
    [
        CredentialUpsertion("alice", 1, 4096, b"salt", b"s" * 32),
        CredentialUpsertion("bob", 2, 8192, b"other", b"t" * 64),
    ],
)
ONE = {"iterations": 4096, "salt": "c2FsdA==", "stored_key": "QQ==" * 8, "server_key": "QQ==" * 8}


def fresh():
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(DATA / "meta.properties", b"version=1\n")
    return disk


def test_users_are_read_as_they_were_written():
    found = decode_users(encode_users(USERS))
    assert found.users == USERS.users
    assert found.users["alice"].keys() == {Mechanism.SHA_256}


def test_the_credentials_of_unknown_users_stay_the_same():
    """They are derived from a secret, which is stored with the users."""
    assert decode_users(encode_users(USERS)).find_any("nobody") == USERS.find_any("nobody")


def test_a_directory_without_users_has_none_and_its_secret_is_stored_with_the_first():
    disk = fresh()
    file = user_file(disk, DATA)
    credentials = file.load()
    assert credentials.users == {}
    assert not disk.exists(file.path)
    file.store(encode_users(credentials))
    assert user_file(disk, DATA).load().find_any("nobody") == credentials.find_any("nobody")


def test_two_directories_have_two_secrets():
    first, second = (user_file(fresh(), DATA).load() for _ in range(2))
    assert first.find_any("nobody") != second.find_any("nobody")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"secret": "QQ==", "users": {}}, "the secret in the file is incomplete"),
        ({"users": {}}, "the file does not hold users"),
        ({"secret": "hunter2", "users": {}}, "the file does not hold users"),
        ({"secret": "QQ==", "users": {"alice": {"MD5": ONE}}}, "the file does not hold users"),
        ({"secret": "QQ==", "users": {"alice": {"SCRAM-SHA-256": ONE}}}, "the file does not hold users"),
        ({"secret": "QQ==", "users": ["hunter2"]}, "the file does not hold users"),
    ],
    ids=str,
)
def test_a_file_that_holds_no_users_is_refused_and_nothing_of_it_is_quoted(members, why):
    with pytest.raises(DamageError, match=f"^{why}$"):
        decode_users(encode_json(1, members))


def test_a_file_of_a_later_release_is_refused_by_version():
    with pytest.raises(UnknownFormatError, match=r"^the users' credentials of version 2; this release reads"):
        decode_users(encode_json(2, {}))


def test_a_version_that_no_release_can_have_is_damage():
    with pytest.raises(DamageError, match="the file has version 5000, and this release reads version 1"):
        decode_users(encode_json(5000, {}))
