"""Real clients log in by each mechanism, and authenticate again before their session ends; secrets stay secret."""

import contextlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from peers.apache_kafka import NotAvailableError
from stablelog.data_directory.registered_file import USERS
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from tests.cli.test_cli import run
from tests.client.transactions import create
from tests.clients.drivers import unique
from tests.clients.logins import (
    DRIVERS,
    LISTENER,
    PASSWORD,
    TIMEOUT_S,
    WRONG,
    TokenEndpoint,
    bearer,
    java,
    librdkafka,
    oidc,
    run_kcat,
    served,
    token_settings,
)
from tests.java.client import Java, RefusedError
from tests.secured import PASSWORD as SECURED_PASSWORD
from tests.secured import USER, secured
from tests.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("logins")]
OTHER = Path(__file__).parent / "other"
SESSION_MS = 3000


@pytest.fixture(scope="module")
def broker(module_path):
    with served(module_path, **{"stablelog.metrics.port": "0"}) as running:
        yield running


def new_topic(bootstrap, password=PASSWORD):
    name = unique("topic")
    admin = AdminClient(librdkafka(bootstrap, SCRAM_SHA_256, password))
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    return name


def log_text(broker):
    return broker.log_path.read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", DRIVERS)
def test_a_client_logs_in_unmodified(broker, client, mechanism):
    password = bearer() if mechanism == OAUTHBEARER else PASSWORD
    topic = new_topic(broker.bootstrap)
    assert DRIVERS[client](broker.bootstrap, mechanism, password, topic) == b"value"


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", DRIVERS)
def test_a_client_with_a_wrong_password_is_refused(broker, client, mechanism):
    password = bearer(lifetime_s=-3600) if mechanism == OAUTHBEARER else WRONG
    with pytest.raises(Exception) as refused:
        DRIVERS[client](broker.bootstrap, mechanism, password, "topic", patience_s=5)
    assert "secret" not in str(refused.value)


@pytest.mark.extended
def test_a_user_of_the_settings_logs_in_with_plain(broker):
    settings = librdkafka(broker.bootstrap, PLAIN, "carol-secret", "carol")
    assert AdminClient(settings).list_topics(timeout=TIMEOUT_S).brokers
    with pytest.raises(KafkaException):
        AdminClient(librdkafka(broker.bootstrap, SCRAM_SHA_256, "carol-secret", "carol")).list_topics(
            timeout=3
        )


def test_a_client_without_a_login_gets_nothing(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    until(lambda: "before the login" in log_text(broker), "the broker says why")


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", [SCRAM_SHA_512, pytest.param(OAUTHBEARER, marks=pytest.mark.night)])
def test_librdkafka_authenticates_again_under_traffic(tmp_path, mechanism):
    with served(tmp_path, **{"connections.max.reauth.ms": SESSION_MS}) as broker:
        topic, failed = new_topic(broker.bootstrap), []
        settings = librdkafka(broker.bootstrap, mechanism, bearer() if mechanism == OAUTHBEARER else PASSWORD)
        producer = Producer(settings | {"enable.idempotence": True})
        done_s, count = time.monotonic() + 2.5 * SESSION_MS / 1000, 0
        while time.monotonic() < done_s:
            producer.produce(topic, b"x", on_delivery=lambda error, _message: error and failed.append(error))
            producer.poll(0.002)
            count += 1
        assert producer.flush(TIMEOUT_S) == 0
        assert (failed, count > 100) == ([], True)
        assert "has ended" not in log_text(broker)


@pytest.mark.extended
def test_secrets_are_shown_nowhere(broker, tmp_path):
    """In no log, response, metric or error; the file of users has no password, and is for its owner only."""
    text = bearer()
    secrets = [PASSWORD, WRONG, "carol-secret", text, text.rpartition(".")[2]]
    for mechanism in MECHANISMS:
        for password in (WRONG, text if mechanism == OAUTHBEARER else PASSWORD):
            admin = AdminClient(librdkafka(broker.bootstrap, mechanism, password))
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=2)
    admin = AdminClient(librdkafka(broker.bootstrap, SCRAM_SHA_256))
    brokers = admin.list_topics(timeout=TIMEOUT_S).brokers
    resource = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(brokers))))
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    jaas = configs[f"{LISTENER}plain.sasl.jaas.config"]
    assert (jaas.value, jaas.is_sensitive) == (None, True)
    users = (broker.data / USERS.name).read_bytes()
    stored = json.loads(users.splitlines()[0])
    keys = [one[key] for one in stored["users"]["alice"].values() for key in ("stored_key", "server_key")]
    metrics = log_text(broker).partition("metrics are served at ")[2].split()[0]
    scraped = subprocess.run(
        ["curl", "-s", metrics], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "stablelog_logins_total" in scraped
    shown = [
        log_text(broker),
        scraped,
        repr({name: (entry.value, [str(one) for one in entry.synonyms]) for name, entry in configs.items()}),
        Path(f"/proc/{broker.pid}/cmdline").read_text(errors="replace"),
        (broker.data / "meta.properties").read_text(),
    ]
    for secret in [*secrets, *keys, stored["secret"]]:
        assert not [text for text in shown if secret in text], secret
    assert not [secret for secret in secrets if secret.encode() in users]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{LISTENER}plain.sasl.jaas.config", 'PlainLoginModule required user_alice="the-secret"'),
        (f"{LISTENER}plain.sasl.jaas.config", 'ScramLoginModule required user_alice="the-secret";'),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("sasl.oauthbearer.jwks.endpoint.url", "http://example.com/keys"),
        ("sasl.oauthbearer.jwks.endpoint.url", ""),
    ],
)
def test_a_setting_that_is_not_valid_ends_the_start(tmp_path, name, value):
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": OAUTHBEARER,
        name: value,
    }
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{one}={text}\n" for one, text in settings.items()))
    done = run("serve", "--data", str(tmp_path / "data"), "--config", str(file))
    assert done.returncode == 2
    assert name.removeprefix(LISTENER) in done.stderr
    assert "the-secret" not in done.stderr


@pytest.fixture(scope="module")
def server(module_path):
    """A broker with a listener of each security protocol, and every mechanism."""
    folder = module_path / "listeners"
    folder.mkdir()
    with secured(folder, **token_settings(folder), **{"group.initial.rebalance.delay.ms": "0"}) as server:
        yield server


@pytest.mark.sampled(1)
@pytest.mark.parametrize("client", DRIVERS)
def test_a_client_logs_in_over_tls(server, client):
    address, topic = server.at["SASL_SSL"], create(server.at["PLAINTEXT"])
    arguments = (address, SCRAM_SHA_512, SECURED_PASSWORD, topic)
    assert DRIVERS[client](*arguments, trust=server.certificates.trust) == b"value"
    failed = log_text(server.broker).count("the TLS handshake failed")
    with pytest.raises(Exception):  # noqa: B017 - each client has its own
        DRIVERS[client](*arguments, patience_s=3, trust=server.certificates.stranger)
    until(
        lambda: log_text(server.broker).count("the TLS handshake failed") > failed,
        "the broker logs the handshake that failed",
    )


@pytest.mark.extended
@pytest.mark.java
def test_java_logs_in_over_tls(server):
    topic = create(server.at["PLAINTEXT"])
    stores = {"security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM"}
    settings = java(SCRAM_SHA_512, SECURED_PASSWORD.replace('"', '\\"')) | stores
    client = java_client(SimpleNamespace(bootstrap=server.at["SASL_SSL"]))
    client.send(
        client.open(settings | {"ssl.truststore.location": str(server.certificates.trust)}), topic, [b"v"]
    )
    with pytest.raises(RefusedError, match="SslAuthenticationException"):
        stranger = {"ssl.truststore.location": str(server.certificates.stranger)}
        client.send(client.open(settings | stranger), topic, [b"v"])


# -- other languages -----------------------------------------------------------------------------------------------


def java_client(broker):
    try:
        return Java(broker.bootstrap)
    except NotAvailableError as missing:
        pytest.skip(str(missing))


@pytest.mark.java
@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256, SCRAM_SHA_512])
def test_java_logs_in(broker, mechanism):
    client, topic = java_client(broker), new_topic(broker.bootstrap)
    client.send(client.open(java(mechanism, PASSWORD)), topic, [b"value"])
    with pytest.raises(RefusedError, match="SaslAuthenticationException"):
        client.send(client.open(java(mechanism, WRONG)), topic, [b"value"])


@pytest.mark.java
@pytest.mark.night
def test_java_authenticates_again_under_traffic(tmp_path):
    with served(tmp_path, **{"connections.max.reauth.ms": SESSION_MS}) as broker:
        client, topic = java_client(broker), new_topic(broker.bootstrap)
        name = client.open(java(SCRAM_SHA_512, PASSWORD))
        done_s, count = time.monotonic() + 2.5 * SESSION_MS / 1000, 0
        while time.monotonic() < done_s:
            client.send(name, topic, [b"value"])
            count += 1
        assert count > 100
        assert "has ended" not in log_text(broker)


@pytest.fixture(scope="session")
def go_client(tmp_path_factory):
    """The program in Go, built with the modules of its go.sum."""
    if shutil.which("go") is None:
        pytest.skip("Go is not on the path")
    program = tmp_path_factory.mktemp("go") / "logins"
    built = subprocess.run(
        ["go", "build", "-o", program, "."],
        cwd=OTHER / "go",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"the clients in Go cannot be built: {built.stderr[-200:]}")
    return [str(program)]


@pytest.fixture(scope="session")
def kafkajs(tmp_path_factory):
    """The program in JavaScript, with kafkajs beside it."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not on the path")
    directory = tmp_path_factory.mktemp("javascript") / "logins"
    shutil.copytree(OTHER / "javascript", directory)
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"kafkajs cannot be had: {installed.stderr[-200:]}")
    return ["node", str(directory / "login.mjs")]


def check_program(broker, command, mechanism):
    topic = new_topic(broker.bootstrap)
    right = bearer() if mechanism == OAUTHBEARER else PASSWORD
    for password in (right, bearer(lifetime_s=-3600) if mechanism == OAUTHBEARER else WRONG):
        arguments = [*command, broker.bootstrap, mechanism, "alice", password, topic]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        if password == right:
            assert done.stdout == "value: alice\n", done.stdout + done.stderr
        else:
            assert done.stdout.startswith("error: "), done.stdout


@pytest.mark.night
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", ["franz-go", "sarama", "sarama-v0"])
def test_clients_in_go_log_in(broker, go_client, client, mechanism):
    check_program(broker, [*go_client, client], mechanism)


@pytest.mark.night
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkajs_logs_in(broker, kafkajs, mechanism):
    check_program(broker, kafkajs, mechanism)


# -- kcat ----------------------------------------------------------------------------------------------------------


SCRAM_SINCE = (2, 6, 1)  # an earlier librdkafka sends a wrong nonce


@pytest.fixture(scope="module")
def kcat():
    """The version and the features of the librdkafka of kcat."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not on the path; Debian has it: apt-get install kcat")
    told = run_kcat({}, "-V").stdout
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", told).groups()
    features = re.search(r"builtin\.features=([a-z0-9_,]+)", told)[1].split(",")
    return tuple(map(int, version)), features


def kcat_settings(server, protocol, mechanism, **more):
    trust = {"ssl.ca.location": str(server.certificates.trust)} if protocol == "SASL_SSL" else {}
    return {
        "bootstrap.servers": server.at[protocol],
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        **trust,
        **more,
    }


def check_kcat(settings, wrong):
    """kcat writes and reads with the settings, and with the wrong ones in their place it does neither."""
    topic = unique("kcat")
    written = run_kcat(settings, "-P", "-t", topic, "-p", "0", lines="one\ntwo\n")
    assert written.returncode == 0, written.stderr
    read = run_kcat(settings, "-C", "-q", "-e", "-t", topic)
    assert read.stdout == "one\ntwo\n", read.stderr
    group = run_kcat(settings | {"auto.offset.reset": "earliest"}, "-q", "-e", "-G", unique("group"), topic)
    assert group.stdout == "one\ntwo\n", group.stderr
    refused = run_kcat(settings | wrong, "-L", "-m", "2")
    assert refused.returncode != 0
    assert "1 brokers" not in refused.stdout
    late = run_kcat(
        settings | wrong | {"message.timeout.ms": 2000}, "-P", "-t", topic, "-p", "0", lines="x\n"
    )
    assert late.returncode != 0
    read = run_kcat(settings, "-C", "-q", "-e", "-t", topic)
    assert read.stdout == "one\ntwo\n", read.stderr


@pytest.mark.night
@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_kcat_logs_in(server, kcat, protocol, mechanism):
    user = {"sasl.username": USER, "sasl.password": SECURED_PASSWORD}
    settings = kcat_settings(server, protocol, mechanism, **user)
    if mechanism == PLAIN or kcat[0] >= SCRAM_SINCE:
        check_kcat(settings, {"sasl.password": WRONG})
    else:
        assert run_kcat(settings, "-L", "-m", "2").returncode != 0
        assert "librdkafka does so before 2.6.1" in server.broker.log_tail(1000)


@pytest.mark.night
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_kcat_logs_in_with_a_token(server, kcat, protocol):
    if "oidc" not in kcat[1]:
        pytest.skip("the librdkafka of this kcat cannot ask a token endpoint")
    with TokenEndpoint() as endpoint:
        token = oidc(server.at[protocol], endpoint)
        settings = kcat_settings(server, protocol, OAUTHBEARER) | {
            name: value for name, value in token.items() if name.startswith("sasl.")
        }
        check_kcat(settings, {"sasl.oauthbearer.client.id": TokenEndpoint.FOREIGN})


@pytest.mark.night
def test_kcat_with_a_token_without_a_signature_is_refused(server, kcat):
    assert "sasl_oauthbearer" in kcat[1]
    unsecured = {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": f"principal={USER}",
    }
    refused = run_kcat(kcat_settings(server, "SASL_SSL", OAUTHBEARER, **unsecured), "-L", "-m", "2")
    assert refused.returncode != 0
    assert "1 brokers" not in refused.stdout
    assert "the token's algorithm is not accepted" in server.broker.log_tail(1000)
