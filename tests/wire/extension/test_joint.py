"""The bytes of the joint commit's messages, which clients of other languages write and read by docs/reference/protocol.md."""

import struct

import pytest
from kio.schema.errors import ErrorCode

from stablelog.wire.extension.joint import (
    AbortJointRequest,
    AbortJointResponse,
    BeginJointRequest,
    BeginJointResponse,
    CommitJointRequest,
    CommitJointResponse,
    JointChild,
    JointOffset,
)
from tests.wire.extension.coding import decoded, encoded

NO_TAGS = b"\0"
CHILD = JointChild(transactional_id="c", producer_id=7, producer_epoch=2)
CHILD_BYTES = b"\2c" + struct.pack(">qh", 7, 2) + NO_TAGS
OFFSET = JointOffset(group_id="g", topic="t", partition_index=1, committed_offset=9)
OFFSET_BYTES = b"\2g\2t" + struct.pack(">iq", 1, 9) + b"\0" + NO_TAGS

MESSAGES = {
    "a question whether a version is open": (
        BeginJointRequest(key="k", version=3),
        b"\1\2k" + struct.pack(">q", 3) + b"\0" + struct.pack(">q", -1) + NO_TAGS,
    ),
    "the begin of a run": (
        BeginJointRequest(group="p", key="k", version=3, run="r", order=4),
        b"\2p\2k" + struct.pack(">q", 3) + b"\2r" + struct.pack(">q", 4) + NO_TAGS,
    ),
    "a version that is open": (
        BeginJointResponse(error_code=ErrorCode.none),
        b"\0\0\0\0" + struct.pack(">qq", -1, -1) + b"\0\0" + NO_TAGS,
    ),
    "a version that is committed": (
        BeginJointResponse(
            error_code=ErrorCode.none,
            committed=True,
            commit_sequence=5,
            last_version=3,
            committed_run="r",
            digest="d",
        ),
        b"\0\0\0\1" + struct.pack(">qq", 5, 3) + b"\2r\2d" + NO_TAGS,
    ),
    "a commit of a child and an offset": (
        CommitJointRequest(
            key="k",
            version=3,
            run="r",
            retention_ms=60,
            digest="d",
            children=(CHILD,),
            group_offsets=(OFFSET,),
        ),
        b"\1\2k"
        + struct.pack(">q", 3)
        + b"\2r"
        + struct.pack(">q", 60)
        + b"\2d"
        + (b"\2" + CHILD_BYTES)
        + (b"\2" + OFFSET_BYTES)
        + NO_TAGS,
    ),
    "a commit of nothing": (
        CommitJointRequest(key="k", version=3, children=()),
        b"\1\2k" + struct.pack(">q", 3) + b"\0" + struct.pack(">q", -1) + b"\0\1\1" + NO_TAGS,
    ),
    "a commit that was made": (
        CommitJointResponse(error_code=ErrorCode.none, commit_sequence=5, already=True, committed_run="r"),
        b"\0\0\0" + struct.pack(">q", 5) + b"\1\2r\0" + NO_TAGS,
    ),
    "a commit that is refused": (
        CommitJointResponse(error_code=ErrorCode.invalid_request, error_message="no"),
        struct.pack(">h", ErrorCode.invalid_request) + b"\3no" + struct.pack(">q", -1) + b"\0\0\0" + NO_TAGS,
    ),
    "an abort that was made": (
        AbortJointResponse(error_code=ErrorCode.none),
        b"\0\0\0\0" + struct.pack(">q", -1) + NO_TAGS,
    ),
    "an abort of a child": (
        AbortJointRequest(key="k", version=3, children=(CHILD,)),
        b"\1\2k" + struct.pack(">q", 3) + b"\0\2" + CHILD_BYTES + NO_TAGS,
    ),
    "an abort that came too late": (
        AbortJointResponse(
            error_code=ErrorCode.invalid_txn_state, error_message="no", committed=True, commit_sequence=5
        ),
        struct.pack(">h", ErrorCode.invalid_txn_state) + b"\3no\1" + struct.pack(">q", 5) + NO_TAGS,
    ),
}


@pytest.mark.parametrize(("message", "data"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_has_these_bytes(message, data):
    assert encoded(message) == data
    assert decoded(type(message), data) == message


def test_a_request_must_say_which_version_of_which_key_it_means():
    with pytest.raises(TypeError, match="'key' and 'version'"):
        BeginJointRequest()
    with pytest.raises(TypeError, match="'children'"):
        CommitJointRequest(key="k", version=3)
