"""The settings of logins: a part of the table of all settings (`broker.settings.table`).

As in Kafka, the name of a setting of one mechanism begins with the mechanism in lower case. Such a setting can also be
set for one listener: `listener.name.clients.plain.sasl.jaas.config`.
"""

from typing import Final

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.security.keys_url import parse_keys_url
from stablelog.settings import INT_MAX, LONG_MAX, SettingType, integer
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256
from stablelog.wire.sasl.jaas import Jaas, check_module, parse_jaas


def _parse_words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _parse_mechanisms(text: str) -> tuple[str, ...]:
    found = _parse_words(text)
    unknown = [name for name in found if name not in MECHANISMS]
    if unknown:
        raise ValueError(f"the SASL mechanism {unknown[0]} is not supported")
    return found


def _jaas_kind(mechanism: str) -> SettingType:
    def parse(text: str) -> Jaas | None:
        return check_module(mechanism, parse_jaas(text)) if text.strip() else None

    return SettingType(
        parse, f"the login module of {mechanism} with its options and a semicolon at the end, or empty"
    )


def mechanism_setting(mechanism: str, name: str) -> str:
    """Return the name of a setting of one SASL mechanism, such as `plain.sasl.jaas.config`."""
    return f"{mechanism.lower()}.{name}"


JAAS: Final = "sasl.jaas.config"
MAX_REAUTH: Final = "connections.max.reauth.ms"
KEYS_URL: Final = SettingType(
    lambda text: parse_keys_url(text) if text.strip() else "", "https://..., file:///path, or empty"
)
NAME: Final = SettingType(str.strip, "the name of a claim")
OF_JAAS: Final = {
    PLAIN: "The users of PLAIN and their passwords: "
    '`org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";`. The passwords of all '
    "other users are compared with their SCRAM credentials.",
    OAUTHBEARER: "`org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;`, or empty. The options "
    "are not used.",
}

LOGIN_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "sasl.enabled.mechanisms",
        SettingType(_parse_mechanisms, "one or more of " + ", ".join(MECHANISMS)),
        SCRAM_SHA_256,
        "The mechanisms with which clients of listeners with SASL may log in. Kafka's default is GSSAPI, which "
        "stablelog does not have.",
        per_listener=True,
    ),
    *(
        BrokerSetting(
            mechanism_setting(mechanism, JAAS),
            _jaas_kind(mechanism),
            "",
            OF_JAAS.get(
                mechanism,
                "`org.apache.kafka.common.security.scram.ScramLoginModule required;`, or empty. The options are not used: "
                "the users are in `users.json`.",
            ),
            per_listener=True,
            is_secret=True,
        )
        for mechanism in MECHANISMS
    ),
    BrokerSetting(
        MAX_REAUTH,
        integer(0, LONG_MAX),
        "0",
        "The time after a login, in milliseconds, after which a client must have authenticated again. 0: no "
        "limit but that of a token.",
        per_listener=True,
    ),
    *(
        BrokerSetting(
            mechanism_setting(mechanism, MAX_REAUTH),
            integer(-1, LONG_MAX),
            "-1",
            f"`{MAX_REAUTH}` for logins with {mechanism}. -1: its value.",
            per_listener=True,
        )
        for mechanism in MECHANISMS
    ),
    BrokerSetting(
        "connection.failed.authentication.delay.ms",
        integer(0, INT_MAX),
        "100",
        "The time after the request at which a failed login is answered and its connection is closed.",
    ),
    BrokerSetting(
        "sasl.server.max.receive.size",
        integer(256, INT_MAX),
        "65536",
        "The largest request before the login, in bytes. All these requests have 16 MiB of memory of their own.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.url",
        KEYS_URL,
        "",
        "The URL of the JSON Web Key Set with the keys that sign bearer tokens. OAUTHBEARER needs it.",
        per_listener=True,
        is_secret=True,  # A URL may contain a secret key.
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        integer(1000, LONG_MAX),
        "3600000",
        "The age at which these keys are loaded again.",
        per_listener=True,
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.audience",
        SettingType(_parse_words, "audiences with commas between them, or empty"),
        "",
        "A bearer token must be for one of these audiences. Empty: for any.",
        per_listener=True,
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.issuer",
        SettingType(str.strip, "the name of an issuer, or empty"),
        "",
        "A bearer token must be from this issuer. Empty: from any that has one of the keys.",
        per_listener=True,
    ),
    BrokerSetting(
        "sasl.oauthbearer.scope.claim.name",
        NAME,
        "scope",
        "The claim of a bearer token with its scopes.",
        per_listener=True,
    ),
    BrokerSetting(
        "sasl.oauthbearer.sub.claim.name",
        NAME,
        "sub",
        "The claim of a bearer token with the user name.",
        per_listener=True,
    ),
    BrokerSetting(
        "sasl.oauthbearer.clock.skew.seconds",
        integer(0, 86_400),
        "30",
        "The difference that is allowed between the clocks of the broker and of the authorization server.",
        per_listener=True,
    ),
)
