"""The client's side of the login of a connection (SASL, KIP-43, KIP-152), and the search for the reason why a listener
closes connections.

The module of a mechanism is imported when the client uses that mechanism, because all commands import this module.
"""

import secrets
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from stablelog.client.core.security import JAAS, LoginCredentials, SecuritySettings
from stablelog.client.core.steps import Call, Open, Pause, Steps
from stablelog.client.responses import ClosedError
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.types import SecurityProtocol
from stablelog.wire.sasl import OAUTHBEARER, PLAIN, SaslMessageError

MILLISECOND: Final = timedelta(milliseconds=1)
NONCE_SIZE: Final = 24
HIDDEN: Final = "[hidden]"
# Characters of a broker's reason in a message. It is shown on terminals and in logs, so it has no control characters.
REASON_SIZE_MAX: Final = 300
NO_TLS: Final = (
    ". Without TLS, who reads the network reads all records, and any program can pretend to be the broker"
)
PROBE_COUNT: Final = 3
PROBE_PAUSE_S: Final = 0.1
NO_CERTIFICATE: Final = "requires a client certificate: set ssl.keystore.location"
BAD_CERTIFICATE: Final = "does not accept the client's certificate (ssl.keystore.location): its authority is not one that the broker trusts, or it has expired"


class LoginConnection(Protocol):
    """The methods of `connection.BrokerConnection` that a login uses."""

    address: str
    security: SecuritySettings

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The versions of each API that the broker supports."""

    def request_steps(self, request: Any) -> Steps[Any]:
        """Send a request in the newest version that both sides support, and return the response."""

    def request_unchanged_steps(self, request: Any) -> Steps[Any]:
        """Send a request in exactly the version of its class, and return the response."""


def log_in(connection: LoginConnection, credentials: LoginCredentials) -> Steps[int]:
    """Log in, or authenticate again before the session ends (KIP-368). No request may be in flight.

    Returns:
        The session's lifetime in milliseconds; 0 if it does not end.

    Raises:
        AuthenticationError: the broker refuses the login, or it does not prove that it knows the user.
        UnavailableError: the broker did not respond.
    """
    return (yield from _ClientLogin(connection, credentials).run())


class _ClientLogin:
    """One login on a connection, by the SASL mechanism that the credentials name."""

    def __init__(self, connection: LoginConnection, credentials: LoginCredentials) -> None:
        self._connection = connection
        self._credentials = credentials
        self._secrets = [credentials.password] if credentials.password else []

    def run(self) -> Steps[int]:
        mechanism = self._credentials.mechanism
        answer = yield from self._connection.request_unchanged_steps(_handshake(mechanism))
        if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
            raise self._refusal(
                f"the broker does not accept {mechanism}: set sasl.mechanism to one of "
                f"{', '.join(sorted(answer.mechanisms)) or 'its mechanisms'}",
                answer.error_code,
            )
        if answer.error_code is ErrorCode.illegal_sasl_state:
            protocol = "SSL" if self._connection.security.tls is not None else "PLAINTEXT"
            raise self._refusal(
                f"the listener of the broker has no login: set security.protocol={protocol}, or use another "
                "port",
                answer.error_code,
            )
        if answer.error_code is not ErrorCode.none:
            raise self._refusal(answer.error_code.name.replace("_", " "), answer.error_code)
        try:
            if mechanism == OAUTHBEARER:
                return (yield from self._log_in_with_token())
            if mechanism == PLAIN:
                from stablelog.wire.sasl.plain import encode_plain

                message = encode_plain(self._credentials.user, self._credentials.password)
                return (yield from self._exchange_messages(message))[1]
            return (yield from self._log_in_with_scram())
        except SaslMessageError as error:
            # A broker that breaks the rules of SCRAM, or that does not know the credential, may be a false one. Another
            # password would not help.
            is_token = mechanism == OAUTHBEARER
            raise self._refusal(str(error), is_users_fault=is_token) from None

    def _log_in_with_scram(self) -> Steps[int]:
        """Log in with SCRAM. Return the lifetime of the session in milliseconds; 0 if it does not end."""
        from stablelog.wire.sasl.scram import BY_SASL_NAME, ScramClient

        nonce = yield Call(partial(secrets.token_urlsafe, NONCE_SIZE))
        user, password = self._credentials.user, self._credentials.password
        scram = ScramClient(BY_SASL_NAME[self._credentials.mechanism], user, password, nonce)
        challenge, _ = yield from self._exchange_messages(scram.first())
        response = yield Call(partial(scram.final, challenge))
        signature, lifetime_ms = yield from self._exchange_messages(response)
        scram.check(signature)
        return lifetime_ms

    def _log_in_with_token(self) -> Steps[int]:
        """Log in with OAUTHBEARER. Return the lifetime of the session in milliseconds; 0 if it does not end."""
        from stablelog.client.core.tokens import get_token
        from stablelog.wire.sasl.oauthbearer import ABORT, decode_error, encode_token

        token = yield Call(partial(get_token, self._credentials, self._connection.address))
        self._secrets.append(token)
        challenge, lifetime_ms = yield from self._exchange_messages(encode_token(token))
        if not challenge:
            return lifetime_ms
        try:
            yield from self._exchange_messages(ABORT)
        except AuthenticationError as error:
            raise self._refusal(decode_error(challenge)) from error
        raise self._refusal(decode_error(challenge))

    def _exchange_messages(self, message: bytes) -> Steps[tuple[bytes, int]]:
        """Send a message of the SASL mechanism to the broker.

        Returns:
            The message with which the broker responds, and the lifetime of the session in milliseconds.
        """
        from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

        last = self._connection.versions.get(SaslAuthenticateRequest.__api_key__, (0, -1))[1]
        if last < 0:
            raise self._refusal("the broker does not support SaslAuthenticate: it is too old for this client")
        answer = yield from self._connection.request_steps(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code is not ErrorCode.none:
            raise self._refusal(answer.error_message or answer.error_code.name, answer.error_code)
        return bytes(answer.auth_bytes), answer.session_lifetime // MILLISECOND

    def _refusal(
        self,
        why: str,
        code: ErrorCode = ErrorCode.sasl_authentication_failed,
        *,
        is_users_fault: bool = True,
    ) -> AuthenticationError:
        given = self._credentials
        whose = f" as user {given.user!r}" if given.user else ""
        for secret in self._secrets:  # a broker could send a secret back
            why = why.replace(secret, HIDDEN)
        why = "".join(one if one.isprintable() else " " for one in why)[:REASON_SIZE_MAX]
        check = f"Check user name and password ({JAAS}, or sasl.username and sasl.password)"
        if given.mechanism == OAUTHBEARER:
            check = "Get a valid token"
        hint = f". {check}" if code is ErrorCode.sasl_authentication_failed and is_users_fault else ""
        return AuthenticationError(
            code,
            f"login at {self._connection.address}{whose} with {given.mechanism} failed: {why.rstrip('.')}{hint}",
        )


# -- what does a listener speak? -----------------------------------------------------------------------------------


class _Listener(Enum):
    """What a probe, a connection without a login, has found out about the security protocol of a listener."""

    SILENT = auto()  # it does not respond, or not with or without TLS as the probe does
    CLOSING = auto()  # it closes the connection after the TLS handshake
    UNKNOWN = auto()  # it responds, but not to SaslHandshake
    OPEN = auto()  # it has no login
    LOGIN = auto()  # it requires a login


def explain_closed_connection(address: str, security: SecuritySettings) -> Steps[None]:
    """Find out why a broker closes the connections of this client: the listener may have another security protocol, or
    require another client certificate.

    To find out, this function connects with and without TLS, and sends ApiVersions and SaslHandshake requests, which
    contain no secret.

    Raises:
        AuthenticationError: the listener has another security protocol, and the message names both. Or it does not
            accept the client's certificate.
    """
    for is_tls in (not security.protocol.is_tls, security.protocol.is_tls):
        found = yield from _probe(address, SecurityProtocol.SSL if is_tls else SecurityProtocol.PLAINTEXT)
        if found is _Listener.CLOSING:
            raise AuthenticationError(ErrorCode.invalid_config, certificate_message(address, security))
        if found in (_Listener.OPEN, _Listener.LOGIN):
            spoken = SecurityProtocol.from_flags(is_tls=is_tls, is_sasl=found is _Listener.LOGIN)
            if spoken is not security.protocol:
                # Who can change the traffic can pretend this, so the message does not only give the advice.
                loses_tls = security.protocol.is_tls and not spoken.is_tls
                raise AuthenticationError(
                    ErrorCode.invalid_config,
                    f"the listener at {address} has the security protocol {spoken}, and the client is set to "
                    f"{security.protocol}: set security.protocol={spoken}, or use another port{NO_TLS if loses_tls else ''}",
                )
        if found is not _Listener.SILENT:
            return


def certificate_message(address: str, security: SecuritySettings) -> str:
    """Return the error message for a listener that closes connections, probably because it requires another client
    certificate.
    """
    if security.tls is None:
        return (
            f"the listener at {address} has TLS and closes each connection without a client certificate: set "
            "security.protocol=SSL and ssl.keystore.location, or use another port"
        )
    if security.tls.key_path or security.tls.key:
        return f"{address} {BAD_CERTIFICATE}"
    return f"{address} {NO_CERTIFICATE}"


def _probe(address: str, protocol: SecurityProtocol) -> Steps[_Listener]:
    """Connect to a listener, and return what the attempt shows about its security protocol. A broker that is stopping
    may close a connection, too. So the result is `CLOSING` only if the listener closes several connections in a row.

    Args:
        address: the address of the listener.
        protocol: the security protocol with which to connect.
    """
    found = _Listener.SILENT
    for _ in range(PROBE_COUNT):
        found = yield from _probe_once(address, protocol)
        if found is not _Listener.CLOSING:
            break
        yield Pause(PROBE_PAUSE_S)
    return found


def _handshake(mechanism: str) -> Any:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

    return SaslHandshakeRequest(mechanism=mechanism)


def _probe_once(address: str, protocol: SecurityProtocol) -> Steps[_Listener]:
    try:
        connection = yield Open(address, protocol)
    except (UnavailableError, AuthenticationError):
        return _Listener.SILENT
    try:
        yield from connection.negotiate()
        answer: Any = yield from connection.request_unchanged_steps(_handshake("?"))
    except AuthenticationError:  # an alert: the listener requires a certificate
        return _Listener.CLOSING
    except UnavailableError as failure:
        is_closing = isinstance(failure, ClosedError) and protocol.is_tls
        return _Listener.CLOSING if is_closing else _Listener.SILENT
    finally:
        connection.close()
    return {
        ErrorCode.unsupported_sasl_mechanism: _Listener.LOGIN,
        ErrorCode.illegal_sasl_state: _Listener.OPEN,
    }.get(answer.error_code, _Listener.UNKNOWN)
