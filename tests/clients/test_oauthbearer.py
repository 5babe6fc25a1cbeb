"""Clients that log in with bearer tokens: from a token endpoint, from a file, and from a function of the program."""

import socket
import threading
import time

import pytest
from confluent_kafka import KafkaException

import stablelog
from peers.apache_kafka import NotAvailableError
from stablelog.env.http import SIZE_MAX
from stablelog.errors import AuthenticationError, OutcomeUnknownError, UnavailableError
from stablelog.wire.sasl import OAUTHBEARER
from tests.client.faces import FACES, ONE_BY_DAY
from tests.client.transactions import create
from tests.clients.drivers import unique
from tests.clients.logins import (
    TIMEOUT_S,
    TokenEndpoint,
    bearer,
    java_with_token,
    oidc,
    token_settings,
    write_and_read,
)
from tests.commands import run
from tests.java.client import Java, RefusedError
from tests.secured import secured

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("oauthbearer")]
SETTING = "sasl.oauthbearer.token.endpoint.url"
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
TOKEN_S = 4  # the lifetime of a token that ends while a test uses it


def serving(folder, **settings):
    return secured(folder, **token_settings(folder), **{"group.initial.rebalance.delay.ms": "0", **settings})


@pytest.fixture(scope="module")
def server(module_path):
    with serving(module_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        yield server


@pytest.fixture(scope="module")
def endpoint():
    with TokenEndpoint() as endpoint:
        yield endpoint


def new_topic(server):
    return create(server.at["PLAINTEXT"], order="offset", partitions=1)


def trusting(server, protocol):
    trust = {"ssl.ca.location": str(server.certificates.trust)} if protocol == "SASL_SSL" else {}
    return {"security.protocol": protocol, **trust}


# -- librdkafka ----------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka_gets_its_token_from_a_token_endpoint(server, endpoint, protocol):
    settings = oidc(server.at[protocol], endpoint, **trusting(server, protocol))
    assert write_and_read(settings, new_topic(server)) == b"value"


@pytest.mark.extended
def test_librdkafka_is_refused_with_a_token_of_another_authority(server, endpoint):
    foreign = oidc(server.at["SASL_PLAINTEXT"], endpoint, TokenEndpoint.FOREIGN)
    with pytest.raises(KafkaException, match="invalid_token"):
        write_and_read(foreign, new_topic(server))
    assert TokenEndpoint.FOREIGN in endpoint.given


def test_librdkafka_without_the_secret_of_the_endpoint_gets_no_token(server, endpoint):
    with pytest.raises(KafkaException, match="Failed to acquire SASL OAUTHBEARER token"):
        write_and_read(oidc(server.at["SASL_PLAINTEXT"], endpoint, secret="wrong"), new_topic(server))


# -- the Java client -----------------------------------------------------------------------------------------------


def java_client(server, *urls):
    """The Java client, which may ask these URLs for tokens."""
    try:
        client = Java(server.at["SASL_PLAINTEXT"])
    except NotAvailableError as missing:
        pytest.skip(str(missing))
    for kind in ("urls", "files"):
        name = f"org.apache.kafka.sasl.oauthbearer.allowed.{kind}"
        client.ask("property", name=name, value=",".join(urls))
    return client


@pytest.mark.extended
@pytest.mark.java
def test_java_gets_its_token_from_a_token_endpoint(server, endpoint):
    client, topic = java_client(server, endpoint.url), new_topic(server)
    name = client.open(java_with_token(endpoint.url))
    assert client.send(name, topic, [b"value"]) == [[0, 0]]
    client.ask("close", name=name)
    foreign = client.open(java_with_token(endpoint.url, TokenEndpoint.FOREIGN))
    with pytest.raises(RefusedError, match="SaslAuthenticationException"):
        client.send(foreign, topic, [b"value"])
    client.ask("close", name=foreign)
    with pytest.raises(RefusedError, match="Failed to construct kafka producer"):
        client.open(java_with_token(endpoint.url, secret="wrong"))


@pytest.mark.java
def test_java_reads_its_token_from_a_file(server, tmp_path):
    path = tmp_path / "token"
    path.write_text(bearer())
    client, topic = java_client(server, path.as_uri(), str(path)), new_topic(server)
    name = client.open(java_with_token(path.as_uri()))
    assert client.send(name, topic, [b"value"]) == [[0, 0]]
    client.ask("close", name=name)


@pytest.mark.java
@pytest.mark.night
def test_java_authenticates_again_with_a_token(tmp_path, endpoint):
    with serving(tmp_path, **{"connections.max.reauth.ms": "1500"}) as server:
        client, topic = java_client(server, endpoint.url), new_topic(server)
        name = client.open(java_with_token(endpoint.url))
        done_s, count = time.monotonic() + 5, 0
        while time.monotonic() < done_s:
            client.send(name, topic, [b"value"])
            count += 1
        client.ask("close", name=name)
        assert count > 10
        assert "has ended" not in server.broker.log_path.read_text()


# -- the native client ---------------------------------------------------------------------------------------------


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def connect(request):
    """Connect by one of the faces of the native client."""
    module = {"threads": stablelog, "asyncio": stablelog.aio}[request.param.name]

    def connect(server, protocol="SASL_SSL", deadline=TIMEOUT_S, **token):
        settings = {"sasl.mechanism": OAUTHBEARER, **token, **trusting(server, protocol)}
        return request.param(module.connect(server.at[protocol], deadline=deadline, settings=settings))

    return connect


def write(client):
    with client.transaction(timeout=60) as txn:
        written = txn.write("orders", b"v", key="k")
    return written.result(TIMEOUT_S)


def asking(endpoint, user="alice", secret=TokenEndpoint.SECRET):
    """The settings of a client that asks the endpoint for its token, with Java's names and with those of librdkafka."""
    java = {
        name: text for name, text in java_with_token(endpoint.url, user, secret).items() if "sasl." in name
    }
    librdkafka = {name: text for name, text in oidc("", endpoint, user, secret).items() if "sasl." in name}
    own = {
        "sasl.oauthbearer.client.credentials.client.id": user,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
        "sasl.oauthbearer.scope": "log",
        SETTING: endpoint.url,
    }
    return java, librdkafka, own


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_native_client_logs_in_with_a_token(server, endpoint, connect, tmp_path, protocol):
    path = tmp_path / "token"
    path.write_text(bearer() + "\n")
    function = {"oauth_cb": lambda _: (bearer(), time.time() + 3600)}
    for token in ({SETTING: path.as_uri()}, function, *asking(endpoint)):
        with connect(server, protocol, **token) as client:
            position = write(client)
            found = client.read("orders", wait=5)
            assert any(one.offset == position.offset for read in found for one in read.records)
            found.close()


@pytest.mark.parametrize("wrong", [{"key": 1}, {"lifetime_s": -3600}], ids=["foreign", "expired"])
def test_a_token_that_is_not_valid_is_told_at_once(server, connect, wrong):
    text = bearer(**wrong)
    with (
        connect(server, oauth_cb=lambda _: text) as client,
        pytest.raises(AuthenticationError, match=r"with OAUTHBEARER failed: .*Get a valid token") as refused,
    ):
        write(client)
    assert text not in str(refused.value)


def test_a_client_without_the_secret_of_the_endpoint_is_told_at_once(server, endpoint, connect):
    for settings in asking(endpoint, secret="wrong-secret"):
        with (
            connect(server, **settings) as client,
            pytest.raises(
                AuthenticationError, match="gives no token to client 'alice': invalid_client"
            ) as refused,
        ):
            write(client)
        assert "wrong-secret" not in str(refused.value)


@pytest.mark.extended
def test_an_endpoint_that_gives_no_token_is_told(server, endpoint, connect, monkeypatch):
    *_, settings = asking(endpoint)
    for answer, error, told in (
        ((200, b"<html>"), AuthenticationError, "has no access_token: it is not a token endpoint"),
        ((404, b""), AuthenticationError, "gives no token to client 'alice': status 404"),
        ((401, b'{"error": "s3cr3t"}'), AuthenticationError, "status 401"),
        ((408, b""), UnavailableError, "its response has the status 408"),
        ((429, b"{}"), UnavailableError, "its response has the status 429"),
        ((302, b""), UnavailableError, "its response has the status 302"),
        ((503, b""), UnavailableError, "its response has the status 503"),
        ((200, b"x" * (SIZE_MAX + 1)), UnavailableError, "the document has more than 1048576 bytes"),
    ):
        monkeypatch.setattr(endpoint, "answer", answer)
        with connect(server, deadline=1, **settings) as client, pytest.raises(error, match=told) as refused:
            write(client)
        assert endpoint.SECRET not in str(refused.value)
        assert "s3cr3t" not in str(refused.value)


@pytest.mark.extended
def test_an_endpoint_with_tls_needs_a_certificate_that_is_trusted(server, connect, monkeypatch):
    with TokenEndpoint(server.certificates.broker) as endpoint:
        for settings in asking(endpoint):
            with (
                connect(server, **settings) as client,
                pytest.raises(AuthenticationError, match="the operating system must trust its authority"),
            ):
                write(client)
        assert not endpoint.given
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificates.trust))
        with connect(server, **settings) as client:
            write(client)


@pytest.mark.extended
def test_an_endpoint_that_is_away_is_asked_again(server, endpoint, connect, monkeypatch):
    *_, settings = asking(endpoint)
    monkeypatch.setattr(endpoint, "answer", (503, b""))
    with connect(server, **settings) as client:
        back = threading.Timer(1, lambda: monkeypatch.setattr(endpoint, "answer", None))
        back.start()
        write(client)
        back.join()


@pytest.mark.extended
@ONE_BY_DAY
def test_a_client_authenticates_again_with_a_new_token_before_the_token_ends(tmp_path, connect):
    given = []

    def new_token(_):
        given.append(bearer(lifetime_s=TOKEN_S))
        return given[-1]

    with serving(tmp_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        with connect(server, oauth_cb=new_token) as client:
            write(client)
            first = len(given)
            done_s = time.monotonic() + 1.5 * TOKEN_S
            while time.monotonic() < done_s:
                write(client)
        log = server.broker.log_path.read_text()
    assert len(given) > first
    assert "session" not in log, log


@pytest.mark.extended
def test_a_client_whose_next_token_is_refused_says_so(tmp_path, connect):
    """The first token ends, and what the function returns then is not valid.

    If the client connects again after it has asked for a commit, it says that the outcome is unknown, and why.
    """
    is_valid = True
    with serving(tmp_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        with connect(server, oauth_cb=lambda _: bearer(lifetime_s=TOKEN_S) if is_valid else "none") as client:
            write(client)
            is_valid = False
            until_s = time.monotonic() + TOKEN_S + TIMEOUT_S
            with pytest.raises(
                (AuthenticationError, OutcomeUnknownError), match="Get a valid token"
            ) as refused:
                while time.monotonic() < until_s:
                    write(client)
    assert AuthenticationError in {type(refused.value), type(refused.value.__cause__)}


# -- commands ------------------------------------------------------------------------------------------------------


def config(folder, server, settings):
    """The file of `--command-config`."""
    settings = {**settings, **trusting(server, "SASL_SSL")}
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return ("--command-config", str(path))


def token_file(folder, text):
    """The settings of the Java client with the token of a file."""
    (folder / "token").write_text(text)
    return java_with_token((folder / "token").as_uri())


@pytest.mark.extended
@pytest.mark.parametrize("source", ["file", "endpoint"])
def test_commands_log_in_with_a_token(server, endpoint, tmp_path, source):
    """Some commands use librdkafka, and others the native client. The file is that of Kafka's own tools.

    librdkafka waits for a second before it connects with a token, so there are few commands here.
    """
    token = token_file(tmp_path, bearer()) if source == "file" else java_with_token(endpoint.url)
    given, topic = config(tmp_path, server, token), unique("commands")
    for words, stdin, told in (
        (("topics", "create", topic), None, topic),
        (("produce", topic), "a\nb\n", ""),
        (("consume", topic, "--group", unique("group"), "--count", "2"), None, "a\nb\n"),
        (("quotas", "list"), None, ""),
    ):
        done = run(*words, *given, bootstrap=server.at["SASL_SSL"], given=stdin)
        assert done.returncode == 0, (words, done.stderr)
        assert told in done.stdout, words


@pytest.mark.parametrize("fault", ["foreign", "expired", "missing", "secret"])
@pytest.mark.parametrize(
    "words",
    [("topics", "list"), ("produce", "orders"), ("consume", "orders"), ("quotas", "list")],
    ids=" ".join,
)
def test_a_command_without_a_valid_token_ends_with_one_line(server, endpoint, tmp_path, words, fault):
    text = {"foreign": bearer(key=1), "expired": bearer(lifetime_s=-3600)}.get(fault, "")
    token = token_file(tmp_path, text)
    if fault == "secret":
        token = java_with_token(endpoint.url, secret="wrong-secret")
    given = config(tmp_path, server, token)
    if fault == "missing":
        (tmp_path / "token").unlink()
    begun = time.monotonic()
    done = run(*words, *given, bootstrap=server.at["SASL_SSL"], given="x\n")
    assert time.monotonic() - begun < 20
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "token" in done.stderr
    assert not text or text not in done.stderr + done.stdout
    assert "wrong-secret" not in done.stderr + done.stdout


@pytest.mark.extended
def test_a_command_tells_that_the_token_endpoint_does_not_respond(server, tmp_path):
    """The broker is there, so it alone must not be blamed."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/token"
    given = config(tmp_path, server, java_with_token(url))
    done = run("quotas", "list", *given, "--timeout", "2", bootstrap=server.at["SASL_SSL"])
    assert done.returncode == 3, done
    assert f"the token endpoint {url} gives no token: Connection refused" in done.stderr
