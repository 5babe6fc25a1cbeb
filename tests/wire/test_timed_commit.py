"""The OffsetCommit requests of versions 2 to 4 have a retention time, which newer versions do not have."""

import dataclasses

import pytest
from kio.schema.offset_commit.v9.request import OffsetCommitRequest

from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import message_class
from stablelog.wire.timed_commit import TimedOffsetCommitRequest


def test_a_handler_reads_a_request_with_a_retention_time_like_one_of_the_newest_version():
    request = TimedOffsetCommitRequest(group_id="g", member_id="m", topics=(), retention_ms=5)
    assert isinstance(request, OffsetCommitRequest)
    assert (request.group_id, request.member_id, request.retention_ms) == ("g", "m", 5)
    assert request.generation_id_or_member_epoch == -1


def test_a_request_without_a_retention_time_is_no_such_request():
    with pytest.raises(TypeError, match="retention_ms"):
        TimedOffsetCommitRequest(group_id="g", member_id="m", topics=())


@pytest.mark.parametrize(("version", "has_field"), [(2, True), (4, True), (5, False), (9, False)])
def test_the_versions_that_have_the_retention_time_are_those_of_the_class(version, has_field):
    fields = {one.name for one in dataclasses.fields(message_class(ApiKey.OFFSET_COMMIT, version, "request"))}
    assert ("retention_time" in fields) is has_field
