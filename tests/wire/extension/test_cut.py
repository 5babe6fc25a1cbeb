"""The bytes of DescribeCut, which clients of other languages write and read by docs/reference/protocol.md."""

import struct

from kio.schema.errors import ErrorCode

from stablelog.wire.extension.cut import (
    NOT_KNOWN,
    RESOLVED,
    CutHolder,
    CutPartition,
    CutTopic,
    DescribeCutRequest,
    DescribeCutResponse,
)
from tests.wire.extension.coding import decoded, encoded

NO_TAGS = b"\0"


def test_a_request_without_more_asks_for_the_last_resolved_cut_of_the_group_of_its_topics():
    request = DescribeCutRequest(topics=("ab",))
    data = b"\0" + struct.pack(">q", RESOLVED) + b"\2\3ab" + NO_TAGS
    assert encoded(request) == data
    assert decoded(DescribeCutRequest, data) == request
    assert (request.group, request.commit_sequence) == (None, -1)


def test_a_request_names_a_group_and_a_commit_sequence():
    request = DescribeCutRequest(group="g", commit_sequence=7, topics=("a", "b"))
    data = b"\2g" + struct.pack(">q", 7) + b"\3\2a\2b" + NO_TAGS
    assert encoded(request) == data
    assert decoded(DescribeCutRequest, data) == request


def test_a_response_has_the_offsets_of_the_partitions_and_the_markers_that_hold_it_back():
    partition = CutPartition(
        partition_index=1, offset=9, removed_commit_sequence=NOT_KNOWN, torn_commit_sequence=3
    )
    response = DescribeCutResponse(
        error_code=ErrorCode.none,
        group="g",
        commit_sequence=5,
        last_commit_sequence=6,
        topics=(CutTopic(name="t", partitions=(partition,)),),
        holders=(CutHolder(commit_sequence=6, topic="t", partition_index=0),),
    )
    data = (
        b"\0\0\0\2g"
        + struct.pack(">qq", 5, 6)
        + (b"\2\2t\2" + struct.pack(">iqqq", 1, 9, -2, 3) + NO_TAGS + NO_TAGS)
        + (b"\2" + struct.pack(">q", 6) + b"\1\2t" + struct.pack(">i", 0) + NO_TAGS)
        + NO_TAGS
    )
    assert encoded(response) == data
    assert decoded(DescribeCutResponse, data) == response


def test_a_partition_without_losses_has_no_commit_sequence_of_one():
    partition = CutPartition(partition_index=0, offset=0)
    assert (partition.removed_commit_sequence, partition.torn_commit_sequence) == (-1, -1)
    assert NOT_KNOWN not in (-1, RESOLVED), "unknown is not none"


def test_a_refusal_has_the_error_and_no_offsets():
    refused = DescribeCutResponse(error_code=ErrorCode.invalid_request, error_message="no")
    assert decoded(DescribeCutResponse, encoded(refused)) == refused
    assert (refused.commit_sequence, refused.last_commit_sequence, refused.topics, refused.holders) == (
        -1,
        -1,
        (),
        (),
    )
