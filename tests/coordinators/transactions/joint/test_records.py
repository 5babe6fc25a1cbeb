"""The record of a joint commit's key, as it is written now and as it was."""

import pytest

from stablelog.coordinators.transactions.joint.records import JointState, decode_joint, encode_joint
from stablelog.errors import Corrupt, NewerFormat

FULL = JointState(7, 42, 8, -1, 1_700_000_000_000, "r", ("p", "q"), "o", "of offsets", 99)


def test_what_is_written_is_read() -> None:
    assert decode_joint(encode_joint(FULL)) == FULL
    assert decode_joint(encode_joint(JointState())) == JointState()


def test_records_of_version_0_are_read() -> None:
    written = bytes.fromhex(
        "00000000000000000007000000000000002affffffffffffffffffffffffffffffff0000018bcfe5680000000000"
    )
    assert decode_joint(written) == JointState(7, 42, update_ms=1_700_000_000_000)


def test_records_that_are_cut_or_newer_are_refused() -> None:
    written = encode_joint(FULL)
    for size in range(len(written)):
        with pytest.raises(Corrupt):
            decode_joint(written[:size])
    with pytest.raises(Corrupt, match="follow the last field"):
        decode_joint(written + b"\0")
    with pytest.raises(NewerFormat, match=r"a joint commit's key of version 2; .* up to 1"):
        decode_joint(b"\0\2" + written[2:])
    with pytest.raises(Corrupt, match="version -1; versions 0 to 1 can be read"):
        decode_joint(b"\xff\xff" + written[2:])
