"""The content of `acls.json`: every rule comes back, and no row that is no rule is read."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.data_directory.acl_file import ROWS_AT_ONCE, acl_file, decode_acls, encode_acls
from stablelog.data_directory.registered_file import with_crc
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.acls import AclBinding, Operation, Pattern, PatternType, Permission, ResourceType
from tests.scale import examples

ROW = ["TOPIC", "PREFIXED", "orders", "User:alice", "*", "READ", "ALLOW"]
RULE = AclBinding(
    Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED),
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
rules = st.builds(
    AclBinding,
    st.builds(
        Pattern,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID]),
        st.text(min_size=1, max_size=4),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    ),
    st.sampled_from(["User:a", "User:*", 'User:"ä"']),
    st.sampled_from(["*", "10.0.0.1", "2001:db8::1"]),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.DESCRIBE]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def content_of(*rows, version=1):
    return with_crc(json.dumps({"version": version, "acls": rows}).encode())


@settings(max_examples=examples(25))
@given(st.lists(rules, max_size=5))
def test_rules_are_read_as_they_were_written(written):
    assert decode_acls(encode_acls(written)) == written


@pytest.mark.parametrize("count", [0, 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 3])
def test_rules_that_are_encoded_in_parts_make_one_line_of_json(count):
    text, _ = encode_acls([RULE] * count).splitlines()
    assert json.loads(text) == {"version": 1, "acls": [ROW] * count}


@pytest.mark.parametrize(
    "row",
    [
        ROW[:-1],
        [*ROW, "x"],
        ["TABLE", *ROW[1:]],
        [*ROW[:6], "PERHAPS"],
        [*ROW[:5], "ANY", "ALLOW"],
        ["TOPIC", "MATCH", *ROW[2:]],
        [*ROW[:3], "alice", *ROW[4:]],
        7,
    ],
    ids=str,
)
def test_a_row_that_is_no_rule_is_refused(row):
    assert decode_acls(content_of(ROW)) == [RULE]
    with pytest.raises(DamageError, match=r"^the file does not hold the ACLs: "):
        decode_acls(content_of(ROW, row))


def test_a_file_of_a_later_release_is_refused_by_version():
    with pytest.raises(
        UnknownFormatError, match=r"^the ACLs of version 2; this release reads versions up to 1"
    ):
        decode_acls(content_of(version=2))


def test_a_directory_that_never_had_acls_has_none():
    disk = SimDisk()
    disk.make_dir(Path("/data"))
    disk.write_atomic(Path("/data/meta.properties"), b"version=1\n")
    file = acl_file(disk, Path("/data"))
    assert file.load() == []
    file.store(encode_acls([RULE]))
    assert acl_file(disk, Path("/data")).load() == [RULE]
