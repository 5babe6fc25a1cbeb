"""OAUTHBEARER: the example of RFC 7628, section 4.1, and messages that are none."""

import base64
from urllib.parse import urlsplit

import pytest

from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.oauthbearer import (
    decode_error,
    decode_token,
    encode_error,
    encode_token,
    expiry_of,
    is_server_url,
)

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


@pytest.mark.parametrize(
    ("claims", "expiry_s"),
    [
        (b'{"exp": 1700000000}', 1.7e9),
        (b'{"exp": 1700000000.5, "sub": "a"}', 1_700_000_000.5),
        (b'{"exp": true}', None),
        (b'{"exp": "1"}', None),
        (b'{"exp": 1e400}', None),
        (b'{"exp": -1}', None),
        (b'{"exp": NaN}', None),
        (b"{}", None),
        (b"[]", None),
        (b"7", None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_a_token_tells_when_it_expires(claims, expiry_s):
    encoded = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    assert expiry_of(f"h.{encoded}.s") == expiry_s


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c.d", "..", "a.\xe4.c", "a.!.c"])
def test_what_is_no_token_tells_nothing(text):
    assert expiry_of(text) is None


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("https://example.com/token", True),
        ("http://127.0.0.1:8080/token", True),
        ("http://[::1]/token", True),
        ("http://localhost/token", True),
        ("http://example.com/token", False),
        ("http://127.0.0.1.example.com/token", False),
        ("http://10.0.0.1/token", False),
        ("https:///token", False),
        ("https://example.com:port/token", False),
        ("https://example.com:99999/token", False),
        ("https://b\xfccher.example/token", True),
        ("https://example..com/token", False),
        (f"https://{'a' * 64}.com/token", False),
        ("https://exa mple.com/token", False),
        ("https://example.com/\xe4", False),
        ("https://example.com/a b", False),
        ("https://example.com/token?a=\x7f", False),
        ("file:///token", False),
        ("ftp://localhost/token", False),
        ("", False),
    ],
)
def test_a_server_that_the_network_can_replace_is_refused(url, is_accepted):
    assert is_server_url(urlsplit(url)) == is_accepted
