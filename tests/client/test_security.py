"""TLS and logins of the native client, by each of its faces."""

import contextlib
import datetime as dt
import pickle
import socket
import ssl
import threading
import time

import pytest
import trustme
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core.security import (
    SECRETS,
    TOKEN_URL,
    read_security_settings,
)
from stablelog.errors import AuthenticationError, UnavailableError, UsageError
from tests.client.core.test_security import OAUTH, SASL, SECRET, TOKEN_JAAS
from tests.client.faces import FACES, ONE_BY_DAY
from tests.client.transactions import create
from tests.commands import run
from tests.secured import NAMES, PASSWORD, USER, jaas, secured

# How long a wrong setting may take to be told: far less than the client's deadline.
AT_ONCE_S, DEADLINE_S = 20, 60


@pytest.fixture(scope="module")
def server(module_path):
    with secured(module_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        yield server


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def connect(request):
    """Connect by one of the faces."""
    module = {"threads": stablelog, "asyncio": stablelog.aio}[request.param.name]

    def connect(at, settings):
        return request.param(module.connect(at, deadline=DEADLINE_S, settings=settings))

    return connect


def write(client):
    """Write a transaction of a small record and of one that needs many TLS records."""
    with client.transaction(timeout=60) as txn:
        first = txn.write("orders", b"v", key="k")
        txn.write("orders", b"x" * 300_000, key="k")
    return first.result(30)


def refusal(connect, at, settings):
    began = time.monotonic()
    with connect(at, settings) as client, pytest.raises(AuthenticationError) as refused:
        write(client)
    assert time.monotonic() - began < AT_ONCE_S
    assert PASSWORD not in str(refused.value)
    return refused.value


@pytest.mark.sampled(2)
@pytest.mark.parametrize("protocol", NAMES)
def test_transactions_are_written_and_read_with_each_security_protocol(server, connect, protocol):
    with connect(server.at[protocol], server.settings(protocol)) as client:
        before = [one.commit_sequence for one in client.read("orders", wait=0.2)]
        position = write(client)
        after = client.read("orders", after=max(before, default=0), wait=5)
        found = [record for record in next(after).records if record.offset == position.offset]
        assert [record.value for record in found] == [b"v"]
        after.close()


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_each_mechanism_logs_in_by_either_kind_of_names(server, connect, mechanism):
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    trust = {"ssl.ca.location": str(server.certificates.trust), "security.protocol": "sasl_ssl"}
    java = {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(module=module)}
    librdkafka = {"sasl.mechanisms": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    for names in (java, librdkafka):
        with connect(server.at["SASL_SSL"], trust | names) as client:
            write(client)


def test_keys_and_certificates_may_be_texts(server, connect):
    files = server.certificates
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": files.trust.read_text().replace("\n", "\\n"),
        "ssl.keystore.key": files.key,
        "ssl.keystore.certificate.chain": files.chain,
    }
    with connect(server.at["SSL"], settings) as client:
        write(client)


def test_a_wrong_password_is_told_at_once(server, connect):
    wrong = server.login | {"sasl.jaas.config": jaas(password=SECRET)}
    refused = refusal(connect, server.at["SASL_SSL"], wrong)
    assert refused.code == ErrorCode.sasl_authentication_failed
    assert "Check user name and password" in str(refused)
    assert f"as user {USER!r} with SCRAM-SHA-512" in str(refused)
    assert SECRET not in str(refused)


def test_a_mechanism_that_the_broker_does_not_have_is_told_with_those_that_it_has(server, connect):
    settings = server.certificates.trusting(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER") | {
        "oauth_cb": lambda _: SECRET
    }
    refused = refusal(connect, server.at["SASL_SSL"], settings)
    assert "set sasl.mechanism to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in str(refused)


@pytest.mark.parametrize("mine", NAMES)
@pytest.mark.parametrize("listener", NAMES)
def test_another_security_protocol_is_told_at_once(server, connect, mine, listener):
    if mine == listener:
        return
    told = str(refusal(connect, server.at[listener], server.settings(mine)))
    if listener == "SSL":  # it lets nobody talk who has no certificate
        assert "ssl.keystore.location" in told
    else:
        assert f"set security.protocol={listener}, or use another port" in told
        assert ("Without TLS" in told) == (mine.endswith("SSL") and not listener.endswith("SSL"))


@pytest.mark.extended
def test_certificates_that_are_not_accepted_are_told_at_once(server, connect):
    files, login, mutual = server.certificates, server.login, server.mutual
    cases = (
        ("SASL_SSL", login | {"ssl.truststore.location": str(files.stranger)}, "set ssl.truststore.location"),
        ("SSL", {key: mutual[key] for key in mutual if "key" not in key}, "requires a client certificate"),
        (
            "SSL",
            mutual | {"ssl.keystore.location": str(files.foreign)},
            "does not accept the client's certificate",
        ),
    )
    for listener, settings, told in cases:
        assert told in str(refusal(connect, server.at[listener], settings))


@pytest.mark.extended
def test_the_host_name_is_checked_unless_the_check_is_switched_off(tmp_path, connect):
    with secured(tmp_path, names=("elsewhere.example",)) as server:
        create(server.at["PLAINTEXT"], name="orders")
        told = str(refusal(connect, server.at["SASL_SSL"], server.login))
        assert "the broker's certificate is for another host" in told
        unchecked = server.login | {"ssl.endpoint.identification.algorithm": ""}
        with connect(server.at["SASL_SSL"], unchecked) as client:
            write(client)


@pytest.mark.extended
@ONE_BY_DAY
def test_the_client_authenticates_again_before_its_session_ends(tmp_path, connect):
    with secured(tmp_path, **{"connections.max.reauth.ms": "1500"}) as server:
        create(server.at["PLAINTEXT"], name="orders")
        with connect(server.at["SASL_SSL"], server.login) as client:
            until = time.monotonic() + 4
            count = 0
            while time.monotonic() < until:
                write(client)
                count += 1
            assert len(list(client.read("orders", wait=1))) == count
            time.sleep(1.6)  # the session has ended, and no request was sent
            write(client)
    log = server.broker.log_tail(1000)
    assert "session" not in log, log


@pytest.mark.parametrize(
    "contents", ["", "x", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_that_cannot_be_used_is_named(server, tmp_path, contents):
    (tmp_path / "bad.pem").write_text(contents)
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        for path in (tmp_path / "bad.pem", tmp_path / "none.pem"):
            security = read_security_settings(server.mutual | {name: str(path)})
            with pytest.raises(UsageError, match=f"{path.name} cannot be used: .+") as refused:
                BlockingCluster(server.at["SSL"], security=security).any_connection()
            assert SECRET not in str(refused.value)


def test_no_secret_stands_in_the_text_of_an_object(server):
    texts = {name: SECRET for name in SECRETS if name.startswith("ssl.")}
    tls = {"security.protocol": "SSL", "ssl.keystore.certificate.chain": "c", **texts}
    login = {**SASL, "sasl.username": "a", "sasl.password": SECRET}
    token = {**OAUTH, TOKEN_URL: f"https://a:{SECRET}@a/b?code={SECRET}", "sasl.jaas.config": TOKEN_JAAS}
    for settings in (tls, login, token):
        security = read_security_settings(settings)
        cluster = BlockingCluster("h:1", security=security)
        for shown in (
            security,
            security.tls,
            security.credentials,
            cluster,
            cluster.core,
            stablelog.connect("h:1", settings=settings),
        ):
            assert SECRET not in repr(shown) + str(shown)
            assert SECRET not in repr(getattr(shown, "__reduce__", None))
        assert pickle.loads(pickle.dumps(cluster)).core.security == security


def test_a_certificate_that_has_changed_is_used_for_new_connections(server, tmp_path):
    trust = tmp_path / "trust.pem"
    trust.write_bytes(server.certificates.stranger.read_bytes())
    security = read_security_settings(server.login | {"ssl.truststore.location": str(trust)})
    with pytest.raises(AuthenticationError, match="certificate is not accepted"):
        BlockingCluster(server.at["SASL_SSL"], security=security).any_connection()
    trust.write_bytes(server.certificates.trust.read_bytes() + b"\n")
    BlockingCluster(server.at["SASL_SSL"], security=security).any_connection().close()


def test_many_threads_share_a_client_with_a_login(server):
    failures = []

    def work():
        try:
            for _ in range(5):
                write(client)
        except Exception as error:
            failures.append(error)

    with stablelog.connect(server.at["SASL_SSL"], settings=server.login) as client:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert not failures


@contextlib.contextmanager
def listening(certificate, adjust=lambda _context: None):
    """The address of a TLS listener that has this certificate, and serves nobody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    adjust(context)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = server.accept()
                with contextlib.suppress(OSError):
                    context.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_an_expired_certificate_is_told_with_what_to_do(tmp_path, connect):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "trust.pem")
    expired = authority.issue_cert("127.0.0.1", not_after=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "trust.pem")}
    with listening(expired) as address:
        told = str(refusal(connect, address, settings))
    assert "certificate has expired): renew it at the broker" in told


@pytest.mark.extended
@ONE_BY_DAY
def test_a_password_that_has_changed_is_needed_for_the_next_connection(tmp_path, connect):
    """Also if the broker was restarted meanwhile. A client that has the password goes on."""
    with secured(tmp_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        with connect(server.at["SASL_SSL"], server.login) as client:
            write(client)
            server.broker.stop()
            server.broker.start()
            write(client)
            words = ("users", "add", USER, "--mechanism", "SCRAM-SHA-512", "--password-file", "-")
            changed = run(*words, bootstrap=server.at["PLAINTEXT"], given=SECRET)
            assert changed.returncode == 0, changed.stderr
            write(client)  # on the connection that has logged in
            server.broker.stop()
            server.broker.start()
            began = time.monotonic()
            with pytest.raises(AuthenticationError, match="Check user name and password") as refused:
                write(client)
            assert time.monotonic() - began < AT_ONCE_S
            assert PASSWORD not in str(refused.value)
        new = server.login | {"sasl.jaas.config": jaas(password=SECRET)}
        with connect(server.at["SASL_SSL"], new) as client:
            write(client)


def test_a_listener_that_does_not_agree_on_tls_is_told_at_once(tmp_path, connect):
    """With TLS 1.2, OpenSSL answers so also to a client without a certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "trust.pem")
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "trust.pem")}

    def requiring(context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)

    def with_other_ciphers(context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES128-SHA:@SECLEVEL=0")

    for adjust in (requiring, with_other_ciphers):
        with listening(authority.issue_cert("127.0.0.1"), adjust) as address:
            told = str(refusal(connect, address, settings))
        assert "may require a client certificate (ssl.keystore.location), or accepts no TLS version" in told


@pytest.mark.extended
def test_a_listener_that_closes_in_the_handshake_is_told_with_what_may_be_wrong(tmp_path, connect):
    """The broker does so with TLS 1.2 if the client has no certificate. It may also be stopping, so the client retries."""
    with secured(tmp_path, **{"ssl.enabled.protocols": "TLSv1.2"}) as server:
        create(server.at["PLAINTEXT"], name="orders")
        with connect(server.at["SSL"], server.mutual) as client:
            write(client)
        for changed, told in (
            ({"ssl.keystore.location": ""}, "may require a client certificate"),
            (
                {"ssl.keystore.location": str(server.certificates.foreign)},
                "may not accept the client's certificate",
            ),
        ):
            security = read_security_settings(server.mutual | changed)
            with (
                BlockingCluster(server.at["SSL"], deadline_s=1, security=security) as cluster,
                pytest.raises(UnavailableError, match=told),
            ):
                cluster.metadata()
