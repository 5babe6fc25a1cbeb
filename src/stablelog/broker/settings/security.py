"""The settings of listeners and of TLS: a part of the table of all settings (`broker.settings.table`).

A setting with `per_listener` can be set for one listener, as in Kafka: `listener.name.<name in lower case>.<setting>`.
"""

from typing import Final

from stablelog.broker.settings.listeners import ADDRESSES, OPTIONAL_ADDRESSES, PROTOCOLS
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.security.mapping_rules import parse_rules
from stablelog.settings import INT_MAX, SettingType, boolean, choice, integer

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
TEXT: Final = SettingType(str.strip, "text, or empty")
FILE: Final = SettingType(str.strip, "the path of a PEM file, or empty")
PEM: Final = SettingType(lambda text: text.replace("\\n", "\n").strip(), "text in PEM format, or empty")


def _parse_store_type(text: str) -> str:
    if text.strip().upper() != "PEM":
        raise ValueError(
            "only PEM stores can be read; convert a PKCS12 store with: openssl pkcs12 -in STORE -out FILE.pem -nodes"
        )
    return "PEM"


def _parse_versions(text: str) -> frozenset[str]:
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not found or not found <= set(TLS_VERSIONS):
        raise ValueError
    return found


STORE_TYPE: Final = SettingType(_parse_store_type, "PEM")

SECURITY_SETTINGS: tuple[BrokerSetting, ...] = (
    # listeners
    BrokerSetting(
        "listeners",
        ADDRESSES,
        "PLAINTEXT://127.0.0.1:9092",
        "The addresses on which the broker listens, each with the name of the listener. Port 0 takes a free port.",
    ),
    BrokerSetting(
        "advertised.listeners",
        OPTIONAL_ADDRESSES,
        "",
        "The addresses that clients use after the first connection, by the names of the listeners. The others "
        "advertise the address on which they listen.",
    ),
    BrokerSetting(
        "listener.security.protocol.map",
        PROTOCOLS,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener, by its name: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.",
    ),
    BrokerSetting(
        "inter.broker.listener.name",
        TEXT,
        "",
        "The name of the listener for connections between brokers. Empty: the first listener.",
    ),
    BrokerSetting(
        "stablelog.listeners.allow.unauthenticated",
        boolean(),
        "false",
        "Whether a listener that does not authenticate its clients may listen on an address that other machines "
        "reach. Everyone there may then do everything.",
    ),
    # TLS
    BrokerSetting(
        "ssl.keystore.type",
        STORE_TYPE,
        "PEM",
        "The format of `ssl.keystore.location`. Only PEM is read.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.keystore.location",
        FILE,
        "",
        "The file with the broker's private key, its certificate, and the certificates of intermediate "
        "authorities. The broker uses a changed file for new connections.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.keystore.certificate.chain",
        PEM,
        "",
        "The broker's certificate chain itself, instead of `ssl.keystore.location`.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.keystore.key",
        PEM,
        "",
        "The broker's private key itself, instead of `ssl.keystore.location`.",
        per_listener=True,
        is_secret=True,
    ),
    BrokerSetting(
        "ssl.key.password",
        TEXT,
        "",
        "The password of the private key. Empty: the key is not encrypted.",
        per_listener=True,
        is_secret=True,
    ),
    BrokerSetting(
        "ssl.truststore.type",
        STORE_TYPE,
        "PEM",
        "The format of `ssl.truststore.location`. Only PEM is read.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.truststore.location",
        FILE,
        "",
        "The file with the certificates of the authorities that sign client certificates. The broker notices a change of "
        "the file.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.truststore.certificates",
        PEM,
        "",
        "The certificates of these authorities themselves, instead of `ssl.truststore.location`.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.client.auth",
        choice("none", "requested", "required"),
        "none",
        "Whether a client needs a certificate. `requested`: a client without one is `User:ANONYMOUS`. A listener with "
        "SASL uses only the value that is set for this listener.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.enabled.protocols",
        SettingType(_parse_versions, "one or more of " + ", ".join(TLS_VERSIONS)),
        ",".join(TLS_VERSIONS),
        "The versions of TLS that the broker accepts.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.cipher.suites",
        TEXT,
        "",
        "The cipher suites of TLS 1.2 that the broker accepts, by OpenSSL's names, with commas between them. Empty: "
        "OpenSSL's choice.",
        per_listener=True,
    ),
    BrokerSetting(
        "ssl.principal.mapping.rules",
        SettingType(
            parse_rules, "rules of the form RULE:pattern/replacement/ with commas between them, or DEFAULT"
        ),
        "DEFAULT",
        "How the distinguished name of a client certificate becomes the name of a principal. The first rule whose "
        "pattern matches the whole name decides; `DEFAULT` takes the distinguished name.",
        per_listener=True,
    ),
    BrokerSetting(
        "stablelog.ssl.handshake.timeout.ms",
        integer(100, INT_MAX),
        "10000",
        "The broker closes a connection whose TLS handshake takes longer.",
    ),
    BrokerSetting(
        "stablelog.metrics.host",
        TEXT,
        "127.0.0.1",
        "The address of the Prometheus metrics, which everyone who reaches it can read.",
    ),
    BrokerSetting(
        "stablelog.metrics.allow.unauthenticated",
        boolean(),
        "false",
        "Whether `stablelog.metrics.host` may be an address that other machines reach.",
    ),
)
