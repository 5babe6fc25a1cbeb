"""The bytes of DescribeCommits, which clients of other languages write and read by docs/reference/protocol.md."""

import struct
import uuid

import pytest
from kio.schema.errors import ErrorCode

from stablelog.wire.extension.commits import (
    COUNT_MAX,
    DescribeCommitsRequest,
    DescribeCommitsResponse,
    DescribedCommit,
)
from tests.wire.extension.coding import decoded, encoded

NO_TAGS = b"\0"
TOPIC_ID = uuid.UUID(int=7)

MESSAGES = {
    "a request for all transactions from the beginning": (
        DescribeCommitsRequest(topic="t", partition_index=1),
        b"\2t" + struct.pack(">iqqi?i", 1, 0, -1, COUNT_MAX, False, 0) + NO_TAGS,
    ),
    "a request for the next one after a commit": (
        DescribeCommitsRequest(
            topic="t",
            partition_index=1,
            offset=4,
            commit_sequence=8,
            count_max=1,
            with_outside=True,
            max_wait_ms=500,
        ),
        b"\2t" + struct.pack(">iqqi?i", 1, 4, 8, 1, True, 500) + NO_TAGS,
    ),
    "a response with one transaction": (
        DescribeCommitsResponse(
            error_code=ErrorCode.none,
            topic_id=TOPIC_ID,
            log_start_offset=2,
            end_offset=9,
            commits=(DescribedCommit(start_offset=4, end_offset=6, commit_sequence=8, time_ms=99),),
        ),
        b"\0\0\0"
        + TOPIC_ID.bytes
        + struct.pack(">qq", 2, 9)
        + (b"\2" + struct.pack(">qqqq", 4, 6, 8, 99) + NO_TAGS)
        + NO_TAGS,
    ),
    "a refusal": (
        DescribeCommitsResponse(error_code=ErrorCode.invalid_request, error_message="no"),
        struct.pack(">h", ErrorCode.invalid_request)
        + b"\3no"
        + bytes(16)
        + struct.pack(">qq", -1, -1)
        + b"\1"
        + NO_TAGS,
    ),
}


def test_a_request_lists_a_thousand_transactions_unless_it_says_less():
    assert DescribeCommitsRequest(topic="t", partition_index=1).count_max == COUNT_MAX == 1000


@pytest.mark.parametrize(("message", "data"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_has_these_bytes(message, data):
    assert encoded(message) == data
    assert decoded(type(message), data) == message
