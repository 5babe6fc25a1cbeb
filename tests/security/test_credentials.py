"""Credentials: Kafka's rules of a change, and that nothing tells an unknown user from a known one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.errors import DamageError
from stablelog.security.credentials import (
    CredentialDeletion,
    CredentialTable,
    CredentialUpsertion,
    derive,
    is_password,
)
from stablelog.wire.sasl.scram import SALT_SIZE, Mechanism, salted_password

SECRET = b"s" * 32
SHA_256, SHA_512 = Mechanism.SHA_256, Mechanism.SHA_512


def upsertion(user, mechanism=SHA_256, iterations=4096, salt=b"salt", password="pw"):
    return CredentialUpsertion(
        user, mechanism.value, iterations, salt, salted_password(mechanism, password, salt, iterations)
    )


def with_users(*upsertions):
    credentials, outcomes = CredentialTable(SECRET).with_changes([], upsertions)
    assert {one.code for one in outcomes} <= {ErrorCode.none}
    return credentials


def codes(outcomes):
    return {one.user: one.code.name for one in outcomes}


def test_a_password_is_checked():
    credentials = with_users(upsertion("alice"), upsertion("bob", SHA_512))
    for user, mechanism in (("alice", SHA_256), ("bob", SHA_512)):
        found = credentials.find_any(user)
        assert found.mechanism is mechanism
        assert is_password(found, "pw")
        assert not is_password(found, "PW")
    assert not is_password(credentials.find_any("carol"), "pw")


def test_the_outcome_of_each_user():
    credentials = with_users(upsertion("alice"), upsertion("bob"))
    after, outcomes = credentials.with_changes(
        [
            CredentialDeletion("alice", 1),
            CredentialDeletion("bob", 2),
            CredentialDeletion("nobody", 1),
            CredentialDeletion("", 1),
            CredentialDeletion("x", 3),
        ],
        [
            upsertion("few")._replace(iterations=4095),
            upsertion("many")._replace(iterations=16_385),
            upsertion("new"),
        ],
    )
    assert codes(outcomes) == {
        "alice": "none",
        "bob": "resource_not_found",
        "nobody": "resource_not_found",
        "": "unacceptable_credential",
        "x": "unsupported_sasl_mechanism",
        "few": "unacceptable_credential",
        "many": "unacceptable_credential",
        "new": "none",
    }
    assert after.users.keys() == {"bob", "new"}
    assert credentials.users.keys() == {"alice", "bob"}


def test_a_user_is_changed_once_in_a_request():
    credentials = with_users(upsertion("alice"))
    after, outcomes = credentials.with_changes(
        [CredentialDeletion("alice", 1), CredentialDeletion("nobody", 1), CredentialDeletion("nobody", 1)],
        [upsertion("alice", SHA_512)],
    )
    assert codes(outcomes) == {"alice": "duplicate_resource", "nobody": "resource_not_found"}
    assert after.users == credentials.users


@pytest.mark.parametrize(
    "change", [{"salt": b""}, {"salt": b"x" * 1025}, {"salted": b"short"}, {"user": "x" * 1025}]
)
def test_what_cannot_be_stored_is_refused(change):
    _, outcomes = CredentialTable(SECRET).with_changes([], [upsertion("alice")._replace(**change)])
    assert [one.code for one in outcomes] == [ErrorCode.unacceptable_credential]


@pytest.mark.extended
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(4096, 4099)), max_size=4),
    st.text(min_size=1),
    st.booleans(),
)
def test_an_unknown_user_looks_like_a_known_one(shapes, user, has_sha_512):
    mechanism = SHA_512 if has_sha_512 else SHA_256
    credential = derive(mechanism, "x", b"x", 1)
    users = {
        f"known {index}": {mechanism: credential._replace(salt=b"x" * size, iterations=iterations)}
        for index, (size, iterations) in enumerate(shapes)
    }
    found = CredentialTable(SECRET, users).find(mechanism, user)
    if found.is_known:
        return
    assert (len(found.credential.salt), found.credential.iterations) in (shapes or [(SALT_SIZE, 8192)])
    assert {len(key) for key in found.credential.keys} == {mechanism.size}
    # The same after a restart, and with more users of the same kind.
    again = (
        CredentialTable.from_json(CredentialTable(SECRET, {**users, "one more": users["known 0"]}).to_json())
        if shapes
        else None
    )
    if again is not None and user != "one more":
        assert again.find(mechanism, user) == found
    other = CredentialTable(b"o" * 32, users).find(mechanism, user)
    assert other.credential.keys != found.credential.keys


def test_the_made_up_salts_differ():
    salts = {
        CredentialTable(SECRET).find(mechanism, user).credential.salt
        for mechanism in Mechanism
        for user in "abcde"
    }
    assert len(salts) == 10


def test_what_is_stored_is_read():
    credentials = with_users(upsertion("alice"), upsertion("bób", SHA_512))
    again = CredentialTable.from_json(credentials.to_json())
    assert again.to_json() == credentials.to_json()
    assert again.users == credentials.users


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"secret": "", "users": {}},
        {"secret": "c2hvcnQ=", "users": {}},
        {"users": {}},
        {"secret": CredentialTable(SECRET).to_json()["secret"], "users": []},
        {"secret": CredentialTable(SECRET).to_json()["secret"], "users": {"a": {"MD5": {}}}},
        {
            "secret": CredentialTable(SECRET).to_json()["secret"],
            "users": {"a": {"SCRAM-SHA-256": {"iterations": 1}}},
        },
    ],
)
def test_other_content_is_damage(content):
    with pytest.raises(DamageError):
        CredentialTable.from_json(content)


def test_no_object_shows_a_secret():
    credentials = with_users(upsertion("alice"))
    shown = repr([credentials, credentials.find_any("alice"), upsertion("alice"), credentials.users])
    assert "hidden" in shown
    assert "\\x" not in shown
    assert "ssss" not in shown
