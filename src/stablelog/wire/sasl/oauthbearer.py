r"""The messages of OAUTHBEARER (RFC 7628, KIP-255): a bearer token, and the error of a token that is refused.

client   n,a=<authorization id>,\x01auth=Bearer <token>\x01<name>=<value>\x01\x01
server   nothing, or {"status":"invalid_token"}
client   \x01 in response to such an error; the server then fails the login
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.scram import escaped, unescaped

TOKEN_MESSAGE_SIZE_MAX: Final = 140_000  # bytes: a token of the greatest size, and its extensions
SEPARATOR: Final = "\x01"
# The response of the client to an error.
ABORT: Final = SEPARATOR.encode()

_NAME = r"(?:[^\0=,]|=2C|=3D)+"
_PAIR = r"[A-Za-z]+=[\x21-\x7E \t\r\n]*"
_INITIAL = re.compile(rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR}\x01)*)\x01")
_AUTH = re.compile(r"(?i:bearer) +(?P<token>[-_.~+/A-Za-z0-9]+=*)")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7E \t\r\n]+")


class TokenMessage(NamedTuple):
    """The message of a client.

    Attributes:
        authorization_id: the name as which the client wants to act; empty for the token's own name.
        token: the bearer token.
        extensions: further pairs of the message, by name.
    """

    authorization_id: str
    token: str
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        return f"TokenMessage({self.authorization_id!r}, token=[hidden])"


def encode_token(
    token: str, extensions: Mapping[str, str] = MappingProxyType({}), authorization_id: str = ""
) -> bytes:
    """Make the message of a client.

    Raises:
        SaslMessageError: the token or an extension contains characters that a message cannot contain, or an extension
            is named `auth`.
    """
    if _AUTH.fullmatch(f"Bearer {token}") is None:
        raise SaslMessageError("the token contains characters that a bearer token cannot contain")
    for name, value in extensions.items():
        if (
            name == "auth"
            or _EXTENSION_NAME.fullmatch(name) is None
            or _EXTENSION_VALUE.fullmatch(value) is None
        ):
            raise SaslMessageError(f"{name!r} cannot be an extension of OAUTHBEARER, or its value cannot")
    header = f"n,a={escaped(authorization_id)}," if authorization_id else "n,,"
    pairs = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions.items())]
    return SEPARATOR.join((header, *pairs, "", "")).encode()


def decode_token(message: bytes) -> TokenMessage:
    """Parse the message of a client.

    Raises:
        SaslMessageError: the bytes are not a message of OAUTHBEARER with a bearer token.
    """
    if len(message) > TOKEN_MESSAGE_SIZE_MAX:
        raise SaslMessageError(f"a message of OAUTHBEARER has at most {TOKEN_MESSAGE_SIZE_MAX} bytes")
    try:
        found = _INITIAL.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslMessageError("not a message of OAUTHBEARER")
    pairs = [pair.split("=", 1) for pair in found["pairs"].split(SEPARATOR)[:-1]]
    values = dict(pairs)
    if len(values) != len(pairs):
        raise SaslMessageError("the message of OAUTHBEARER has a pair twice")
    auth = _AUTH.fullmatch(values.pop("auth", ""))
    if auth is None:
        raise SaslMessageError("the message of OAUTHBEARER has no bearer token")
    return TokenMessage(unescaped(found["authorization"] or ""), auth["token"], MappingProxyType(values))


def encode_error(status: str) -> bytes:
    """Make the server's error, such as `invalid_token`."""
    return json.dumps({"status": status}, separators=(",", ":")).encode()


def decode_error(message: bytes) -> str:
    """Parse the server's error. Returns the text to show to the user."""
    try:
        found = json.loads(message)
        return ", ".join(f"{name}: {value}" for name, value in found.items())
    except (ValueError, AttributeError):
        return "the server refuses the token"
