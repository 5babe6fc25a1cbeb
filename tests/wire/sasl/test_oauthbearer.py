"""OAUTHBEARER: the example of RFC 7628, section 4.1, and messages that are none."""

import pytest

from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.oauthbearer import decode_error, decode_token, encode_error, encode_token

TOKEN = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
EXAMPLE = (
    b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer "
    + TOKEN.encode()
    + b"\x01\x01"
)


def test_the_example_of_rfc_7628():
    found = decode_token(EXAMPLE)
    assert (found.authorization_id, found.token) == ("user@example.com", TOKEN)
    assert found.extensions == {"host": "server.example.com", "port": "143"}


def test_what_is_encoded_is_decoded():
    message = encode_token("a.b-c_d", {"traceId": "1 2"}, "me,=too")
    assert decode_token(message) == ("me,=too", "a.b-c_d", {"traceId": "1 2"})
    assert encode_token("a.b.c") == b"n,,\x01auth=Bearer a.b.c\x01\x01"
    assert decode_error(encode_error("invalid_token")) == "status: invalid_token"
    assert decode_error(b"[]") == decode_error(b"\xff") == "the server refuses the token"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer def\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer abc\xff\x01\x01",
        EXAMPLE + b"x",
    ],
)
def test_other_messages_are_refused(message):
    with pytest.raises(SaslMessageError):
        decode_token(message)


@pytest.mark.parametrize(
    ("token", "extensions"), [("a b", {}), ("a", {"auth": "x"}), ("a", {"b1": "x"}), ("a", {"b": "\x01"})]
)
def test_what_cannot_be_sent_is_refused(token, extensions):
    with pytest.raises(SaslMessageError):
        encode_token(token, extensions)


def test_a_message_does_not_show_its_token():
    assert TOKEN not in repr(decode_token(EXAMPLE))
