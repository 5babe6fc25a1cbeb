"""The login of one connection, on the side of the broker: handshake, rounds of authentication, and re-authentication
(KIP-43, KIP-152, KIP-368).

    INITIAL ──ApiVersions──► HANDSHAKE ──SaslHandshake──► AUTHENTICATE ──last round──► OPEN ──SaslHandshake──► AUTHENTICATE
       └───────────────────SaslHandshake────────────────────▲   │                                        (re-authentication)
                                                            └───┘ further rounds
    Any error leads to FAILED, which is final: the connection is closed after the response.

The rules are those of Kafka's SaslServerAuthenticator. Invariant: only a finished exchange of SASL messages leads to
OPEN. A round that needs slow work (to hash a password, or to load the keys of tokens) returns a `Question`; the caller
does the work and calls `process_answer` with the answer. Random bytes and the time are arguments, so that this module
needs no I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.security.credentials import CredentialTable
from stablelog.security.exchanges import (
    ExchangeEnd,
    ExchangeError,
    Identity,
    MechanismExchange,
    OauthBearerExchange,
    PasswordQuestion,
    PlainExchange,
    Question,
    ScramExchange,
    TokenQuestion,
)
from stablelog.security.principal import USER, Principal
from stablelog.wire.sasl import OAUTHBEARER, PLAIN, SaslMessageError
from stablelog.wire.sasl.scram import BY_SASL_NAME

# A re-authentication must begin at least this long after the one before, as in Kafka.
REAUTHENTICATION_INTERVAL_MS: Final = 1000


class LoginError(RefusedError):
    """A login that failed. The connection is closed after the response.

    Args:
        code: the error code of the response.
        message: the text for the client in the response. It does not say whether the user exists.
        why: the cause, for the broker's log; without passwords, tokens and keys.
        user: the name that the client gave; empty if it gave none.
    """

    def __init__(self, code: ErrorCode, message: str, why: str, user: str = "") -> None:
        super().__init__(code, message)
        self.why = why
        self.user = user


class LoginState(Enum):
    """The state of a login: HANDSHAKE while the broker expects the choice of a mechanism, AUTHENTICATE during the
    exchange of its messages, OPEN after the login. The description of the module `security.login` shows the changes.
    """

    INITIAL = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    OPEN = auto()
    FAILED = auto()


class LoginAnswer(NamedTuple):
    """The broker's answer to one message of a login.

    Attributes:
        token: the message of the SASL mechanism for the client.
        lifetime_ms: how long the session lasts if the login is complete; 0 for no limit.
    """

    token: bytes
    lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class LoginRules:
    """The rules of logins on one listener.

    Attributes:
        mechanisms: the names of the SASL mechanisms that clients may use, in the order in which the broker's setting
            lists them.
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
        has_headers: whether the client sends the messages of the mechanism in SaslAuthenticate requests. False after a
            SaslHandshake of version 0: then it sends them bare, without a request header.
        is_again: whether the login in progress is a re-authentication.
        is_refused: whether the client has got an error message of the SASL mechanism. The client's next message then
            ends the login, which has failed.
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
        self._exchange: MechanismExchange | None = None
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
        """Return whether the broker may serve the ApiVersions request that has come: before the handshake only one, and
        after the login any number. The call records that one has come.
        """
        if self.state is LoginState.INITIAL:
            self.state = LoginState.HANDSHAKE
            return True
        return self.is_open

    def handshake(self, mechanism: str, version: int, now_ms: int) -> None:
        """Process a SaslHandshake request.

        Raises:
            LoginError: the listener does not have the mechanism. The login has failed.
            RefusedError: a SaslHandshake request is not allowed in the present state of the login, which does not
                change.
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
                "the listener does not have the SASL mechanism that the client asks for",
                "the listener does not have the mechanism",
            )
        if not self._other_mechanism:
            self.mechanism = mechanism
        self._exchange = self._new_exchange(mechanism)
        self.state = LoginState.AUTHENTICATE

    def _new_exchange(self, mechanism: str) -> MechanismExchange:
        if mechanism == PLAIN:
            return PlainExchange()
        if mechanism == OAUTHBEARER:
            return OauthBearerExchange()
        return ScramExchange(BY_SASL_NAME[mechanism], lambda kind, user: self._credentials().find(kind, user))

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
            RefusedError: a message of the mechanism is not allowed in the present state of the login, which does not
                change.
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
                ExchangeError(
                    "another mechanism than at the first login",
                    f"SASL mechanism '{self._other_mechanism}' requested by client is not supported for re-authentication of "
                    f"mechanism '{self.mechanism}'",
                )
            )
        try:
            result = exchange.respond(token, nonce)
        except SaslMessageError as error:
            raise self._failed(ExchangeError(str(error))) from None
        except ExchangeError as failure:
            raise self._failed(failure) from None
        if isinstance(result, PasswordQuestion | TokenQuestion):
            self._question = result
            return result
        return self._progress(result, now_ms)

    def process_answer(self, identity: Identity | None, now_ms: int) -> LoginAnswer:
        """Process the answer to the question that `authenticate` has returned: the client's identity, or None if the
        client has not proven it.

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
        except ExchangeError as failure:
            raise self._failed(failure) from None

    def _progress(self, result: bytes | ExchangeEnd, now_ms: int) -> LoginAnswer:
        if isinstance(result, bytes):
            return LoginAnswer(result)
        principal = Principal(USER, result.identity.user)
        if self.principal is not None and principal != self.principal:
            raise self._failed(
                ExchangeError(
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

    def _failed(self, failure: ExchangeError) -> LoginError:
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
