"""TLS of one listener: its certificates, which are loaded again when their files change, and the principals of clients
with a certificate of their own.
"""

import logging
import os
import ssl
from collections.abc import Callable
from typing import Any, Final

from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.listeners import Listener
from stablelog.env.pem import PemError, load_authorities, load_key
from stablelog.errors import UsageError
from stablelog.security.distinguished_name import subject_of
from stablelog.security.mapping_rules import principal_name
from stablelog.security.principal import ANONYMOUS, USER, Principal

log = logging.getLogger(__name__)

VERIFY_MODES: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
LOOK_EVERY_S: Final = 1.0

# The sign that a file has changed: inode, size and time of the last change, by path; None for a missing file.
Signs = dict[str, tuple[int, int, int] | None]


def _file_sign(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ListenerTls:
    """The certificates and the TLS settings of one listener.

    Args:
        config: the settings of the broker.
        listener: the listener.
        now_s: returns the time of the event loop, in seconds.

    Raises:
        UsageError: the certificates cannot be used, or settings are missing.
    """

    def __init__(self, config: BrokerConfig, listener: Listener, now_s: Callable[[], float]) -> None:
        self._listener = listener
        self._now_s = now_s
        self._value: Callable[[str], Any] = lambda name: config.listener_value(listener.name, name)
        self._client_auth = config.client_auth(listener)
        self._paths = [
            path
            for name in ("ssl.keystore.location", "ssl.truststore.location")
            if (path := self._value(name))
        ]
        self._signs = self._file_signs()
        self._looked_at_s = now_s()
        self._context = self._make_context()

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for a new connection.

        If the files of the certificates have changed, the new content is loaded first. If it is not valid, this is
        logged, and the context keeps the last valid certificates.
        """
        now_s = self._now_s()
        if self._paths and now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            signs = self._file_signs()
            if signs != self._signs:
                self._signs = signs
                try:
                    self._context = self._make_context()
                except UsageError as error:
                    log.error(
                        "cannot load the changed certificates, so new connections still use the old ones: %s",
                        error,
                    )
                else:
                    log.info(
                        "listener %s uses new certificates: %s", self._listener.name, ", ".join(self._paths)
                    )
        return self._context

    def principal(self, connected: ssl.SSLObject) -> Principal:
        """Return the principal of a client after its TLS handshake, from the name in its certificate; ANONYMOUS for a
        client without a certificate.

        Raises:
            ValueError: no rule of `ssl.principal.mapping.rules` matches the client's certificate.
        """
        certificate = connected.getpeercert(binary_form=True)
        if certificate is None or self._client_auth == "none":
            return ANONYMOUS
        name = principal_name(self._value("ssl.principal.mapping.rules"), subject_of(certificate))
        return Principal(USER, name)

    def _file_signs(self) -> Signs:
        return {path: _file_sign(path) for path in self._paths}

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = [VERSIONS[name] for name in self._value("ssl.enabled.protocols")]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        self._load_ciphers(context)
        self._load_keys(context)
        self._load_authorities(context)
        return context

    def _usage_error(self, why: str) -> UsageError:
        return UsageError(f"listener {self._listener.name}: {why}")

    def _load_ciphers(self, context: ssl.SSLContext) -> None:
        suites: str = self._value("ssl.cipher.suites")
        if suites:
            try:
                context.set_ciphers(suites.replace(",", ":"))
            except ssl.SSLError as error:
                raise self._usage_error(
                    f"ssl.cipher.suites={suites} has no suite that OpenSSL knows; `openssl ciphers` lists the "
                    "known suites"
                ) from error

    def _load_keys(self, context: ssl.SSLContext) -> None:
        location: str = self._value("ssl.keystore.location")
        chain: str = self._value("ssl.keystore.certificate.chain")
        key: str = self._value("ssl.keystore.key")
        if bool(location) == bool(chain or key):
            raise self._usage_error(
                f"{self._listener.protocol.value} needs the broker's key and certificate: set ssl.keystore.location to a PEM "
                "file, or set ssl.keystore.key and ssl.keystore.certificate.chain"
            )
        try:
            load_key(context, location, f"{key}\n{chain}\n", self._value("ssl.key.password"))
        except PemError as error:
            where = location or "ssl.keystore.key and ssl.keystore.certificate.chain"
            raise self._usage_error(f"the key and certificate in {where} cannot be used: {error}") from error

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        context.verify_mode = VERIFY_MODES[self._client_auth]
        if self._client_auth == "none":
            return
        location: str = self._value("ssl.truststore.location")
        certificates: str = self._value("ssl.truststore.certificates")
        if bool(location) == bool(certificates):
            raise self._usage_error(
                f"ssl.client.auth={self._client_auth} needs the authorities of the client certificates: set "
                "ssl.truststore.location or ssl.truststore.certificates"
            )
        try:
            load_authorities(context, location, certificates)
        except PemError as error:
            raise self._usage_error(
                f"the certificates in {location or 'ssl.truststore.certificates'} cannot be used: {error}"
            ) from error


__all__ = ["ListenerTls"]
