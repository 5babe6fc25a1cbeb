"""The exchanges of messages by which a client proves who it is: one class for each SASL mechanism.

An exchange belongs to one login (`security.login`). If it needs slow work (to hash a password, or to load the keys of
tokens), it returns a question. Its caller does the work, and passes the answer to `process_answer`. Random bytes are
arguments, so that this module needs no I/O.
"""

import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from stablelog.security.credentials import FoundCredential
from stablelog.wire.sasl import oauthbearer, plain, scram
from stablelog.wire.sasl.scram import Mechanism


class Identity(NamedTuple):
    """The identity that a client has proven.

    Attributes:
        user: the user name.
        expires_ms: the time at which the credential expires; None if it does not expire.
    """

    user: str
    expires_ms: int | None = None


class PasswordQuestion(NamedTuple):
    """A question of an exchange to its caller: is this the user's password (PLAIN)? The answer is the user's
    `Identity`; None if the password is wrong.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"PasswordQuestion({self.user!r}, [hidden])"


class TokenQuestion(NamedTuple):
    """A question of an exchange to its caller: is this bearer token valid (OAUTHBEARER)? The answer is the `Identity`
    in the token; None if the token is not valid.
    """

    token: str

    def __repr__(self) -> str:
        return "TokenQuestion([hidden])"


Question = PasswordQuestion | TokenQuestion


class ExchangeEnd(NamedTuple):
    """The end of an exchange of SASL messages in which the client has proven an identity. `token` is the last message
    of the mechanism for the client.
    """

    token: bytes
    identity: Identity


class ExchangeError(Exception):
    """An exchange that failed. `message` is the text for the client; None for Kafka's general message."""

    def __init__(self, why: str, message: str | None = None, user: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.message = message
        self.user = user


class MechanismExchange(Protocol):
    """The exchange of the messages of one SASL mechanism during one login, on the side of the broker."""

    def respond(self, token: bytes, nonce: str) -> bytes | ExchangeEnd | Question:
        """Process a message of the client. Return the bytes to respond with, the end of the exchange, or a question to
        the caller, such as whether a password is right. The caller passes the answer to `process_answer`. `nonce` is a
        new random text.

        Raises:
            SaslMessageError: the bytes are not a message of the mechanism.
            ExchangeError: the login has failed.
        """

    def process_answer(self, identity: Identity | None) -> bytes | ExchangeEnd:
        """Process the caller's answer to the question that `respond` has returned: the client's identity, or None if
        the client has not proven it. Return the bytes to respond with, or the end of the exchange.

        Raises:
            ExchangeError: the login has failed.
        """


OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class PlainExchange:
    """An exchange of PLAIN: the client sends its name and its password."""

    def __init__(self) -> None:
        self._message: plain.PlainMessage | None = None

    def respond(self, token: bytes, nonce: str) -> Question:
        """Return the question whether the message of the client has the right password. `nonce` is not used."""
        del nonce
        self._message = plain.decode_plain(token)
        return PasswordQuestion(self._message.user, self._message.password)

    def process_answer(self, identity: Identity | None) -> ExchangeEnd:
        """Process the answer to the question of `respond`: the client's identity, or None if the password is wrong.
        Return the end of the exchange. Raises ExchangeError if the password or the authorization id is wrong.
        """
        assert self._message is not None
        authorization_id, user, _ = self._message
        if identity is None:
            raise ExchangeError(
                "wrong user name or password", "Authentication failed: Invalid username or password", user
            )
        assert identity.user == user
        if authorization_id not in ("", user):
            raise ExchangeError("the authorization id is not the user name", OTHER_AUTHORIZATION_ID, user)
        return ExchangeEnd(b"", identity)


class ScramExchange:
    """An exchange of SCRAM: the client proves that it has the password without sending it.

    Args:
        mechanism: the mechanism.
        find: a function that returns the stored credential for a mechanism and a user name.
    """

    def __init__(self, mechanism: Mechanism, find: Callable[[Mechanism, str], FoundCredential]) -> None:
        self._mechanism = mechanism
        self._find = find
        self._first: scram.ClientFirst | None = None
        self._server_first = b""
        self._nonce = ""
        self._found: FoundCredential | None = None

    def respond(self, token: bytes, nonce: str) -> bytes | ExchangeEnd:
        """Process the first or the last message of the client: return the response, or the end of the exchange. Raises
        SaslMessageError and ExchangeError.
        """
        return self._begin(token, nonce) if self._first is None else self._finish(token, self._first)

    def _begin(self, token: bytes, nonce: str) -> bytes:
        first = scram.decode_client_first(token)
        # Extensions are ignored, as in Kafka, except for `tokenauth`: the name would be the id of a delegation token.
        if first.extensions.get("tokenauth", "").lower() == "true":
            raise ExchangeError("delegation tokens are not supported", user=first.user)
        # Before the credential is looked up, so that the message does not tell whether the user exists.
        if first.authorization_id not in ("", first.user):
            raise ExchangeError(
                "the authorization id is not the user name", OTHER_AUTHORIZATION_ID, first.user
            )
        self._first, self._nonce = first, first.nonce + nonce
        self._found = self._find(self._mechanism, first.user)
        credential = self._found.credential
        self._server_first = scram.encode_server_first(self._nonce, credential.salt, credential.iterations)
        return self._server_first

    def _finish(self, token: bytes, first: scram.ClientFirst) -> ExchangeEnd:
        assert self._found is not None
        final = scram.decode_client_final(token)
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            why = "the nonce of the last message is not that of the exchange"
            if final.nonce == first.nonce + self._nonce:
                why += (
                    ", because the client repeats its own: librdkafka does so before 2.6.1, and Kafka from 4.0 on refuses it, "
                    "too"
                )
            raise ExchangeError(why, user=first.user)
        if final.channel != first.gs2_header.encode():
            raise ExchangeError(
                "the channel binding in the client's last message is not that of its first message",
                user=first.user,
            )
        keys = self._found.credential.keys
        message = scram.auth_message_of(first.bare, self._server_first, final.unproven)
        is_proven = scram.is_proof(self._mechanism, keys, message, final.proof)
        if not (is_proven and self._found.is_known):
            raise ExchangeError("wrong user name or password", user=first.user)
        signature = scram.server_signature(self._mechanism, keys, message)
        return ExchangeEnd(scram.encode_server_final(signature), Identity(first.user))

    def process_answer(self, identity: Identity | None) -> bytes:
        """Raise AssertionError, because an exchange of SCRAM never returns a question."""
        raise AssertionError("SCRAM asks no question")


class OauthBearerExchange:
    """An exchange of OAUTHBEARER: the client sends a token."""

    def __init__(self) -> None:
        self._message: oauthbearer.TokenMessage | None = None
        self._error = b""

    def respond(self, token: bytes, nonce: str) -> Question:
        """Return the question whether the bearer token in the client's message is valid. If the client has got an error
        for its token before, raise ExchangeError instead: the login has failed.
        """
        del nonce
        if self._error:
            # The client has got the error, and answers with %x01. Any other message is no second attempt, either.
            raise ExchangeError("the token is not valid", self._error.decode())
        self._message = oauthbearer.decode_token(token)
        return TokenQuestion(self._message.token)

    def process_answer(self, identity: Identity | None) -> bytes | ExchangeEnd:
        """Return the end of the exchange if the token is valid. If it is not, return the error message for the client,
        which the client acknowledges before the login fails. Raises ExchangeError.
        """
        assert self._message is not None
        if identity is None:
            self._error = oauthbearer.encode_error("invalid_token")
            return self._error
        if self._message.authorization_id not in ("", identity.user):
            raise ExchangeError(
                "the authorization id is not the user name in the token",
                OTHER_AUTHORIZATION_ID,
                identity.user,
            )
        return ExchangeEnd(b"", identity)
