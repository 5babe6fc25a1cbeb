"""PLAIN: the examples of RFC 4616, and messages that are none."""

import pytest

from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.plain import decode_plain, encode_plain


def test_the_examples_of_rfc_4616():
    assert decode_plain(b"\0tim\0tanstaaftanstaaf") == ("", "tim", "tanstaaftanstaaf")
    assert decode_plain(b"Ursel\0Kurt\0xipj3plmq") == ("Ursel", "Kurt", "xipj3plmq")
    assert encode_plain("Kurt", "xipj3plmq", "Ursel") == b"Ursel\0Kurt\0xipj3plmq"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0tim",
        b"\0tim\0",
        b"\0\0secret",
        b"tim\0secret",
        b"\0tim\0secret\0",
        b"\0tim\0\xff",
    ],
)
def test_other_bytes_are_refused_without_a_quotation(message):
    with pytest.raises(SaslMessageError) as refused:
        decode_plain(message)
    assert "secret" not in str(refused.value)
    assert "tim" not in str(refused.value)


def test_a_message_does_not_show_its_password():
    assert "pencil" not in repr(decode_plain(encode_plain("user", "pencil")))
