r"""The messages of OAUTHBEARER (RFC 7628, KIP-255): a bearer token, and the error of a token that is refused.

client   n,a=<authorization id>,\x01auth=Bearer <token>\x01<name>=<value>\x01\x01
server   nothing, or {"status":"invalid_token"}
client   \x01 in response to such an error; the server then fails the login
"""

import base64
import json
import re
from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import SplitResult

from stablelog.json_text import parse_json
from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.scram import escaped, unescaped

TOKEN_MESSAGE_SIZE_MAX: Final = 140_000  # bytes: a token of the greatest size, and its extensions
EXPIRY_MAX_S: Final = 1e12
_SENDABLE: Final = re.compile(r"[!-~]*")
_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
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
    """The client's message of OAUTHBEARER.

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
    """Encode the client's message of OAUTHBEARER, with a bearer token.

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
            raise SaslMessageError(f"the name or value of OAUTHBEARER extension {name!r} is not allowed")
    header = f"n,a={escaped(authorization_id)}," if authorization_id else "n,,"
    pairs = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions.items())]
    return SEPARATOR.join((header, *pairs, "", "")).encode()


def decode_token(message: bytes) -> TokenMessage:
    """Parse the client's message of OAUTHBEARER.

    Raises:
        SaslMessageError: the bytes are not a message of OAUTHBEARER with a bearer token.
    """
    if len(message) > TOKEN_MESSAGE_SIZE_MAX:
        raise SaslMessageError(
            f"the message of OAUTHBEARER is too long: at most {TOKEN_MESSAGE_SIZE_MAX} bytes are allowed"
        )
    try:
        found = _INITIAL.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslMessageError("the bytes are not a message of OAUTHBEARER")
    pairs = [pair.split("=", 1) for pair in found["pairs"].split(SEPARATOR)[:-1]]
    values = dict(pairs)
    if len(values) != len(pairs):
        raise SaslMessageError("the message of OAUTHBEARER has the same name twice")
    auth = _AUTH.fullmatch(values.pop("auth", ""))
    if auth is None:
        raise SaslMessageError("the message of OAUTHBEARER has no bearer token")
    return TokenMessage(unescaped(found["authorization"] or ""), auth["token"], MappingProxyType(values))


def encode_error(status: str) -> bytes:
    """Encode the server's message that refuses a token. `status` is, for example, `invalid_token`."""
    return json.dumps({"status": status}, separators=(",", ":")).encode()


def decode_error(message: bytes) -> str:
    """Parse the server's message that refuses a token. Return the text to show to the user."""
    try:
        found = parse_json(message)
        return ", ".join(f"{name}: {value}" for name, value in found.items())
    except (ValueError, AttributeError):
        return "the server refuses the token"


def expiry_of(token: str) -> float | None:
    """Return when a JSON web token expires, in seconds since 1970, without verifying its signature.

    Returns:
        The time; None if the text does not contain one.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = parse_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expiry = claims["exp"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    is_number = isinstance(expiry, int | float) and not isinstance(expiry, bool)
    return float(expiry) if is_number and 0 <= expiry <= EXPIRY_MAX_S else None


def is_server_url(url: SplitResult) -> bool:
    """Return whether a URL is safe to send a token request to: `https://`, or `http://` on this machine.

    The path and the query must also be printable ASCII without spaces.
    """
    try:
        if not url.hostname or url.port == 0:
            return False
        url.hostname.encode("idna")  # as the socket does
    except ValueError:  # the port is no number or too large, or a label of the host name is empty or too long
        return False
    if not _SENDABLE.fullmatch(url.path + url.query) or _BLANK.search(url.hostname):
        return False
    return url.scheme == "https" or (url.scheme == "http" and _is_loopback(url.hostname))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
