"""The record of a joint commit's key."""

from dataclasses import replace

import pytest

from stablelog.coordinators.transactions.joint.records import JointState, decode_joint, encode_joint
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch
from stablelog.errors import DamageError, UnknownFormatError

FULL = JointState(7, 42, 8, -1, 1_700_000_000_000, "r", ("p", "q"), "o", "of offsets", 99)
ACCEPTING = replace(FULL, accepted=(ProducerIdAndEpoch(2**40, 3), ProducerIdAndEpoch(5, 0)))


def test_what_is_written_is_read() -> None:
    assert decode_joint(encode_joint(FULL)) == FULL
    assert decode_joint(encode_joint(JointState())) == JointState()
    assert decode_joint(encode_joint(ACCEPTING)) == ACCEPTING


def test_only_a_record_that_names_children_has_the_newest_version() -> None:
    assert (encode_joint(FULL)[:2], encode_joint(ACCEPTING)[:2]) == (b"\0\1", b"\0\2")
    assert encode_joint(ACCEPTING)[2:].startswith(encode_joint(FULL)[2:])
    assert encode_joint(ACCEPTING).endswith(
        bytes.fromhex("00000002 0000010000000000 0003 0000000000000005 0000")
    )


def test_records_of_version_0_are_refused() -> None:
    written = bytes.fromhex(
        "00000000000000000007000000000000002affffffffffffffffffffffffffffffff0000018bcfe5680000000000"
    )
    with pytest.raises(
        UnknownFormatError, match=r"^a joint commit's key of version 0; no release has written"
    ):
        decode_joint(written)


@pytest.mark.parametrize("state", [FULL, ACCEPTING])
def test_records_that_are_cut_or_newer_are_refused(state: JointState) -> None:
    written = encode_joint(state)
    for size in range(len(written)):
        with pytest.raises(DamageError):
            decode_joint(written[:size])
    with pytest.raises(DamageError, match="follow the last field"):
        decode_joint(written + b"\0")
    with pytest.raises(UnknownFormatError, match=r"a joint commit's key of version 3; .* up to 2"):
        decode_joint(b"\0\3" + written[2:])
    with pytest.raises(DamageError, match="the version is -1, and only versions 1 to 2 can be read"):
        decode_joint(b"\xff\xff" + written[2:])
