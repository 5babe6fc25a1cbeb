"""The security settings of a client: TLS, and the credentials of its login. Names and meanings are those of Kafka's
clients.

No secret appears in a `repr` or in an error message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from stablelog.errors import UsageError, did_you_mean
from stablelog.types import SecurityProtocol
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER

# The function of a setting that returns a token; it has the form of confluent-kafka's callback.
TokenFunction = Callable[[str], Any]
TOKEN_FUNCTION: Final = "oauth_cb"  # noqa: S105 - the name of a setting
JAAS: Final = "sasl.jaas.config"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of a setting
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - the name of a setting
SCOPE: Final = "sasl.oauthbearer.scope"
# Java's clients need these settings to get a token from a URL, and librdkafka the second one; here they change nothing.
TOKEN_HANDLER: Final = "sasl.login.callback.handler.class"  # noqa: S105 - the name of a setting
TOKEN_METHOD: Final = "sasl.oauthbearer.method"  # noqa: S105 - the name of a setting
HANDLER: Final = "OAuthBearerLoginCallbackHandler"
# The names of librdkafka, and the names of Kafka's Java client for the same settings.
ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ssl.ca.location": "ssl.truststore.location",
        "sasl.mechanisms": "sasl.mechanism",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
    }
)
# The options of the login module of OAUTHBEARER, which mean the same as settings.
TOKEN_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
)
OF_TOKENS: Final = frozenset(
    {TOKEN_URL, TOKEN_FUNCTION, CLIENT_ID, CLIENT_SECRET, SCOPE, TOKEN_HANDLER, TOKEN_METHOD}
)
# Each setting, and its meaning for users (docs/reference/client.md).
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "security.protocol": "`PLAINTEXT` (default), `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`, as the listener of the broker.",
        "ssl.truststore.location": "A PEM file with the certificates of the authorities that the client trusts. Without it, the client trusts those of the operating system. `ssl.ca.location` is the same setting.",
        "ssl.truststore.certificates": "The text of such a file.",
        "ssl.truststore.type": "`PEM`, the only type.",
        "ssl.keystore.location": "A PEM file with the client's key and its certificate chain, for a listener that asks for certificates.",
        "ssl.keystore.key": "The text of the client's key in PEM format (PKCS #8). A secret.",
        "ssl.keystore.certificate.chain": "The text of the client's certificate chain in PEM format.",
        "ssl.keystore.type": "`PEM`, the only type.",
        "ssl.key.password": "The password of the client's key, if the key is encrypted. A secret.",
        "ssl.endpoint.identification.algorithm": "`https` (default): the broker's certificate must contain the host name of the address. Empty: any name is accepted, and who has a certificate of one of the authorities can pretend to be the broker.",
        "sasl.mechanism": "`SCRAM-SHA-512`, `SCRAM-SHA-256`, `PLAIN` or `OAUTHBEARER`; no default.",
        JAAS: 'User name and password: `org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";`, with `plain.PlainLoginModule` for PLAIN. A secret.',
        "sasl.username": "The user name, in place of `sasl.jaas.config`.",
        "sasl.password": "The password, in place of `sasl.jaas.config`. A secret.",
        TOKEN_URL: "For OAUTHBEARER: `https://...` of the token endpoint of an authorization server (`http://` on this machine only), or `file:///path` of a file with the token. The client asks the server, or reads the file, for each login.",
        CLIENT_ID: "The id of the client at the token endpoint. `clientId` in `sasl.jaas.config` and `sasl.oauthbearer.client.id` are the same setting.",
        CLIENT_SECRET: "The secret of the client at the token endpoint. `clientSecret` in `sasl.jaas.config` and `sasl.oauthbearer.client.secret` are the same setting. A secret.",
        SCOPE: "The scope that the client asks the token endpoint for. `scope` in `sasl.jaas.config` is the same setting.",
        TOKEN_HANDLER: f"For OAUTHBEARER: `org.apache.kafka.common.security.oauthbearer.{HANDLER}`, the only one. Java needs it.",
        TOKEN_METHOD: "For OAUTHBEARER: `oidc`, the only one. librdkafka needs it.",
        TOKEN_FUNCTION: "For OAUTHBEARER, in Python only: a function that gets one argument, the empty text, and returns the token, or a tuple with the token first. The form is that of confluent-kafka.",
    }
)
_PEM_ONLY: Final = "stores are PEM files, which have no password: convert a JKS or PKCS12 store to a PEM file, for example with `openssl pkcs12`, and leave the password out"
_NO_CLASS: Final = (
    "the client loads no class of Java: leave it out. For a token, give sasl.oauthbearer.token.endpoint.url"
)
_NO_KERBEROS: Final = "Kerberos (GSSAPI) is not supported: leave it out, and set sasl.mechanism"
_VERSIONS: Final = "the client accepts TLS 1.2 and 1.3, and OpenSSL chooses the cipher suite: leave it out"
_ONE_FILE: Final = "give one PEM file with the key and the certificates as ssl.keystore.location"
# Settings of Kafka's clients and of librdkafka that users have, and what to do without them.
UNSUPPORTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ssl.truststore.password": _PEM_ONLY,
        "ssl.keystore.password": f"{_PEM_ONLY}. The password of an encrypted key is ssl.key.password",
        "ssl.enabled.protocols": _VERSIONS,
        "ssl.protocol": _VERSIONS,
        "ssl.cipher.suites": _VERSIONS,
        "ssl.key.location": _ONE_FILE,
        "ssl.certificate.location": _ONE_FILE,
        "sasl.client.callback.handler.class": _NO_CLASS,
        "sasl.login.class": _NO_CLASS,
        "sasl.kerberos.service.name": _NO_KERBEROS,
    }
)
# Values of such settings that say what the client does in any case. Java's clients need some of them, and their files are
# used with the commands, too.
ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ssl.protocol": ("TLS", "TLSv1.3"),
        "ssl.enabled.protocols": ("TLSv1.2,TLSv1.3", "TLSv1.3,TLSv1.2"),
    }
)
SECRETS: Final = frozenset({JAAS, "sasl.password", CLIENT_SECRET, "ssl.keystore.key", "ssl.key.password"})
PREFIXES: Final = ("security.", "ssl.", "sasl.")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of a client. An attribute is an empty text if its setting is not given.

    Attributes:
        trust_path: the file with the authorities' certificates.
        trust: the text of the authorities' certificates (PEM), instead of a file.
        key_path: the file with the client's key and certificates.
        key: the text of the client's key (PEM), instead of a file.
        chain: the text of the client's certificates (PEM).
        key_password: the password with which the client's key is encrypted.
        checks_host: whether the broker's certificate must contain the host name.
        checks_certificate: whether the broker's certificate is verified. Only a probe of a listener, which sends no secret,
            does not verify it.
    """

    trust_path: str = ""
    trust: str = field(default="", repr=False)
    key_path: str = ""
    key: str = field(default="", repr=False)
    chain: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    checks_certificate: bool = True


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """The token endpoint of an authorization server, and the id and the secret of the client that requests tokens."""

    url: str = field(repr=False)  # its query may contain a secret
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""


@dataclass(frozen=True, slots=True)
class LoginCredentials:
    """The SASL mechanism of a client's login, and the credentials for it.

    Attributes:
        mechanism: the SASL mechanism.
        user: the user name; empty for OAUTHBEARER.
        password: the password; empty for OAUTHBEARER.
        token_path: the file with the token; empty if there is none.
        token: the function that returns the token; None if there is none.
        endpoint: the token endpoint; None if there is none.
    """

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    token_path: str = ""
    token: TokenFunction | None = field(default=None, repr=False)
    endpoint: TokenEndpoint | None = None


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """The security settings of a client.

    Attributes:
        protocol: the security protocol of the listeners to which the client connects.
        tls: the TLS of the connections; None without TLS.
        credentials: the credentials of the login; None without a login.
    """

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    credentials: LoginCredentials | None = None


PLAINTEXT: Final = SecuritySettings()
# The security of a connection that finds out what a listener speaks.
PROBES: Final[Mapping[SecurityProtocol, SecuritySettings]] = MappingProxyType(
    {
        SecurityProtocol.PLAINTEXT: PLAINTEXT,
        SecurityProtocol.SSL: SecuritySettings(
            SecurityProtocol.SSL, TlsSettings(checks_host=False, checks_certificate=False)
        ),
    }
)


def read_security_settings(settings: Mapping[str, Any] | None, prefix: str = "") -> SecuritySettings:
    """Check the security settings of a client, and convert them to one value.

    Args:
        settings: values by Kafka's names.
        prefix: the text before the names of settings in error messages, such as `kafka.` for the options of Spark.

    Raises:
        UsageError: a setting is unknown, missing, contradictory or not valid. The message contains no secret.
    """
    return _Reader(settings or {}, prefix).security() if settings else PLAINTEXT


def _is_unicode(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8. A text from the environment may not: Python represents bytes of
    the environment that are not UTF-8 by surrogates, which no encoding accepts.
    """
    return not any("\ud800" <= one <= "\udfff" for one in text)


class _Reader:
    """Reads the security settings, and remembers which ones it has read. If a setting was never read, it has no effect
    together with the other settings, and an error says so.
    """

    def __init__(self, settings: Mapping[str, Any], prefix: str) -> None:
        self._prefix = prefix
        self._values: dict[str, Any] = {}
        for name, value in settings.items():
            known = ALIASES.get(name, name)
            if value in ACCEPTED.get(known, ()):
                continue
            if known in UNSUPPORTED:
                raise self._refusal(f"{prefix}{known} is not supported: {UNSUPPORTED[known]}")
            if known not in SETTINGS:
                hint = did_you_mean(self._named(name), map(self._named, (*SETTINGS, *ALIASES)))
                raise UsageError(
                    f"the security setting {prefix}{name} is unknown{hint or '; docs/reference/client.md lists the settings'}"
                )
            if known in self._values:
                raise self._refusal(f"{known} is given twice: as {name}, and by its other name. Give it once")
            if known == TOKEN_FUNCTION:
                if not callable(value):
                    raise self._refusal(f"{known} is not a function")
            elif not isinstance(value, str):
                raise self._refusal(f"the value of {known} is not text")
            elif not known.endswith(".location") and not _is_unicode(value):
                raise self._refusal(f"{known} has bytes that are not UTF-8")  # from the environment
            self._values[known] = value

    def _refusal(self, what: str) -> UsageError:
        return UsageError(f"security settings: {what}")

    def _named(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _text(self, name: str) -> str:
        return str(self._values.get(name, "")).strip() if name not in SECRETS else self._values.get(name, "")

    def security(self) -> SecuritySettings:
        """Return the settings as one value."""
        text = (self._text("security.protocol") or SecurityProtocol.PLAINTEXT).upper()
        if text not in tuple(SecurityProtocol):
            raise self._refusal(
                f"{self._named('security.protocol')} is none of {', '.join(SecurityProtocol)}{did_you_mean(text, SecurityProtocol)}"
            )
        protocol = SecurityProtocol(text)
        self._refuse_unused("ssl.", protocol, protocol.is_tls)
        self._refuse_unused("sasl.", protocol, protocol.is_sasl)
        return SecuritySettings(
            protocol,
            self._tls() if protocol.is_tls else None,
            self._credentials() if protocol.is_sasl else None,
        )

    def _refuse_unused(self, prefix: str, protocol: SecurityProtocol, is_used: bool) -> None:
        unused = sorted(
            name
            for name in self._values
            if name.startswith(prefix) or (prefix, name) == ("sasl.", TOKEN_FUNCTION)
        )
        if unused and not is_used:
            fitting = " or ".join(
                one for one in SecurityProtocol if (one.is_tls if prefix == "ssl." else one.is_sasl)
            )
            raise self._refusal(
                f"{self._named(unused[0])} has no effect with security.protocol={protocol}: set "
                f"{self._named('security.protocol')} to {fitting}, or leave it out"
            )

    def _tls(self) -> TlsSettings:
        for store in ("truststore", "keystore"):
            kind = self._text(f"ssl.{store}.type")
            if kind.upper() not in ("", "PEM"):
                raise self._refusal(
                    f"{self._named(f'ssl.{store}.type')}={kind} is not supported: convert the store to a PEM file, for "
                    "example with `openssl pkcs12`, and leave out the type"
                )
        algorithm = self._text("ssl.endpoint.identification.algorithm")
        if "ssl.endpoint.identification.algorithm" in self._values and algorithm.lower() not in (
            "",
            "https",
            "none",
        ):
            raise self._refusal(
                f"{self._named('ssl.endpoint.identification.algorithm')} is neither https nor empty"
            )
        self._refuse_both("ssl.truststore.location", "ssl.truststore.certificates")
        self._refuse_both("ssl.keystore.location", "ssl.keystore.key")
        if ("ssl.keystore.key" in self._values) != ("ssl.keystore.certificate.chain" in self._values):
            raise self._refusal(
                f"{self._named('ssl.keystore.key')} and {self._named('ssl.keystore.certificate.chain')} belong together: give both"
            )
        return TlsSettings(
            trust_path=self._text("ssl.truststore.location"),
            trust=_lines(self._text("ssl.truststore.certificates")),
            key_path=self._text("ssl.keystore.location"),
            key=_lines(self._text("ssl.keystore.key")),
            chain=_lines(self._text("ssl.keystore.certificate.chain")),
            key_password=self._text("ssl.key.password"),
            checks_host="ssl.endpoint.identification.algorithm" not in self._values
            or algorithm.lower() == "https",
        )

    def _refuse_both(self, one: str, other: str) -> None:
        if one in self._values and other in self._values:
            raise self._refusal(
                f"{self._named(one)} and {self._named(other)} exclude each other: give one of them"
            )

    def _credentials(self) -> LoginCredentials:
        mechanism = self._text("sasl.mechanism").upper()
        if mechanism not in MECHANISMS:
            raise self._refusal(
                f"{self._named('sasl.mechanism')} is {'none of' if mechanism else 'missing: give one of'} {', '.join(MECHANISMS)}"
            )
        return (
            self._token_credentials(mechanism)
            if mechanism == OAUTHBEARER
            else self._user_credentials(mechanism)
        )

    def _user_credentials(self, mechanism: str) -> LoginCredentials:
        if not self._values.keys().isdisjoint(OF_TOKENS):
            raise self._refusal(f"a token is given, but {self._named('sasl.mechanism')} is {mechanism}")
        self._refuse_both(JAAS, "sasl.username")
        self._refuse_both(JAAS, "sasl.password")
        user, password = self._text("sasl.username"), self._text("sasl.password")
        if JAAS in self._values:
            options = self._jaas(mechanism)
            user, password = options.get("username", ""), options.get("password", "")
        if not user or not password:
            raise self._refusal(
                f"{'the password' if user else 'the user name'} of {mechanism} is missing: give {self._named(JAAS)} with username "
                f"and password, or {self._named('sasl.username')} and {self._named('sasl.password')}"
            )
        if "\0" in user + password:
            raise self._refusal("user name and password cannot contain the character NUL")
        return LoginCredentials(mechanism, user, password)

    def _token_credentials(self, mechanism: str) -> LoginCredentials:
        if JAAS in self._values:
            self._add_options(self._jaas(mechanism))
        if self._text(TOKEN_HANDLER).rpartition(".")[2] not in ("", HANDLER):
            raise self._refusal(
                f"{self._named(TOKEN_HANDLER)} is not {HANDLER}: give the function {TOKEN_FUNCTION}"
            )
        if self._text(TOKEN_METHOD).lower() not in ("", "oidc"):
            raise self._refusal(
                f"{self._named(TOKEN_METHOD)} is not oidc: tokens without a signature are not supported"
            )
        self._refuse_both(TOKEN_URL, TOKEN_FUNCTION)
        function, url = self._values.get(TOKEN_FUNCTION), self._text(TOKEN_URL)
        if function is None and not url:
            raise self._refusal(
                f"the token of {mechanism} is missing: give {self._named(TOKEN_URL)} as https://... or file:///path, or the "
                f"function {TOKEN_FUNCTION}"
            )
        try:
            parts = urlsplit(url)
        except ValueError:  # a bracket of an IPv6 address is missing
            parts = urlsplit("")
        from stablelog.wire.sasl.oauthbearer import is_server_url  # few clients have a token

        if url and is_server_url(parts):
            return LoginCredentials(mechanism, endpoint=self._endpoint(url))
        if url and (parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path):
            raise self._refusal(
                f"{self._named(TOKEN_URL)} is not valid: write https://..., or file:///path; http:// is accepted for addresses "
                "of this machine only, because the secret would be readable on the way. Write %20 for a space, and so on"
            )
        unused = [name for name in TOKEN_OPTIONS.values() if name in self._values]
        if unused:
            raise self._refusal(
                f"{self._named(unused[0])} has no effect without a token endpoint: set {self._named(TOKEN_URL)} to "
                "https://..., or leave it out"
            )
        return LoginCredentials(mechanism, token_path=unquote(parts.path), token=function)

    def _add_options(self, options: Mapping[str, str]) -> None:
        """Add the options of the JAAS login module (the text of `sasl.jaas.config`) to the settings, under the names of
        the settings with the same meaning.
        """
        for option, name in TOKEN_OPTIONS.items():
            if option in options:
                self._refuse_both(JAAS, name)
                self._values[name] = options[option]

    def _endpoint(self, url: str) -> TokenEndpoint:
        client, secret = self._text(CLIENT_ID), self._text(CLIENT_SECRET)
        for name, value in ((CLIENT_ID, client), (CLIENT_SECRET, secret)):
            if not value:
                raise self._refusal(
                    f"{self._named(name)} is missing: a token endpoint gives tokens to clients that it knows"
                )
        if ":" in client:
            raise self._refusal(f"{self._named(CLIENT_ID)} cannot contain a colon")
        return TokenEndpoint(url, client, secret, self._text(SCOPE))

    def _jaas(self, mechanism: str) -> Mapping[str, str]:
        from stablelog.wire.sasl.jaas import check_module, parse_jaas

        try:
            return check_module(mechanism, parse_jaas(self._text(JAAS))).options
        except ValueError as error:
            raise self._refusal(f"{self._named(JAAS)} is not valid: {error}") from None


def _lines(text: str) -> str:
    r"""Return a PEM text with real line ends. In a file of properties, each line end may be written as a backslash and
    an n.
    """
    return text.replace("\\n", "\n")
