"""Bearer tokens: which signatures and claims are accepted."""

import base64
import hmac
import json
import sys

import pytest
from joserfc import jwk

from stablelog.errors import DamageError, UsageError
from stablelog.security.exchanges import Identity
from stablelog.security.tokens import TOKEN_SIZE_MAX, KeySet, TokenError, TokenRules, UnknownKeyError
from tests.security.keys import NOW_S, document, private_key, public, token

RULES, NOW_MS = TokenRules(), NOW_S * 1000
RSA = private_key()
KEYS = KeySet(
    document(public(RSA, kid="one"), public(private_key("EC"), kid="two"), public(private_key("OKP")))
)
ALICE = Identity("alice", NOW_MS + 3_600_000)


def test_signatures_of_each_kind_of_key():
    assert KEYS.identify(token(RSA), RULES, NOW_MS) == ALICE
    assert KEYS.identify(token(RSA, "PS512"), RULES, NOW_MS) == ALICE
    assert KEYS.identify(token(private_key("EC"), "ES256", "two"), RULES, NOW_MS) == ALICE
    assert KEYS.identify(token(private_key("OKP"), "Ed25519", None), RULES, NOW_MS) == ALICE
    assert KEYS.identify(token(RSA, key_id=None), RULES, NOW_MS) == ALICE


def refused(text, rules=RULES, now_ms=NOW_MS, keys=KEYS):
    with pytest.raises(TokenError) as error:
        keys.identify(text, rules, now_ms)
    return str(error.value)


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_token_without_a_signature_is_refused():
    _, claims, signature = token(RSA).split(".")
    for algorithm in ("none", "None", "", None, 1, ["RS256"]):
        for rest in ("", signature):
            assert refused(f"{encoded({'alg': algorithm, 'kid': 'one'})}.{claims}.{rest}")


@pytest.mark.parametrize("form", ["pem", "json"])
def test_a_public_key_is_no_shared_secret(form):
    """The attack: sign with HMAC, and with the text of the public key as the secret."""
    secret = RSA.as_pem(private=False) if form == "pem" else json.dumps(public(RSA)).encode()
    claims = token(RSA).split(".")[1]
    signed = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{claims}"
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256")).rstrip(b"=").decode()
    assert "algorithm" in refused(f"{signed}.{signature}")
    shared = KeySet(
        document(public(RSA, kid="one"), {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ", "kid": "one"})
    )
    assert refused(
        token(jwk.OctKey.import_key({"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ"}), "HS256"), keys=shared
    )


def test_another_key_does_not_sign():
    other = private_key("RSA", 1)
    assert "signature" in refused(token(other))
    assert "signature" in refused(token(other, key_id=None))
    with pytest.raises(UnknownKeyError):
        KEYS.identify(token(other, key_id="new"), RULES, NOW_MS)
    with pytest.raises(UnknownKeyError):  # the key exists, and signs with another algorithm only
        KeySet(document(public(RSA, kid="one", alg="RS256"))).identify(token(RSA, "PS256"), RULES, NOW_MS)
    # A key in the header of the token itself is not used.
    header, claims, signature = token(other, key_id=None).split(".")
    assert refused(f"{encoded({'alg': 'RS256', 'jwk': public(other)})}.{claims}.{signature}")
    assert header


def test_no_prefix_and_no_changed_character_is_a_token():
    whole = token(private_key("EC"), "ES256", "two")
    for end in range(len(whole)):
        refused(whole[:end])
    for at in range(len(whole)):
        for other in ("A", "_", "."):
            if whole[at] != other and not is_same(whole, whole[:at] + other + whole[at + 1 :]):
                refused(whole[:at] + other + whole[at + 1 :])


def is_same(one, other):
    """Whether two tokens are the same bytes: the last character of a part has unused bits."""

    def parts(text):
        return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split(".")]

    return one.rpartition(".")[0] == other.rpartition(".")[0] and parts(one) == parts(other)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "claim exp"),
        ({"exp": "tomorrow"}, "claim exp"),
        ({"exp": True}, "claim exp"),
        ({"exp": 1e300}, "claim exp"),
        ({"iat": None}, "claim iat"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"sub": None}, "claim sub"),
        ({"sub": " "}, "claim sub"),
        ({"sub": 7}, "claim sub"),
        ({"sub": "a\nb"}, "claim sub"),
        ({"sub": "x" * 1025}, "claim sub"),
        ({"scope": 7}, "claim scope"),
        ({"scope": ["a", 7]}, "claim scope"),
    ],
)
def test_claims_that_are_refused(claims, why):
    assert why in refused(token(RSA, **claims))


def test_the_clocks_may_differ():
    for claims in ({"exp": NOW_S - 29}, {"nbf": NOW_S + 30}, {"iat": NOW_S + 30}):
        assert KEYS.identify(token(RSA, **claims), RULES, NOW_MS).user == "alice"
    assert "expired" in refused(token(RSA, exp=NOW_S), TokenRules(clock_skew_ms=0))


def test_audience_and_issuer():
    rules = TokenRules(audiences=("log", "kafka"), issuer="https://issuer")
    right = {"iss": "https://issuer", "aud": ["other", "log"]}
    assert KEYS.identify(token(RSA, **right), rules, NOW_MS).user == "alice"
    assert KEYS.identify(token(RSA, **right | {"aud": "kafka"}), rules, NOW_MS).user == "alice"
    for wrong in ({"aud": "other"}, {"aud": None}, {"aud": [["log"]]}, {"aud": {"log": 1}}):
        assert "audience" in refused(token(RSA, **right | wrong), rules)
    for wrong in ({"iss": "https://issuer/"}, {"iss": None}):
        assert "issuer" in refused(token(RSA, **right | wrong), rules)


def test_other_claims_name_the_user():
    rules = TokenRules(user_claim="client_id", scope_claim="scp")
    assert KEYS.identify(token(RSA, client_id="svc", sub=None, scp=["a"]), rules, NOW_MS).user == "svc"


def test_a_long_token_is_refused_fast():
    assert "too long" in refused("a" * (TOKEN_SIZE_MAX + 1))
    refused("." * TOKEN_SIZE_MAX)
    refused(encoded("x").rstrip("=") + "." + "[" * 100_000 + ".")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[7]}',
        b'{"keys":[{"kty":"RSA"}]}',
        b"\xff",
    ],
)
def test_other_documents_are_no_key_sets(text):
    with pytest.raises(DamageError):
        KeySet(text)


def test_keys_for_other_purposes_are_ignored():
    with pytest.raises(DamageError):
        KeySet(
            document(public(RSA, use="enc"), public(private_key("EC"), key_ops=["encrypt"]), {"kty": "new"})
        )
    kept = KeySet(document({"kty": "new"}, {"kty": "RSA"}, public(RSA, kid="one", use="sig")))
    assert kept.identify(token(RSA), RULES, NOW_MS) == ALICE


@pytest.mark.filterwarnings("ignore:Key size")
def test_a_short_rsa_key_verifies_nothing():
    with pytest.raises(DamageError):
        KeySet(document(public(jwk.RSAKey.generate_key(1024))))


def test_no_error_shows_a_token():
    text = token(RSA, exp=0)
    assert not any(part in refused(text) for part in text.split("."))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(UsageError, match=r"pip install 'stablelog\[oauth\]'"):
        KeySet(document(public(RSA)))
