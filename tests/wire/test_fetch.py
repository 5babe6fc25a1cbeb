"""The hand-read Fetch request is what kio makes of the same bytes."""

import importlib
import io
import uuid
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import FetchRequest, ForgottenTopic, WantedPartition, WantedTopic
from stablelog.wire.messages import PREFIX, decode_request, message_class
from tests.declared_apis import APIS

VERSIONS = APIS[ApiKey.FETCH].served_versions
int32 = st.integers(-(2**31), 2**31 - 1)
places = st.tuples(st.text("añ-_.", max_size=20), st.uuids() | st.none())
partitions = st.lists(
    st.builds(WantedPartition, int32, st.integers(-(2**63), 2**63 - 1), int32, int32), max_size=3
)
topics = st.lists(st.builds(lambda place, asked: WantedTopic(*place, asked), places, partitions), max_size=3)
forgotten = st.lists(
    st.builds(lambda place, indexes: ForgottenTopic(*place, indexes), places, st.tuples(int32, int32)),
    max_size=2,
)
requests = st.builds(FetchRequest, int32, int32, int32, st.booleans(), int32, int32, topics, forgotten)


def frame_of(version, request):
    message = message_class(ApiKey.FETCH, version, "request")
    module = importlib.import_module(message.__module__)
    identity = (lambda t: {"topic_id": t.topic_id}) if version >= 13 else (lambda t: {"topic": t.name})
    fields = {
        "max_wait": timedelta(milliseconds=request.wait_ms_max),
        "min_bytes": request.size_min,
        "max_bytes": request.size_max,
        "isolation_level": int(request.is_committed),
        "topics": tuple(
            module.FetchTopic(
                **identity(topic),
                partitions=tuple(
                    module.FetchPartition(
                        partition=asked.partition,
                        fetch_offset=asked.fetch_offset,
                        partition_max_bytes=asked.size_max,
                        **({"current_leader_epoch": asked.current_leader_epoch} if version >= 9 else {}),
                        **({"last_fetched_epoch": 5} if version >= 12 else {}),
                        **({"log_start_offset": 6} if version >= 5 else {}),
                        **({"replica_directory_id": uuid.UUID(int=7)} if version >= 17 else {}),
                    )
                    for asked in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    }
    if version >= 7:
        fields |= {"session_id": request.session_id, "session_epoch": request.session_epoch}
        fields["forgotten_topics_data"] = tuple(
            module.ForgottenTopic(**identity(topic), partitions=topic.partitions)
            for topic in request.forgotten
        )
    if version >= 11:
        fields["rack_id"] = "räck"
    if version >= 12:
        fields["cluster_id"] = "mine"
    body = io.BytesIO()
    entity_writer(message)(body, message(**fields))
    head = PREFIX.pack(ApiKey.FETCH, version, 7) + b"\0\2me" + (b"\0" if message.__flexible__ else b"")
    return head + body.getvalue()


def known_to(version, request):
    """The request without what its version does not have."""
    has_ids = version >= 13

    def identity(topic):
        no_id = topic.topic_id is None or not topic.topic_id.int
        return {
            "name": None if has_ids else topic.name,
            "topic_id": topic.topic_id if has_ids and not no_id else None,
        }

    def asked(one):
        return one if version >= 9 else one._replace(current_leader_epoch=-1)

    found = request._replace(
        topics=[
            t._replace(**identity(t), partitions=[asked(p) for p in t.partitions]) for t in request.topics
        ],
        forgotten=[topic._replace(**identity(topic)) for topic in request.forgotten],
    )
    return found if version >= 7 else found._replace(session_id=0, session_epoch=-1, forgotten=[])


@settings(deadline=None)
@given(st.sampled_from(VERSIONS), requests)
def test_what_kio_writes_is_read(version, request):
    client_id, found = decode_request(APIS[ApiKey.FETCH], version, frame_of(version, request))
    assert client_id == "me"
    assert found == known_to(version, request)


EXAMPLE = FetchRequest(
    500,
    1,
    1 << 20,
    True,
    3,
    4,
    [WantedTopic("t", uuid.UUID(int=1), [WantedPartition(0, 5, 100, 2)])],
    [ForgottenTopic("u", uuid.UUID(int=2), (1, 2))],
)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_short_is_refused(version):
    frame = frame_of(version, EXAMPLE)
    for end in range(8, len(frame)):
        with pytest.raises(RefusedError) as caught:
            decode_request(APIS[ApiKey.FETCH], version, frame[:end])
        assert caught.value.code is ErrorCode.invalid_request


def test_bytes_behind_a_request_are_ignored():
    frame = frame_of(12, EXAMPLE)
    assert decode_request(APIS[ApiKey.FETCH], 12, frame + b"more") == decode_request(
        APIS[ApiKey.FETCH], 12, frame
    )
