"""The security settings of a client: each is described, and a wrong one is refused without a secret."""

import re

import pytest

import stablelog
from stablelog.client.core.security import (
    ACCEPTED,
    ALIASES,
    CLIENT_ID,
    CLIENT_SECRET,
    SECRETS,
    SETTINGS,
    TOKEN_URL,
    UNSUPPORTED,
    read_security_settings,
)
from stablelog.errors import UsageError
from tests import documented
from tests.secured import jaas

DOC = documented.page("client.md")
SECRET = "s3cr3t-value"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
OAUTH = {**SASL, "sasl.mechanism": "OAUTHBEARER"}
TOKEN_JAAS = f'OAuthBearerLoginModule required clientId="a" clientSecret="{SECRET}" scope="s t";'


WRONG = [
    ({"security.protocol": "TLS"}, "none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ({"security.protocl": "SSL"}, "is unknown; did you mean security.protocol"),
    (
        {"sasl.password": SECRET},
        "sasl.password has no effect with security.protocol=PLAINTEXT: set security.protocol to",
    ),
    (
        {**SASL, "ssl.keystore.key": SECRET},
        "ssl.keystore.key has no effect with security.protocol=SASL_PLAINTEXT",
    ),
    ({"security.protocol": "SSL", "oauth_cb": print}, "oauth_cb has no effect"),
    ({"security.protocol": "SASL_SSL", "sasl.password": SECRET}, "sasl.mechanism is missing"),
    ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is none of PLAIN"),
    ({**SASL, "sasl.password": SECRET}, "the user name of SCRAM-SHA-512 is missing"),
    ({**SASL, "sasl.username": "a"}, "the password of SCRAM-SHA-512 is missing"),
    ({**SASL, "sasl.username": "a", "sasl.jaas.config": jaas("a", SECRET)}, "exclude each other"),
    ({**SASL, "sasl.jaas.config": jaas("a", SECRET).rstrip(";")}, "a semicolon at the end"),
    (
        {**SASL, "sasl.jaas.config": jaas("a", SECRET, "plain.PlainLoginModule")},
        "is ScramLoginModule, not Plain",
    ),
    ({**SASL, "sasl.username": "a", "sasl.password": SECRET, "oauth_cb": print}, "a token is given"),
    ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "the token of OAUTHBEARER is missing"),
    ({**OAUTH, TOKEN_URL: "http://example.com/b"}, "http:// is accepted for addresses of this machine only"),
    ({**OAUTH, TOKEN_URL: "example.com"}, "is not valid: write https://..., or file:///path"),
    ({**OAUTH, TOKEN_URL: "https://[a/b"}, "is not valid: write https://..., or file:///path"),
    ({**OAUTH, TOKEN_URL: "https://a:b/c"}, "is not valid: write https://..., or file:///path"),
    ({**OAUTH, TOKEN_URL: "https://a..b/c"}, "is not valid: write https://..., or file:///path"),
    ({**OAUTH, TOKEN_URL: "https://a/b c"}, "%20 for a space"),
    ({**SASL, "sasl.username": "a", "sasl.password": f"{SECRET}\udcff"}, "has bytes that are not UTF-8"),
    ({**OAUTH, TOKEN_URL: "https://a/b"}, "client.id is missing"),
    ({**OAUTH, TOKEN_URL: "https://a/b", CLIENT_ID: "a"}, "client.secret is missing"),
    ({**OAUTH, TOKEN_URL: "https://a/b", CLIENT_ID: "a:b", CLIENT_SECRET: SECRET}, "cannot contain a colon"),
    ({**OAUTH, TOKEN_URL: "file:///a", CLIENT_SECRET: SECRET}, "has no effect without a token endpoint"),
    ({**OAUTH, "oauth_cb": print, CLIENT_SECRET: SECRET}, "has no effect without a token endpoint"),
    ({**OAUTH, TOKEN_URL: "https://a/b", "oauth_cb": print}, "exclude each other"),
    (
        {**OAUTH, TOKEN_URL: "https://a/b", CLIENT_SECRET: "x", "sasl.jaas.config": TOKEN_JAAS},
        "exclude each other",
    ),
    (
        {**OAUTH, "sasl.login.callback.handler.class": "a.Other", "oauth_cb": print},
        "give the function oauth_cb",
    ),
    ({**OAUTH, "sasl.oauthbearer.method": "default", "oauth_cb": print}, "is not oidc"),
    ({**SASL, "sasl.username": "a", "sasl.password": "b", CLIENT_SECRET: SECRET}, "a token is given"),
    ({**SASL, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": SECRET}, "oauth_cb is not a function"),
    ({**SASL, "sasl.username": "a", "sasl.password": 5}, "the value of sasl.password is not text"),
    ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "convert the store to a PEM file"),
    ({"security.protocol": "SSL", "ssl.truststore.password": SECRET}, "convert a JKS or PKCS12 store"),
    ({"security.protocol": "SSL", "ssl.keystore.password": SECRET}, "an encrypted key is ssl.key.password"),
    ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.3"}, "accepts TLS 1.2 and 1.3"),
    ({**SASL, "sasl.kerberos.service.name": "kafka"}, "Kerberos (GSSAPI) is not supported"),
    ({"kafka.sasl.password": SECRET}, "kafka.sasl.password is unknown; did you mean sasl.password"),
    ({"security.protocol": "SSL", "ssl.keystore.key": SECRET}, "belong together"),
    ({"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.truststore.location": "b"}, "given twice"),
    ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "no"}, "neither https nor empty"),
]


@pytest.mark.parametrize(("settings", "told"), WRONG)
def test_wrong_settings_are_refused_without_a_secret(settings, told):
    for connect in (stablelog.connect, stablelog.aio.connect):
        with pytest.raises(UsageError) as refused:
            connect("h:1", settings=settings)
        assert told in str(refused.value)
        assert SECRET not in str(refused.value)


def test_a_file_of_java_s_clients_may_say_what_the_client_does_in_any_case():
    given = {"security.protocol": "SSL"}
    harmless = {"ssl.protocol": "TLSv1.3", "ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}
    assert read_security_settings(given | harmless) == read_security_settings(given)
    for name in harmless:
        with pytest.raises(UsageError, match=f"{name} is not supported"):
            read_security_settings(given | {name: "TLSv1.1"})


def test_no_setting_is_both_supported_and_not():
    assert ACCEPTED.keys() <= UNSUPPORTED.keys()
    assert not UNSUPPORTED.keys() & {*SETTINGS, *ALIASES}


def test_each_setting_is_described():
    described = re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", DOC, re.MULTILINE)
    assert dict(SETTINGS).items() <= dict(described).items()
    assert set(SECRETS) <= set(SETTINGS)
    for name in SECRETS:
        assert "A secret." in SETTINGS[name]
