"""The settings of brokers and topics: a wrong one is refused by name."""

import pytest

from stablelog.broker.settings.config import BrokerConfig, check_topic_configs
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.broker.settings.table import FIXED_BROKER_SETTINGS, UNUSED_TOPIC_SETTINGS
from stablelog.errors import UsageError
from stablelog.settings import SettingType
from stablelog.types import SecurityProtocol


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log.segment.byte": "1"}, "did you mean log.segment.bytes"),
        ({"log.segment.bytes": "12"}, "1024 to"),
        ({"listeners": "127.0.0.1:9092"}, "NAME://host:port"),
        ({"listeners": "A B://h:1"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:65536"}, "a port is a number from 0 to 65535"),
        ({"listeners": "A://127.0.0.1:1,a://127.0.0.1:2"}, "a name of its own"),
        ({"listeners": "A://127.0.0.1:1,B://127.0.0.1:1"}, "an address of its own"),
        ({"listeners": "INSIDE://127.0.0.1:1"}, "INSIDE has no security protocol: add INSIDE:PROTOCOL"),
        (
            {"listener.security.protocol.map": "A:TLS"},
            "the protocols are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"advertised.listeners": "SSL://h:1"},
            "advertised.listeners names the listener SSL, and listeners has PLAINTEXT",
        ),
        ({"inter.broker.listener.name": "B"}, "inter.broker.listener.name names the listener B"),
        ({"listener.name.b.ssl.client.auth": "none"}, "listener.name.b.ssl.client.auth names the listener B"),
        ({"listener.name.PLAINTEXT.ssl.client.auth": "none"}, "listener.name.<name in lower case>.<setting>"),
        ({"listener.name.plaintext.ssl.client.aut": "none"}, "did you mean ssl.client.auth"),
        ({"listener.name.plaintext.num.partitions": "2"}, "there is no listener setting 'num.partitions'"),
        ({"ssl.keystore.type": "PKCS12"}, "convert a PKCS12 store with: openssl pkcs12"),
        ({"ssl.client.auth": "maybe"}, "none or requested or required"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "is not a regular expression"),
        ({"stablelog.flush": "never"}, "fsync or os"),
    ],
)
def test_a_bad_setting_is_refused_by_name_with_the_valid_range(given, message):
    with pytest.raises(UsageError, match=message):
        BrokerConfig(given)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_listener_that_serves_everyone_on_the_network_needs_a_setting_named_for_the_risk(host):
    address = f"[{host}]" if ":" in host else host
    for given in (
        {"listeners": f"PLAINTEXT://{address}:9092"},
        {"listeners": f"SSL://{address}:9092", "ssl.client.auth": "requested"},
        {
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:1,OPEN://{address}:9",
            "listener.security.protocol.map": "OPEN:SSL",
        },
    ):
        with pytest.raises(
            UsageError, match=r"everyone on the network .*SASL_SSL.*allow\.unauthenticated=true"
        ):
            BrokerConfig(given)
        BrokerConfig(given | {"stablelog.listeners.allow.unauthenticated": "true"})
    BrokerConfig({"listeners": f"SASL_PLAINTEXT://{address}:9092"})
    BrokerConfig({"listeners": f"SSL://{address}:9092", "ssl.client.auth": "required"})
    BrokerConfig({"listeners": f"SSL://{address}:9092", "listener.name.ssl.ssl.client.auth": "required"})


def test_metrics_that_others_can_read_need_a_setting_of_their_own():
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        given = {"stablelog.metrics.host": host, "stablelog.metrics.port": "9100"}
        with pytest.raises(UsageError, match=r"metrics\.host=.*no login.*allow\.unauthenticated=true"):
            BrokerConfig(given)
        BrokerConfig(given | {"stablelog.metrics.allow.unauthenticated": "true"})
        with pytest.raises(UsageError, match="no login"):
            BrokerConfig(given | {"stablelog.listeners.allow.unauthenticated": "true"})
        BrokerConfig(given | {"stablelog.metrics.port": "-1"})
    for host in ("127.0.0.1", "::1", "localhost"):
        BrokerConfig({"stablelog.metrics.host": host, "stablelog.metrics.port": "9100"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost", ""])
def test_a_listener_on_the_loopback_address_needs_no_login(host):
    address = f"[{host}]" if ":" in host else host
    (listener,) = BrokerConfig({"listeners": f"PLAINTEXT://{address}:9092"}).listeners
    assert (listener.host, listener.advertised) == (host or "127.0.0.1", (host or "127.0.0.1", 0))


def test_each_listener_has_its_protocol_its_advertised_address_and_its_own_values_of_settings():
    config = BrokerConfig(
        {
            "listeners": "INSIDE://127.0.0.1:1, outside://0.0.0.0:2",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,outside:sasl_ssl",
            "advertised.listeners": "OUTSIDE://log.example.org:9094",
            "ssl.client.auth": "required",
            "ssl.keystore.location": "all.pem",
            "listener.name.outside.ssl.keystore.location": "outside.pem",
        }
    )
    inside, outside = config.listeners
    assert (inside.name, inside.protocol, inside.advertised) == (
        "INSIDE",
        SecurityProtocol.PLAINTEXT,
        ("127.0.0.1", 0),
    )
    assert (outside.name, outside.protocol, outside.advertised) == (
        "OUTSIDE",
        SecurityProtocol.SASL_SSL,
        ("log.example.org", 9094),
    )
    assert config.listener_value("INSIDE", "ssl.keystore.location") == "all.pem"
    assert config.listener_value("OUTSIDE", "ssl.keystore.location") == "outside.pem"
    assert config.client_auth(inside) == "none"
    # As in Kafka, a listener with SASL asks for certificates only if the setting is its own.
    assert config.client_auth(outside) == "none"
    asking = BrokerConfig(config.static | {"listener.name.outside.ssl.client.auth": "required"})
    assert asking.client_auth(asking.listeners[1]) == "required"


def test_an_error_leaves_out_the_value_of_a_secret():
    secret = BrokerSetting("a.password", SettingType(int, "a number"), "1", "", is_secret=True)
    with pytest.raises(UsageError) as refused:
        secret.read("hunter2")
    assert str(refused.value) == "the value of a.password is not valid: a number"
    assert refused.value.__cause__ is None


def test_a_topic_setting_that_cannot_be_had_is_refused():
    check_topic_configs({"min.insync.replicas": "2", "retention.ms": "-1", "cleanup.policy": ""})
    for configs in (
        {"min.insync.replicas": "0"},
        {"compression.type": "brotli"},
        {"retention": "1"},
        {"flush.ms": "x"},
    ):
        with pytest.raises(UsageError):
            check_topic_configs(configs)


def test_settings_of_kafka_that_change_nothing_have_kafkas_defaults_and_limits():
    for name, setting in UNUSED_TOPIC_SETTINGS.items():
        check_topic_configs({name: setting.default})
    for name, text in (
        ("unclean.leader.election.enable", "true"),
        ("compression.gzip.level", "9"),
        ("compression.zstd.level", "-131072"),
        ("follower.replication.throttled.replicas", "0:1,1:1"),
    ):
        check_topic_configs({name: text})


def test_a_setting_of_the_broker_with_one_possible_value_is_accepted_with_it():
    assert BrokerConfig(FIXED_BROKER_SETTINGS).static == {}
    for name in FIXED_BROKER_SETTINGS:
        with pytest.raises(UsageError, match=f"{name}='3' is not supported: the value is always "):
            BrokerConfig({name: "3"})


def test_a_new_topic_keeps_what_the_broker_says_of_its_order_and_its_group():
    assert BrokerConfig({}).creation_configs() == {}
    given = BrokerConfig({"stablelog.order": "commit", "stablelog.group": "", "log.retention.ms": "5"})
    assert given.creation_configs() == {"stablelog.order": "commit"}
