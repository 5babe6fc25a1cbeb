"""TLS contexts and errors for the connections of both clients, with the ssl module of Python."""

import os
import ssl
from functools import lru_cache
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.core.connection import CERTIFICATE_ALERTS
from stablelog.client.core.security import SecuritySettings, TlsSettings
from stablelog.client.responses import ClosedError
from stablelog.env.pem import PemError, load_authorities, load_key
from stablelog.errors import AuthenticationError, UnavailableError, UsageError

# The sign that a file has changed: inode, size and time of the last change; None for a missing file.
Sign = tuple[int, int, int] | None
CONTEXTS_MAX: Final = 16
# The reasons of OpenSSL for which client and broker do not agree on TLS. With TLS 1.2, the first one may also be the
# answer to a client without a certificate.
NO_AGREEMENT: Final = frozenset(
    {
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "TLSV1_ALERT_INSUFFICIENT_SECURITY",
        "UNSUPPORTED_PROTOCOL",
    }
)
NOT_NOW: Final = (
    9,
    10,
)  # OpenSSL's numbers of a certificate that is not yet valid, and of one that has expired


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return a TLS context for a new connection. It is made once for the same settings and files; if a certificate file
    has changed, the context is made again.

    Raises:
        UsageError: a file, a key or a certificate cannot be used. The message contains no secret.
    """
    return _context(tls, _sign(tls.trust_path), _sign(tls.key_path))


def _sign(path: str) -> Sign:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(CONTEXTS_MAX)
def _context(tls: TlsSettings, *_signs: Sign) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host
    if not tls.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
        return context
    _load_authorities(context, tls)
    _load_keys(context, tls)
    return context


def _load_authorities(context: ssl.SSLContext, tls: TlsSettings) -> None:
    if not tls.trust_path and not tls.trust:
        context.load_default_certs()
        return
    try:
        load_authorities(context, tls.trust_path, tls.trust)
    except PemError as error:
        raise UsageError(
            f"{tls.trust_path or 'ssl.truststore.certificates'} cannot be used: {error}"
        ) from None


def _load_keys(context: ssl.SSLContext, tls: TlsSettings) -> None:
    if not tls.key_path and not tls.key:
        return
    try:
        load_key(context, tls.key_path, f"{tls.key}\n{tls.chain}\n", tls.key_password)
    except PemError as error:
        what = tls.key_path or "ssl.keystore.key with ssl.keystore.certificate.chain"
        raise UsageError(f"{what} cannot be used: {error}") from None


def connection_error(
    address: str, security: SecuritySettings, error: OSError
) -> UnavailableError | AuthenticationError:
    """Convert the error of a connection or of its TLS handshake to the error that the program gets: an
    AuthenticationError if client and broker do not accept each other's certificates, otherwise an UnavailableError.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(ErrorCode.invalid_config, f"{address}: {_verification(error)}")
    if isinstance(error, ssl.SSLError):
        if error.reason in CERTIFICATE_ALERTS:
            from stablelog.client.core.login import certificate_message

            return AuthenticationError(ErrorCode.invalid_config, certificate_message(address, security))
        why = (error.reason or "the broker closed the connection").replace("_", " ").lower()
        if error.reason in NO_AGREEMENT:
            return AuthenticationError(
                ErrorCode.invalid_config,
                f"{address}: the TLS handshake failed: {why}: {_key_hint(security)}, or accepts no TLS version and cipher "
                "suite of the client, which has TLS 1.2 and 1.3",
            )
        return ClosedError(
            address,
            f"no broker responds at {address}: the TLS handshake failed: {why}. The listener may have no TLS, or "
            f"{_key_hint(security)}",
        )
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        hint = "" if security.tls is None else f" in the TLS handshake. The listener {_key_hint(security)}"
        return ClosedError(
            address, f"no broker responds at {address}: the broker closed the connection{hint}"
        )
    return UnavailableError(f"no broker responds at {address}: {error}")


def _key_hint(security: SecuritySettings) -> str:
    """Return the part of an error message that names the client's certificate as a possible reason of a failed TLS
    handshake. With TLS 1.2, a broker that refuses the certificate does not say so.
    """
    if security.tls is not None and (security.tls.key_path or security.tls.key):
        return "may not accept the client's certificate (ssl.keystore.location)"
    return "may require a client certificate (ssl.keystore.location)"


def _verification(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if "ostname mismatch" in why or "IP address mismatch" in why:
        return (
            f"the broker's certificate is for another host ({why}): use an address that the certificate contains, or "
            "another certificate"
        )
    if error.verify_code in NOT_NOW:
        return f"the broker's certificate is not accepted ({why}): renew it at the broker, or correct the clock of this machine"
    return (
        f"the broker's certificate is not accepted ({why}): set ssl.truststore.location to a PEM file with the certificate "
        "of its authority"
    )
