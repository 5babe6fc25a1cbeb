"""Bearer tokens: JSON web tokens (RFC 7519) with a signature by one of the keys of an authorization server.

The rules are those of Kafka's BrokerJwtValidator. Only asymmetric algorithms are accepted. `none` is refused, and so
is HMAC: with HMAC, the broker would take the public key, which everybody knows, for a shared secret. The module needs
the library joserfc, which `pip install 'stablelog[oauth]'` installs; it is imported when the first keys are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stablelog.errors import DamageError, UsageError
from stablelog.json_text import parse_json
from stablelog.security.credentials import NAME_SIZE_MAX
from stablelog.security.exchanges import Identity

# The algorithms of signatures that are accepted, with the kind of key that each needs.
ALGORITHMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}
RSA_BITS_MIN: Final = 2048
KEY_COUNT_MAX: Final = 1000
TOKEN_SIZE_MAX: Final = 128_000
NEEDS_EXTRA: Final = "OAUTHBEARER needs the library joserfc: pip install 'stablelog[oauth]'"


class TokenError(ValueError):
    """A bearer token is not valid. The message quotes no part of the token except the names of its claims."""


class UnknownKeyError(TokenError):
    """A bearer token names a key that is not in the loaded key set. The authorization server may have new keys, so the
    caller loads them again.
    """


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What one listener requires of bearer tokens. Claims are the named values in a token.

    Attributes:
        audiences: the token's audience must contain one of these; any audience if empty.
        issuer: the token's issuer; any if empty.
        user_claim: the name of the claim that has the user name.
        scope_claim: the name of the claim that has the scopes. A token may lack this claim; otherwise its scopes must
            be texts.
        clock_skew_ms: the allowed difference between the clocks of the broker and of the authorization server.
    """

    audiences: Sequence[str] = ()
    issuer: str = ""
    user_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_ms: int = 30_000


def check_library() -> None:
    """Check that the library for tokens is installed.

    Raises:
        UsageError: the library joserfc is not installed.
    """
    try:
        import joserfc  # noqa: F401 - imported to see that it is there
    except ImportError:
        raise UsageError(NEEDS_EXTRA) from None


class KeySet:
    """The public keys of an authorization server.

    Args:
        document: a JSON Web Key Set (RFC 7517). Keys that cannot verify signatures are ignored.

    Raises:
        DamageError: the document is not a key set, or none of its keys can verify signatures.
        UsageError: the library joserfc is not installed.
    """

    def __init__(self, document: bytes) -> None:
        check_library()
        try:
            listed = parse_json(document)["keys"]
            if not isinstance(listed, list) or len(listed) > KEY_COUNT_MAX:
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamageError("the document is not a JSON Web Key Set") from None
        # (key id, key, algorithm if the key names one)
        self._keys = [one for one in map(_key_of, listed) if one is not None]
        if not self._keys:
            raise DamageError("none of the keys in the set can verify signatures")

    def identify(self, token: str, rules: TokenRules, now_ms: int) -> Identity:
        """Verify a bearer token, and return the identity in it.

        Returns:
            The user of the token, and the time at which the token expires.

        Raises:
            UnknownKeyError: the token names a key that is not in the set.
            TokenError: the token is not valid.
        """
        return _identity(self._verified(token), rules, now_ms)

    def _verified(self, token: str) -> Mapping[str, Any]:
        """Check the signature of a token, and return its claims by name. The claims themselves are not checked here."""
        from joserfc import jws
        from joserfc.errors import JoseError

        if len(token) > TOKEN_SIZE_MAX:
            raise TokenError("the token is too long")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError, RecursionError):
            raise TokenError("the token is not a JSON web token") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenError("the token's algorithm is not accepted")
        fitting = [
            key
            for known_id, key, known_algorithm in self._keys
            if key.key_type == ALGORITHMS[algorithm]
            and known_algorithm in (None, algorithm)
            and (key_id is None or known_id == key_id)
        ]
        if not fitting:
            raise UnknownKeyError("no key has the token's key id and algorithm")
        for key in fitting:
            try:
                claims = parse_json(jws.deserialize_compact(token, key, algorithms=[algorithm]).payload)
            except (JoseError, ValueError, TypeError, RecursionError):
                continue
            if not isinstance(claims, dict):
                raise TokenError("the token's claims are not a JSON object")
            return claims
        raise TokenError("the signature of the token is wrong")


def _key_of(listed: Any) -> tuple[str | None, Any, str | None] | None:
    """Import one key of a key set (JSON Web Key Set). `listed` is the entry for the key, as parsed JSON.

    Returns:
        The key id (None if the key has none), the key, and the only algorithm for which the key may be used (None if it
        does not name one). The result is None, not a tuple, if the key cannot verify signatures.
    """
    from joserfc import jwk
    from joserfc.errors import JoseError

    if not isinstance(listed, dict) or listed.get("kty") not in ALGORITHMS.values():
        return None
    if listed.get("use", "sig") != "sig" or "verify" not in listed.get("key_ops", ["verify"]):
        return None
    try:
        key = jwk.import_key(listed)
        if isinstance(key, jwk.RSAKey) and key.public_key.key_size < RSA_BITS_MIN:
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return listed.get("kid"), key, listed.get("alg")


def _identity(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> Identity:
    """Check the claims (the named values) of a token whose signature is right, and return the identity in them: the
    user, and the time at which the token expires.
    """
    expires_ms = _milliseconds(claims, "exp")
    issued_ms = _milliseconds(claims, "iat")
    not_before_ms = _milliseconds(claims, "nbf") if "nbf" in claims else None
    if now_ms - rules.clock_skew_ms >= expires_ms:
        raise TokenError("the token has expired")
    if any(one is not None and one > now_ms + rules.clock_skew_ms for one in (not_before_ms, issued_ms)):
        raise TokenError("the token is not valid yet")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenError("the token's issuer is not the one that the listener accepts")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if rules.audiences and not set(rules.audiences).intersection(
        one for one in audiences if isinstance(one, str)
    ):
        raise TokenError("the token's audience is none of those that the listener accepts")
    scopes = claims.get(rules.scope_claim, "")
    if not (
        isinstance(scopes, str) or (isinstance(scopes, list) and all(isinstance(one, str) for one in scopes))
    ):
        raise TokenError(f"the token's claim {rules.scope_claim} is neither a text nor a list of texts")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenError(f"the token's claim {rules.user_claim} has no user name")
    if len(user.encode(errors="replace")) > NAME_SIZE_MAX or not user.isprintable():
        raise TokenError(
            f"the token's claim {rules.user_claim} is too long for a user name, or has control characters"
        )
    return Identity(user, expires_ms)


def _milliseconds(claims: Mapping[str, Any], name: str) -> int:
    seconds = claims.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1e12:
        raise TokenError(f"the token has no claim {name} with a time")
    return int(seconds * 1000)
