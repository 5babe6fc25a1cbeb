"""The token of a login with OAUTHBEARER: from a function of the user, from a file, or from a token endpoint.

The token endpoint of an authorization server issues a token for the id and the secret of a client (RFC 6749, section
4.4). The request is the same as that of Kafka's Java client and of librdkafka.
"""

import base64
import ssl
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from kio.schema.errors import ErrorCode

from stablelog.client.core.security import TOKEN_FUNCTION, LoginCredentials, TokenEndpoint
from stablelog.env import http
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.json_text import parse_json
from stablelog.wire.sasl import OAUTHBEARER

TOKEN_SIZE_MAX: Final = 1 << 16
# The statuses with which a retry cannot help: not 408 (Request Timeout) and 429 (Too Many Requests), as in Java's client.
REFUSALS: Final = frozenset(range(400, 500)) - {408, 429}
# The codes with which an endpoint refuses a client (RFC 6749, section 5.2). Other texts of a response are not shown.
CODES: Final = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    }
)


def get_token(credentials: LoginCredentials, address: str) -> str:
    """Return a token for a login. This may block: it reads a file, sends a request to the token endpoint, or calls the
    user's function.

    Args:
        credentials: the credentials of a login with OAUTHBEARER.
        address: the address of the broker, for error messages.

    Raises:
        AuthenticationError: no token can be got, and a retry cannot help.
        UnavailableError: the token endpoint does not respond.
    """
    where = f"login at {address} with {OAUTHBEARER}: "
    if credentials.endpoint is not None:
        return _asked(credentials.endpoint, where)
    if credentials.token is None:
        return _read(credentials.token_path, where)
    try:
        found = credentials.token("")
    except Exception as error:  # noqa: BLE001 - any error of the user's function
        # The message of another's error may contain a secret.
        raise _refusal(f"{where}{TOKEN_FUNCTION} raised {type(error).__name__}") from None
    token = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(token, str):
        raise _refusal(f"{where}{TOKEN_FUNCTION} returned no text")
    return token


def _read(path: str, where: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            found = file.read(TOKEN_SIZE_MAX).strip()
    except OSError as error:
        raise _refusal(f"{where}the token cannot be read: {path}: {error.strerror}") from None
    except ValueError:
        raise _refusal(f"{where}{path} has characters that are not ASCII, so it has no token") from None
    if not found:
        raise _refusal(f"{where}{path} is empty")
    return found


def _asked(endpoint: TokenEndpoint, where: str) -> str:
    url = urlsplit(endpoint.url)
    form = {"grant_type": "client_credentials", **({"scope": endpoint.scope} if endpoint.scope else {})}
    # As Kafka's clients do by default, without the URL encoding that RFC 6749 asks for.
    secret = base64.b64encode(f"{endpoint.client_id}:{endpoint.client_secret}".encode()).decode()
    headers = {
        "Accept": "application/json",
        "Authorization": f"Basic {secret}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    at = http.shown_url(url)
    try:
        response = http.send_request(url, headers, urlencode(form).encode())
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.rstrip(".")
        raise AuthenticationError(
            ErrorCode.invalid_config,
            f"{where}the certificate of {at} is not accepted ({why}): the operating system must trust its authority, and it "
            "must contain the host name",
        ) from None
    except (OSError, HTTPException) as error:
        # From None, because a cause would be taken for that of the connection to the broker.
        raise UnavailableError(
            f"{where}the token endpoint {at} gives no token: {http.failure_in_words(error)}"
        ) from None
    if response.status in REFUSALS:
        code = _field(response.content, "error")
        what = code if code in CODES else f"status {response.status}"
        raise _refusal(
            f"{where}the token endpoint {at} gives no token to client {endpoint.client_id!r}: {what}. Check "
            "the id and the secret of the client"
        )
    if response.status != http.OK:
        raise UnavailableError(
            f"{where}the token endpoint {at} gives no token: its response has the status {response.status}"
        )
    token = _field(response.content, "access_token")
    if not isinstance(token, str) or not token or len(token) > TOKEN_SIZE_MAX:
        raise _refusal(f"{where}the response of {at} has no access_token: it is not a token endpoint")
    return token


def _field(content: bytes, name: str) -> Any:
    """Return a field of a JSON object; None if the bytes are not a JSON object, or the object has no such field."""
    try:
        found = parse_json(content)
    except (ValueError, RecursionError):
        return None
    return found.get(name) if isinstance(found, dict) else None


def _refusal(message: str) -> AuthenticationError:
    return AuthenticationError(ErrorCode.sasl_authentication_failed, message)
