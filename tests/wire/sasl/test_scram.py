"""SCRAM: the exchange of RFC 7677, section 3, on both sides; and messages that are none."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.wire.sasl import SaslMessageError, scram
from stablelog.wire.sasl.scram import Mechanism, ScramClient

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def client(password="pencil"):
    return ScramClient(Mechanism.SHA_256, "user", password, "rOprNGfwEbeRWgbNEkqO")


def test_the_client_of_rfc_7677():
    one = client()
    assert one.first() == FIRST
    assert one.final(SERVER_FIRST) == FINAL
    one.check(SERVER_FINAL)


def test_the_server_of_rfc_7677():
    first, final = scram.decode_client_first(FIRST), scram.decode_client_final(FINAL)
    assert (first.user, first.gs2_header, final.channel) == ("user", "n,,", b"n,,")
    keys = scram.keys_of(Mechanism.SHA_256, scram.salted_password(Mechanism.SHA_256, "pencil", SALT, 4096))
    assert scram.encode_server_first(NONCE, SALT, 4096) == SERVER_FIRST
    message = scram.auth_message_of(first.bare, SERVER_FIRST, final.unproven)
    assert scram.is_proof(Mechanism.SHA_256, keys, message, final.proof)
    signature = scram.server_signature(Mechanism.SHA_256, keys, message)
    assert scram.encode_server_final(signature) == SERVER_FINAL
    assert not scram.is_proof(Mechanism.SHA_256, keys, message + b"x", final.proof)
    assert not scram.is_proof(Mechanism.SHA_256, keys, message, final.proof[:-1])


@pytest.mark.parametrize(
    "server_first",
    [
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # another nonce
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # only the client's own nonce
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", b"999999999"),  # the client would compute for hours
        SERVER_FIRST.replace(b"==", b"="),
        b"e=other-error",
        b"",
        b"\xff",
    ],
)
def test_the_client_refuses_a_false_server(server_first):
    one = client()
    one.first()
    with pytest.raises(SaslMessageError):
        one.final(server_first)


@pytest.mark.parametrize("server_final", [b"v=AAAA", b"e=invalid-proof", b"", SERVER_FINAL[:-2] + b"8="])
def test_the_client_refuses_a_server_that_does_not_know_the_credential(server_final):
    one = client()
    one.first()
    one.final(SERVER_FIRST)
    with pytest.raises(SaslMessageError):
        one.check(server_final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=,r=abc",
        b"y,,n=user,r=abc",  # the client supports channel binding, and thinks that the server does not
        b"p=tls-unique,,n=user,r=abc",  # the client demands channel binding
        b"n,,m=1,n=user,r=abc",  # a mandatory extension
        b"n,,n=a=b,r=abc",  # an equals sign without an escape
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=user,r=abc,",
    ],
)
def test_other_first_messages_are_refused(message):
    with pytest.raises(SaslMessageError):
        scram.decode_client_first(message)


def test_the_proof_has_one_encoding():
    other = FINAL[:-2] + bytes([FINAL[-2] + 1]) + b"="  # the last character has two unused bits
    assert base64.b64decode(other.partition(b",p=")[2]) == base64.b64decode(FINAL.partition(b",p=")[2])
    with pytest.raises(SaslMessageError):
        scram.decode_client_final(other)


@given(NAMES)
def test_any_user_name_arrives(user):
    message = ScramClient(Mechanism.SHA_512, user, "x", "abc").first()
    assert scram.decode_client_first(message).user == user


def test_extensions_are_read():
    first = scram.decode_client_first(b"n,a=me=2Ctoo,n=user,r=abc,tokenauth=true")
    assert first.extensions == {"tokenauth": "true"}
    assert first.authorization_id == "me,too"


def test_objects_do_not_show_secrets():
    one = client("very secret")
    one.first()
    one.final(SERVER_FIRST)
    assert "secret" not in repr(one)
    assert "hidden" in repr(scram.Keys(b"stored", b"server"))
