"""The login of a connection (SASL, KIP-43, KIP-152), as steps, and what a listener speaks if the client cannot use it."""

import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from stablelog.client.core.security import JAAS, TOKEN_FUNCTION, Credentials, Security, SecurityProtocol
from stablelog.client.core.steps import Call, Open, Steps
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.wire.sasl import OAUTHBEARER, PLAIN, SaslMessageError
from stablelog.wire.sasl.oauthbearer import ABORT, decode_error, encode_token
from stablelog.wire.sasl.plain import encode_plain
from stablelog.wire.sasl.scram import BY_SASL_NAME, ScramClient

if TYPE_CHECKING:
    from stablelog.client.core.connection import Connection

NONCE_SIZE: Final = 24
TOKEN_SIZE_MAX: Final = 1 << 16
HIDDEN: Final = "[hidden]"


def log_in(connection: "Connection", credentials: Credentials) -> Steps[int]:
    """Log in, or authenticate again before the session ends (KIP-368). No request may be in flight.

    Returns:
        The session's lifetime in milliseconds; 0 if it does not end.

    Raises:
        AuthenticationError: the broker refuses the login, or it does not prove that it knows the user.
        UnavailableError: the broker did not respond.
    """
    return (yield from _Exchange(connection, credentials).run())


class _Exchange:
    """One login."""

    def __init__(self, connection: "Connection", credentials: Credentials) -> None:
        self._connection = connection
        self._credentials = credentials
        self._secrets = [credentials.password] if credentials.password else []

    def run(self) -> Steps[int]:
        mechanism = self._credentials.mechanism
        answer = yield from self._connection.call_steps(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
            raise self._refusal(
                f"it does not accept {mechanism}: set sasl.mechanism to one of {', '.join(sorted(answer.mechanisms)) or 'its mechanisms'}",
                answer.error_code,
            )
        if answer.error_code is ErrorCode.illegal_sasl_state:
            protocol = "SSL" if self._connection.security.tls is not None else "PLAINTEXT"
            raise self._refusal(
                f"its listener has no login: set security.protocol={protocol}, or use another port",
                answer.error_code,
            )
        if answer.error_code is not ErrorCode.none:
            raise self._refusal(answer.error_code.name.replace("_", " "), answer.error_code)
        try:
            if mechanism == OAUTHBEARER:
                return (yield from self._show_token())
            if mechanism == PLAIN:
                message = encode_plain(self._credentials.user, self._credentials.password)
                return (yield from self._say(message))[1]
            return (yield from self._prove())
        except SaslMessageError as error:
            raise self._refusal(str(error)) from None

    def _prove(self) -> Steps[int]:
        """Log in with SCRAM."""
        nonce = yield Call(partial(secrets.token_urlsafe, NONCE_SIZE))
        user, password = self._credentials.user, self._credentials.password
        scram = ScramClient(BY_SASL_NAME[self._credentials.mechanism], user, password, nonce)
        challenge, _ = yield from self._say(scram.first())
        response = yield Call(partial(scram.final, challenge))
        signature, lifetime_ms = yield from self._say(response)
        scram.check(signature)
        return lifetime_ms

    def _show_token(self) -> Steps[int]:
        """Log in with OAUTHBEARER."""
        token = yield Call(partial(_token, self._credentials, self._connection.address))
        self._secrets.append(token)
        challenge, lifetime_ms = yield from self._say(encode_token(token))
        if not challenge:
            return lifetime_ms
        try:
            yield from self._say(ABORT)
        except AuthenticationError as error:
            raise self._refusal(decode_error(challenge)) from error
        raise self._refusal(decode_error(challenge))

    def _say(self, message: bytes) -> Steps[tuple[bytes, int]]:
        """Send a message, and return the broker's with the session's lifetime in milliseconds."""
        last = self._connection.versions.get(SaslAuthenticateRequest.__api_key__, (0, -1))[1]
        if last < 0:
            raise self._refusal("it does not support SaslAuthenticate")
        answer = yield from self._connection.ask_steps(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code is not ErrorCode.none:
            raise self._refusal(answer.error_message or answer.error_code.name, answer.error_code)
        return bytes(answer.auth_bytes), int(answer.session_lifetime_ms)

    def _refusal(
        self, why: str, code: ErrorCode = ErrorCode.sasl_authentication_failed
    ) -> AuthenticationError:
        given = self._credentials
        whose = f" as user {given.user!r}" if given.user else ""
        for secret in self._secrets:  # a broker could send a secret back
            why = why.replace(secret, HIDDEN)
        check = f"check user name and password ({JAAS}, or sasl.username and sasl.password)"
        if given.mechanism == OAUTHBEARER:
            check = "get a valid token"
        hint = f". If it is a wrong login, {check}" if code is ErrorCode.sasl_authentication_failed else ""
        return AuthenticationError(
            code,
            f"login at {self._connection.address}{whose} with {given.mechanism} failed: {why.rstrip('.')}{hint}",
        )


def _token(credentials: Credentials, address: str) -> str:
    """Get the token of a login, from a file or from the user's function."""
    where = f"login at {address} with {OAUTHBEARER}: "
    failed = ErrorCode.sasl_authentication_failed
    if credentials.token is None:
        try:
            with Path(credentials.token_path).open(encoding="ascii") as file:
                return file.read(TOKEN_SIZE_MAX).strip()
        except OSError as error:
            raise AuthenticationError(
                failed, f"{where}the token cannot be read: {credentials.token_path}: {error.strerror}"
            ) from None
        except ValueError:
            raise AuthenticationError(
                failed,
                f"{where}{credentials.token_path} has characters that are not ASCII, so it has no token",
            ) from None
    try:
        found = credentials.token("")
    except Exception as error:  # noqa: BLE001 - any error of the user's function
        # The message of another's error may contain a secret.
        raise AuthenticationError(failed, f"{where}{TOKEN_FUNCTION} raised {type(error).__name__}") from None
    token = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(token, str):
        raise AuthenticationError(failed, f"{where}{TOKEN_FUNCTION} returned no text")
    return token


# -- what does a listener speak? -----------------------------------------------------------------------------------


def explain(address: str, security: Security) -> Steps[None]:
    """Find out whether a broker closes the connections because its listener has another security protocol.

    The steps connect with and without TLS, and send ApiVersions and SaslHandshake, which contain no secret.

    Raises:
        AuthenticationError: the listener has another security protocol. The message names both.
    """
    for is_tls in (not security.protocol.is_tls, security.protocol.is_tls):
        is_sasl = yield from _is_sasl(address, SecurityProtocol.SSL if is_tls else SecurityProtocol.PLAINTEXT)
        if is_sasl is None:
            continue
        found = SecurityProtocol.of(is_tls=is_tls, is_sasl=is_sasl)
        if found is not security.protocol:
            raise AuthenticationError(
                ErrorCode.invalid_config,
                f"the listener at {address} has the security protocol {found}, and the client is set to {security.protocol}: set "
                f"security.protocol={found}, or use another port",
            )
        return


def _is_sasl(address: str, probe: SecurityProtocol) -> Steps[bool | None]:
    """Whether a listener asks for a login; None if it does not respond, or not with this protocol."""
    connection = None
    try:
        connection = yield Open(address, probe)
        yield from connection.negotiate()
        answer: Any = yield from connection.call_steps(SaslHandshakeRequest(mechanism="?"))
    except (UnavailableError, AuthenticationError):
        return None
    finally:
        if connection is not None:
            connection.close()
    return {ErrorCode.unsupported_sasl_mechanism: True, ErrorCode.illegal_sasl_state: False}.get(
        answer.error_code
    )
