"""The message of PLAIN (RFC 4616), in which the client sends its user name and password in clear text."""

from typing import NamedTuple

from stablelog.wire.sasl import MESSAGE_SIZE_MAX, SaslMessageError

NUL = "\0"


class PlainMessage(NamedTuple):
    """The client's message of PLAIN.

    Attributes:
        authorization_id: the name as which the client wants to act; empty for the user's own name.
        user: the user name; not empty.
        password: the password; not empty.
    """

    authorization_id: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainMessage({self.authorization_id!r}, {self.user!r}, password=[hidden])"


def encode_plain(user: str, password: str, authorization_id: str = "") -> bytes:
    """Encode the client's message of PLAIN.

    Raises:
        SaslMessageError: a text contains the character NUL, or the user name or the password is empty.
    """
    _check(authorization_id, user, password)
    return NUL.join((authorization_id, user, password)).encode()


def decode_plain(message: bytes) -> PlainMessage:
    """Parse the client's message of PLAIN.

    Raises:
        SaslMessageError: the bytes are not a message of PLAIN.
    """
    if len(message) > MESSAGE_SIZE_MAX:
        raise SaslMessageError(
            f"the message of PLAIN is too long: at most {MESSAGE_SIZE_MAX} bytes are allowed"
        )
    try:
        parts = message.decode().split(NUL)
    except UnicodeDecodeError as error:
        raise SaslMessageError("the message of PLAIN is not UTF-8") from error.with_traceback(None)
    if len(parts) != 3:
        raise SaslMessageError(f"the message of PLAIN has {len(parts)} parts, and 3 are expected")
    _check(*parts)
    return PlainMessage(*parts)


def _check(authorization_id: str, user: str, password: str) -> None:
    if NUL in authorization_id + user + password:
        raise SaslMessageError("user names and passwords of PLAIN cannot contain the character NUL")
    if not user:
        raise SaslMessageError("the user name is empty")
    if not password:
        raise SaslMessageError("the password is empty")
