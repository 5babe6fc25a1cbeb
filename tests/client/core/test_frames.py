"""Frames of Kafka's protocol: a size, a header and a body. Responses come in the order of the requests."""

import pytest

from stablelog.client.core import frames as module
from stablelog.client.core.frames import RESPONSE_SIZE_MAX, SIZE, ClientFrames
from stablelog.wire.api import ApiKey


def sent(frames, key=ApiKey.METADATA, body=b""):
    """Encode a request, and note that it was sent. Return its correlation id."""
    frame = b"".join(frames.encode_request(key, 0, [body], flexible=False))
    frames.add_in_flight(key)
    return int.from_bytes(frame[8:12])


def response(correlation_id, body=b"body"):
    return memoryview(correlation_id.to_bytes(4) + body)


def test_a_request_that_is_encoded_is_in_flight_only_after_it_was_sent():
    frames = ClientFrames("me")
    frames.encode_request(ApiKey.METADATA, 0, [], flexible=False)
    assert not frames.is_awaiting
    frames.add_in_flight(ApiKey.METADATA)
    assert (frames.is_awaiting, frames.awaited_count) == (True, 1)


def test_a_flexible_version_has_tagged_fields_in_both_headers():
    frames = ClientFrames("me")
    assert b"".join(frames.encode_request(ApiKey.FETCH, 12, [b"ab"], flexible=True)).endswith(b"\0\2me\0ab")
    frames.add_in_flight(ApiKey.FETCH)
    assert bytes(frames.match_response(response(1, b"\0body"), flexible=True)) == b"body"


def test_the_header_of_the_response_to_api_versions_has_no_tagged_fields_in_any_version():
    frames = ClientFrames("me")
    number = sent(frames, ApiKey.API_VERSIONS)
    assert bytes(frames.match_response(response(number, b"body"), flexible=True)) == b"body"


def test_requests_are_numbered_and_the_number_wraps(monkeypatch):
    monkeypatch.setattr(module, "CORRELATION_ID_MAX", 3)
    frames = ClientFrames("me")
    assert [sent(frames) for _ in range(5)] == [1, 2, 3, 0, 1]


def test_requests_that_are_set_aside_are_awaited_again_after_those_between():
    frames = ClientFrames("me")
    first = sent(frames, ApiKey.FETCH)
    held = frames.remove_in_flight()
    assert not frames.is_awaiting
    between = sent(frames, ApiKey.SASL_AUTHENTICATE)
    frames.match_response(response(between), flexible=False)
    frames.restore_in_flight(held)
    assert frames.next_api_key == ApiKey.FETCH
    assert bytes(frames.match_response(response(first), flexible=False)) == b"body"


def test_a_response_is_of_the_oldest_request():
    frames = ClientFrames("me")
    for key in (ApiKey.METADATA, ApiKey.FETCH):
        sent = b"".join(frames.encode_request(key, 0, [b"ab", b"c"], flexible=False))
        assert SIZE.unpack_from(sent)[0] == len(sent) - SIZE.size
        assert sent.endswith(b"\0\2meabc")
        frames.add_in_flight(key)
    assert frames.next_api_key == ApiKey.METADATA
    assert bytes(frames.match_response(memoryview(b"\0\0\0\1body"), flexible=False)) == b"body"
    assert frames.is_awaiting
    with pytest.raises(ValueError, match="belongs to another request"):
        frames.match_response(memoryview(b"\0\0\0\1body"), flexible=False)


@pytest.mark.parametrize("size", [-1, 3, RESPONSE_SIZE_MAX + 1])
def test_a_size_that_no_response_has_is_refused(size):
    with pytest.raises(ValueError, match=f"a response of {size} bytes"):
        ClientFrames("me").read_size(SIZE.pack(size))
    assert ClientFrames("me").read_size(SIZE.pack(4)) == 4
