"""The login of one connection: handshake, rounds of authentication, and re-authentication (KIP-43, KIP-152, KIP-368).

    INITIAL ──ApiVersions──► HANDSHAKE ──SaslHandshake──► AUTHENTICATE ──last round──► OPEN ──SaslHandshake──► AUTHENTICATE
       └───────────────────SaslHandshake────────────────────▲   │                                        (re-authentication)
                                                            └───┘ further rounds
    Any error leads to FAILED, which is final: the connection is closed after the response.

The rules are those of Kafka's SaslServerAuthenticator. Invariant: only a finished exchange leads to OPEN. A round that
needs slow work (a password hash, or the keys of tokens) returns a `Question`; the caller does the work and calls `process_answer`
with the answer. Random bytes and the time are arguments.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.security.credentials import CredentialTable, FoundCredential
from stablelog.security.principal import USER, Principal
from stablelog.wire.sasl import OAUTHBEARER, PLAIN, SaslMessageError, oauthbearer, plain, scram
from stablelog.wire.sasl.scram import BY_SASL_NAME, Mechanism

# A re-authentication must begin at least this long after the one before, as in Kafka.
REAUTHENTICATION_INTERVAL_MS: Final = 1000


class LoginError(RefusedError):
    """A login that failed. The connection is closed after the response.

    Args:
        code: the error code of the response.
        message: the message of the response: it does not say whether the user exists.
        why: the cause, for the broker's log; without passwords, tokens and keys.
        user: the name that the client gave; empty if it gave none.
    """

    def __init__(self, code: ErrorCode, message: str, why: str, user: str = "") -> None:
        super().__init__(code, message)
        self.why = why
        self.user = user


class LoginState(Enum):
    """The state of a login: see the figure in the module's description."""

    INITIAL = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    OPEN = auto()
    FAILED = auto()


class Identity(NamedTuple):
    """The identity that a client has proven.

    Attributes:
        user: the user name.
        expires_ms: the time at which the credential expires; None if it does not expire.
    """

    user: str
    expires_ms: int | None = None


class PasswordQuestion(NamedTuple):
    """A request to check a user's password (PLAIN). The answer is an `Identity`, or None if the password is wrong."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"PasswordQuestion({self.user!r}, [hidden])"


class TokenQuestion(NamedTuple):
    """A request to check a bearer token (OAUTHBEARER). The answer is the `Identity` in the token, or None if it is not
    valid.
    """

    token: str

    def __repr__(self) -> str:
        return "TokenQuestion([hidden])"


Question = PasswordQuestion | TokenQuestion


class LoginAnswer(NamedTuple):
    """The broker's answer to one message of a login.

    Attributes:
        token: the message of the mechanism for the client.
        lifetime_ms: how long the session lasts if the login is complete; 0 for no limit.
    """

    token: bytes
    lifetime_ms: int = 0


class _Done(NamedTuple):
    token: bytes
    identity: Identity


class _FailureError(Exception):
    """A failure of a login. `message` is the text for the client; None for Kafka's general message."""

    def __init__(self, why: str, message: str | None = None, user: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.message = message
        self.user = user


class _MechanismExchange(Protocol):
    """The messages of one SASL mechanism during one login."""

    def respond(self, token: bytes, nonce: str) -> bytes | _Done | Question:
        """Process a message of the client: return the response, the end of the login, or a question for the caller.

        Raises:
            SaslMessageError: the bytes are not a message of the mechanism.
            _FailureError: the login has failed.
        """

    def process_answer(self, identity: Identity | None) -> bytes | _Done:
        """Process the caller's answer to the question that `respond` returned.

        Raises:
            _FailureError: the login has failed.
        """


OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class _Plain:
    def __init__(self) -> None:
        self._message: plain.PlainMessage | None = None

    def respond(self, token: bytes, nonce: str) -> Question:
        del nonce
        self._message = plain.decode_plain(token)
        return PasswordQuestion(self._message.user, self._message.password)

    def process_answer(self, identity: Identity | None) -> _Done:
        assert self._message is not None
        authorization_id, user, _ = self._message
        if identity is None:
            raise _FailureError(
                "wrong user name or password", "Authentication failed: Invalid username or password", user
            )
        assert identity.user == user
        if authorization_id not in ("", user):
            raise _FailureError("an authorization id that is not the user name", OTHER_AUTHORIZATION_ID, user)
        return _Done(b"", identity)


class _Scram:
    def __init__(self, mechanism: Mechanism, find: Callable[[Mechanism, str], FoundCredential]) -> None:
        self._mechanism = mechanism
        self._find = find
        self._first: scram.ClientFirst | None = None
        self._server_first = b""
        self._nonce = ""
        self._found: FoundCredential | None = None

    def respond(self, token: bytes, nonce: str) -> bytes | _Done:
        return self._begin(token, nonce) if self._first is None else self._finish(token, self._first)

    def _begin(self, token: bytes, nonce: str) -> bytes:
        first = scram.decode_client_first(token)
        # Extensions are ignored, as in Kafka, except for `tokenauth`: the name would be the id of a delegation token.
        if first.extensions.get("tokenauth", "").lower() == "true":
            raise _FailureError("delegation tokens are not supported", user=first.user)
        # Before the credential is looked up, so that the message does not tell whether the user exists.
        if first.authorization_id not in ("", first.user):
            raise _FailureError(
                "an authorization id that is not the user name", OTHER_AUTHORIZATION_ID, first.user
            )
        self._first, self._nonce = first, first.nonce + nonce
        self._found = self._find(self._mechanism, first.user)
        credential = self._found.credential
        self._server_first = scram.encode_server_first(self._nonce, credential.salt, credential.iterations)
        return self._server_first

    def _finish(self, token: bytes, first: scram.ClientFirst) -> _Done:
        assert self._found is not None
        final = scram.decode_client_final(token)
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            why = "the nonce of the last message is not that of the exchange"
            if final.nonce == first.nonce + self._nonce:
                why += (
                    ", because the client repeats its own: librdkafka does so before 2.6.1, and Kafka from 4.0 on refuses it, "
                    "too"
                )
            raise _FailureError(why, user=first.user)
        if final.channel != first.gs2_header.encode():
            raise _FailureError("the channel binding is not that of the first message", user=first.user)
        keys = self._found.credential.keys
        message = scram.auth_message_of(first.bare, self._server_first, final.unproven)
        is_proven = scram.is_proof(self._mechanism, keys, message, final.proof)
        if not (is_proven and self._found.is_known):
            raise _FailureError("wrong user name or password", user=first.user)
        signature = scram.server_signature(self._mechanism, keys, message)
        return _Done(scram.encode_server_final(signature), Identity(first.user))

    def process_answer(self, identity: Identity | None) -> bytes:
        raise AssertionError("SCRAM asks no question")


class _OauthBearer:
    def __init__(self) -> None:
        self._message: oauthbearer.TokenMessage | None = None
        self._error = b""

    def respond(self, token: bytes, nonce: str) -> Question:
        del nonce
        if self._error:
            # The client has got the error, and answers with %x01. Any other message is no second attempt, either.
            raise _FailureError("the token is not valid", self._error.decode())
        self._message = oauthbearer.decode_token(token)
        return TokenQuestion(self._message.token)

    def process_answer(self, identity: Identity | None) -> bytes | _Done:
        assert self._message is not None
        if identity is None:
            self._error = oauthbearer.encode_error("invalid_token")
            return self._error
        if self._message.authorization_id not in ("", identity.user):
            raise _FailureError(
                "an authorization id that is not the token's name", OTHER_AUTHORIZATION_ID, identity.user
            )
        return _Done(b"", identity)


@dataclass(frozen=True, slots=True)
class LoginRules:
    """The rules of logins on one listener.

    Attributes:
        mechanisms: the names of the mechanisms that clients may use, in the order of the setting.
        session_ms_max: by mechanism, the time after which a client must authenticate again; 0 for no limit.
    """

    mechanisms: Sequence[str]
    session_ms_max: Mapping[str, int]


class Login:
    """The login of one connection.

    Args:
        rules: the rules of the connection's listener.
        credentials: returns the present credentials of the users.

    Attributes:
        state: the state of the login.
        mechanism: the mechanism of the last handshake; empty before it.
        principal: the principal of the last login that succeeded; None before it.
        has_headers: whether the client's next messages are SaslAuthenticate requests. False after a SaslHandshake of
            version 0: bare messages of the mechanism follow it.
        is_again: whether the login in progress is a re-authentication.
        is_refused: whether the client has got an error of the mechanism, after which the login can only fail.
    """

    @property
    def has_failed(self) -> bool:
        """Whether the login has failed. The caller closes the connection after the response."""
        return self.state is LoginState.FAILED

    def __init__(self, rules: LoginRules, credentials: Callable[[], CredentialTable]) -> None:
        self._rules = rules
        self._credentials = credentials
        self.state = LoginState.INITIAL
        self.mechanism = ""
        self.principal: Principal | None = None
        self.has_headers = True
        self.is_again = False
        self.is_refused = False
        self._exchange: _MechanismExchange | None = None
        self._question: Question | None = None
        self._expires_ms: int | None = None
        self._last_begun_ms: int | None = None
        # The mechanism that a re-authentication names, if it is not that of the login.
        self._other_mechanism = ""

    @property
    def mechanisms(self) -> Sequence[str]:
        """The names of the mechanisms that the client may use."""
        return self._rules.mechanisms

    @property
    def is_open(self) -> bool:
        """Whether the client is logged in and no re-authentication is in progress."""
        return self.state is LoginState.OPEN

    @property
    def takes_bare_messages(self) -> bool:
        """Whether the next bytes of the client are a message of the mechanism without a request header."""
        return self.state is LoginState.AUTHENTICATE and not self.has_headers

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the session has ended, so that the client may only authenticate again."""
        return self._expires_ms is not None and now_ms >= self._expires_ms

    def accept_versions_request(self) -> bool:
        """Return whether an ApiVersions request may be answered now. Before the login it may come once, before the
        handshake.
        """
        if self.state is LoginState.INITIAL:
            self.state = LoginState.HANDSHAKE
            return True
        return self.is_open

    def handshake(self, mechanism: str, version: int, now_ms: int) -> None:
        """Process a SaslHandshake request.

        Raises:
            LoginError: the listener does not have the mechanism. The login has failed.
            RefusedError: a handshake is not allowed now. The state has not changed.
        """
        if self.state in (LoginState.AUTHENTICATE, LoginState.FAILED):
            raise self._illegal("SaslHandshake")
        if self.is_open:
            last = self._last_begun_ms
            if last is not None and now_ms - last < REAUTHENTICATION_INTERVAL_MS:
                raise RefusedError(
                    ErrorCode.illegal_sasl_state,
                    "SaslHandshake request received after successful authentication",
                )
            self._last_begun_ms, self.is_again = now_ms, True
            self._other_mechanism = mechanism if mechanism != self.mechanism else ""
        else:
            self.has_headers = version >= 1
        if mechanism not in self._rules.mechanisms:
            self.state = LoginState.FAILED
            raise LoginError(
                ErrorCode.unsupported_sasl_mechanism,
                f"Unsupported SASL mechanism {mechanism}",
                "the listener does not have the mechanism",
            )
        if not self._other_mechanism:
            self.mechanism = mechanism
        self._exchange = self._new_exchange(mechanism)
        self.state = LoginState.AUTHENTICATE

    def _new_exchange(self, mechanism: str) -> _MechanismExchange:
        if mechanism == PLAIN:
            return _Plain()
        if mechanism == OAUTHBEARER:
            return _OauthBearer()
        return _Scram(BY_SASL_NAME[mechanism], lambda kind, user: self._credentials().find(kind, user))

    def authenticate(self, token: bytes, nonce: str, now_ms: int) -> LoginAnswer | Question:
        """Process a message of the SASL mechanism.

        Args:
            token: the message.
            nonce: a new random text of printable ASCII characters without a comma.
            now_ms: the time.

        Returns:
            The answer for the client. If the answer depends on slow work, the result is a question instead: the caller
            does the work, and calls `process_answer` with its result before it calls any other method.

        Raises:
            LoginError: the login has failed.
            RefusedError: no message is allowed now. The state has not changed.
        """
        if self.is_open:
            raise RefusedError(
                ErrorCode.illegal_sasl_state,
                "SaslAuthenticate request received after successful authentication",
            )
        if self.state is not LoginState.AUTHENTICATE or self._question is not None:
            raise self._illegal("SaslAuthenticate")
        exchange = self._exchange
        assert exchange is not None
        if self._other_mechanism:
            raise self._failed(
                _FailureError(
                    "another mechanism than at the first login",
                    f"SASL mechanism '{self._other_mechanism}' requested by client is not supported for re-authentication of "
                    f"mechanism '{self.mechanism}'",
                )
            )
        try:
            result = exchange.respond(token, nonce)
        except SaslMessageError as error:
            raise self._failed(_FailureError(str(error))) from None
        except _FailureError as failure:
            raise self._failed(failure) from None
        if isinstance(result, PasswordQuestion | TokenQuestion):
            self._question = result
            return result
        return self._progress(result, now_ms)

    def process_answer(self, identity: Identity | None, now_ms: int) -> LoginAnswer:
        """Process the caller's answer to a question: the client's identity, or None if the client has not proven it.

        Raises:
            LoginError: the login has failed.
        """
        assert self._question is not None
        assert self._exchange is not None
        self._question = None
        try:
            result = self._exchange.process_answer(identity)
            self.is_refused = identity is None
            return self._progress(result, now_ms)
        except _FailureError as failure:
            raise self._failed(failure) from None

    def _progress(self, result: bytes | _Done, now_ms: int) -> LoginAnswer:
        if isinstance(result, bytes):
            return LoginAnswer(result)
        principal = Principal(USER, result.identity.user)
        if self.principal is not None and principal != self.principal:
            raise self._failed(
                _FailureError(
                    "another user than at the first login",
                    f"Cannot change principals during re-authentication from {_dotted(self.principal)}: "
                    f"{_dotted(principal)}",
                    principal.name,
                )
            )
        limit_ms = self._rules.session_ms_max.get(self.mechanism, 0)
        ends = [now_ms + limit_ms] if limit_ms > 0 else []
        if result.identity.expires_ms is not None:
            ends.append(max(result.identity.expires_ms, now_ms))
        self._expires_ms = min(ends, default=None)
        self._exchange = None
        self.principal = principal
        self.state = LoginState.OPEN
        return LoginAnswer(result.token, 0 if self._expires_ms is None else self._expires_ms - now_ms)

    def _failed(self, failure: _FailureError) -> LoginError:
        self.state, self._exchange, self._question = LoginState.FAILED, None, None
        what = "re-authentication" if self.is_again else "authentication"
        general = f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"
        return LoginError(
            ErrorCode.sasl_authentication_failed, failure.message or general, failure.why, failure.user
        )

    def _illegal(self, request: str) -> LoginError:
        self.state, self._exchange, self._question = LoginState.FAILED, None, None
        return LoginError(
            ErrorCode.illegal_sasl_state,
            f"Unexpected Kafka request of type {request} during SASL authentication.",
            f"a {request} request out of order",
        )


def _dotted(principal: Principal) -> str:
    return f"{principal.kind}.{principal.name}"
