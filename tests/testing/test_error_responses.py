"""An error response of each API and version can be read, and reports the error for all that was asked for."""

import dataclasses
import io
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from stablelog.errors import UsageError
from stablelog.testing.error_responses import WITHOUT_ERRORS, error_named, error_response
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import PREFIX, message_class
from tests.broker.desk import frame, part, read_answer
from tests.broker.test_any_request import made
from tests.declared_apis import APIS

CASES = [
    (key, version)
    for key, api in APIS.items()
    if key not in WITHOUT_ERRORS
    for version in api.served_versions
]


class OneOfEach:
    """A chance that gives each array one entry, and leaves nothing out that may be left out."""

    def random(self):
        return 0.9

    def choice(self, values):
        return values[1]

    def randrange(self, *_):
        return 1


def request(api_key, version):
    message = message_class(api_key, version, "request")
    body = io.BytesIO()
    entity_writer(message)(body, made(message, OneOfEach()))
    return PREFIX.pack(api_key, version, 7) + b"\0\2me" + b"\0" * message.__flexible__ + body.getvalue()


def errors_in(message):
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.type is ErrorCode:
            yield value
        for entry in value if isinstance(value, tuple) else ():
            if dataclasses.is_dataclass(entry):
                yield from errors_in(entry)


@pytest.mark.parametrize(
    ("api_key", "version"), CASES, ids=lambda one: one.message_name if isinstance(one, ApiKey) else str(one)
)
def test_every_version_of_every_api_reports_the_error(api_key, version):
    data = error_response(request(api_key, version), ErrorCode.not_coordinator)
    answer, correlation_id = read_answer(api_key, version, data)
    found = list(errors_in(answer))
    assert correlation_id == 7
    assert ErrorCode.not_coordinator in found
    if api_key != ApiKey.FETCH:  # its other error is that of the session
        assert set(found) == {ErrorCode.not_coordinator}


def test_an_entry_of_the_response_has_the_name_of_the_entry_of_the_request():
    def topic(version):
        partition = part(
            8,
            version,
            "request",
            "OffsetCommitRequestPartition",
            partition_index=3,
            committed_offset=5,
            committed_metadata=None,
        )
        return part(8, version, "request", "OffsetCommitRequestTopic", name="t", partitions=(partition,))

    asked = frame(8, 9, group_id="g", member_id="m", topics=(topic(9),))
    answer, _ = read_answer(8, 9, error_response(asked, ErrorCode.illegal_generation))
    assert [(one.name, [it.partition_index for it in one.partitions]) for one in answer.topics] == [
        ("t", [3])
    ]
    asked = frame(10, 4, key_type=0, coordinator_keys=("g", "h"))
    answer, _ = read_answer(10, 4, error_response(asked, ErrorCode.coordinator_not_available))
    assert [one.key for one in answer.coordinators] == ["g", "h"]


def test_a_request_without_a_response_has_no_error_response():
    asked = frame(0, 9, transactional_id=None, acks=0, timeout=timedelta(0), topic_data=())
    assert error_response(asked, ErrorCode.not_coordinator) is None


def test_an_error_is_named_as_in_kafkas_protocol():
    assert error_named("not_leader_or_follower") is ErrorCode.not_leader_or_follower
    with pytest.raises(UsageError, match="no error 'PRODUCER_FENCE'; did you mean PRODUCER_FENCED"):
        error_named("PRODUCER_FENCE")
