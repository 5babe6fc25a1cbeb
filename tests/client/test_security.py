"""TLS and logins of the native client, by each of its faces."""

import contextlib
import datetime as dt
import pickle
import re
import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core import connection as core
from stablelog.client.core.frames import ClientFrames
from stablelog.client.core.login import log_in
from stablelog.client.core.security import (
    ACCEPTED,
    ALIASES,
    CLIENT_ID,
    CLIENT_SECRET,
    SECRETS,
    SETTINGS,
    TOKEN_URL,
    UNSUPPORTED,
    security_of,
)
from stablelog.client.core.tokens import token_of
from stablelog.errors import AuthenticationError, UnavailableError, UsageError
from stablelog.wire.sasl import SaslMessageError
from tests.client.faces import FACES, ONE_BY_DAY
from tests.client.transactions import create
from tests.commands import run
from tests.secured import NAMES, PASSWORD, USER, jaas, secured

DOC = Path(__file__).parents[2] / "docs" / "client.md"
SECRET = "s3cr3t-value"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
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


def test_requests_in_flight_are_answered_around_an_authentication():
    """Their responses are received before it, and returned after it."""
    steps = []

    class Connection(core.BrokerConnection):
        is_closed = False

        def close(self):
            raise AssertionError("closed")

        after_fork = close

        def authenticate(self):
            assert not self.is_awaiting
            self.renew_at = None
            steps.append("login")
            return
            yield

    security = security_of({**SASL, "sasl.username": "a", "sasl.password": "b"})
    connection = Connection("h:1", "me", security)
    connection.renew_at = 5.0
    responses = iter([b"\0\0\0\5", b"\0\0\0\1A", b"\0\0\0\5", b"\0\0\0\2B", b"\0\0\0\5", b"\0\0\0\3C"])

    def run(work, now):
        answer = None
        try:
            while True:
                effect = work.send(answer)
                kind = type(effect).__name__
                steps.append(kind)
                answer = now if kind == "Now" else memoryview(next(responses)) if kind == "Receive" else None
        except StopIteration as end:
            return end.value

    for now in (1.0, 2.0):
        run(connection.send_steps(3, 0, [b"x"], flexible=False), now)
    assert "login" not in steps
    run(connection.send_steps(3, 0, [b"x"], flexible=False), 6.0)
    assert steps[-6:] == ["Receive"] * 4 + ["login", "Send"]
    found = [bytes(run(connection.receive_steps(flexible=False), 7.0)) for _ in range(3)]
    assert found == [b"A", b"B", b"C"]


def test_a_token_comes_from_a_file_or_a_function_at_each_login(tmp_path):
    (tmp_path / "a token").write_text(f"{SECRET}\n")
    by_file = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": (tmp_path / "a token").as_uri(),
    }
    assert token_of(security_of(by_file).credentials, "h:1") == SECRET
    (tmp_path / "a token").write_text("\n")
    with pytest.raises(AuthenticationError, match="a token is empty"):
        token_of(security_of(by_file).credentials, "h:1")
    (tmp_path / "a token").unlink()
    with pytest.raises(AuthenticationError, match="a token: No such file"):
        token_of(security_of(by_file).credentials, "h:1")

    def failing(_):
        raise ValueError(SECRET)

    for function, wanted in ((lambda _: SECRET, SECRET), (lambda _: (SECRET, 9.0), SECRET), (failing, None)):
        by_function = {**by_file, "oauth_cb": function}
        del by_function["sasl.oauthbearer.token.endpoint.url"]
        credentials = security_of(by_function).credentials
        if wanted:
            assert token_of(credentials, "h:1") == wanted
        else:
            with pytest.raises(AuthenticationError, match="raised ValueError") as refused:
                token_of(credentials, "h:1")
            assert SECRET not in str(refused.value)


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


@pytest.mark.parametrize(
    "contents", ["", "x", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_that_cannot_be_used_is_named(server, tmp_path, contents):
    (tmp_path / "bad.pem").write_text(contents)
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        for path in (tmp_path / "bad.pem", tmp_path / "none.pem"):
            security = security_of(server.mutual | {name: str(path)})
            with pytest.raises(UsageError, match=f"{path.name} cannot be used: .+") as refused:
                BlockingCluster(server.at["SSL"], security=security).any_connection()
            assert SECRET not in str(refused.value)


def test_no_secret_stands_in_the_text_of_an_object(server):
    texts = {name: SECRET for name in SECRETS if name.startswith("ssl.")}
    tls = {"security.protocol": "SSL", "ssl.keystore.certificate.chain": "c", **texts}
    login = {**SASL, "sasl.username": "a", "sasl.password": SECRET}
    token = {**OAUTH, TOKEN_URL: f"https://a:{SECRET}@a/b?code={SECRET}", "sasl.jaas.config": TOKEN_JAAS}
    for settings in (tls, login, token):
        security = security_of(settings)
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
    security = security_of(server.login | {"ssl.truststore.location": str(trust)})
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


def test_a_file_of_java_s_clients_may_say_what_the_client_does_in_any_case():
    given = {"security.protocol": "SSL"}
    harmless = {"ssl.protocol": "TLSv1.3", "ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}
    assert security_of(given | harmless) == security_of(given)
    for name in harmless:
        with pytest.raises(UsageError, match=f"{name} is not supported"):
            security_of(given | {name: "TLSv1.1"})


def test_no_setting_is_both_supported_and_not():
    assert ACCEPTED.keys() <= UNSUPPORTED.keys()
    assert not UNSUPPORTED.keys() & {*SETTINGS, *ALIASES}


def test_each_setting_is_described():
    documented = re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", DOC.read_text(), re.MULTILINE)
    assert dict(SETTINGS).items() <= dict(documented).items()
    assert set(SECRETS) <= set(SETTINGS)
    for name in SECRETS:
        assert "A secret." in SETTINGS[name]


def test_frames_set_aside_are_in_flight_again():
    frames = ClientFrames("me")
    frames.encode(3, 0, [], flexible=False)
    frames.note_sent(3)
    held = frames.set_aside()
    assert not frames.is_awaiting
    frames.resume(held)
    assert frames.awaited_count == 1


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


class FalseBroker:
    """A connection to a broker that answers a login by `answers`: functions of the client's message."""

    address = "h:1"
    security = None

    def __init__(self, *answers):
        self.versions = {36: (0, 2)}
        self.answers = iter(answers)
        self.received = []

    def call_steps(self, _handshake):
        return SimpleNamespace(error_code=ErrorCode.none, mechanisms=())
        yield

    def ask_steps(self, request):
        self.received.append(bytes(request.auth_bytes))
        found = next(self.answers)(self.received[-1].decode())
        if isinstance(found, bytes):
            found = SimpleNamespace(
                error_code=ErrorCode.none, auth_bytes=found, session_lifetime=dt.timedelta(0)
            )
        return found
        yield


def log_in_at(broker, **settings):
    """Log in, and return the message of the refusal."""
    steps = log_in(broker, security_of({**SASL, "sasl.username": "a", **settings}).credentials)
    with pytest.raises(AuthenticationError) as refused:
        effect = next(steps)
        while True:
            try:
                answer = effect.function()
            except SaslMessageError as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(answer)
    return str(refused.value)


def nonce_of(message):
    return message.rpartition("r=")[2]


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (lambda message: f"r={nonce_of(message)}x,s=AAAA,i=4095".encode(), "asks for 4095 iterations"),
        (
            lambda message: f"r={nonce_of(message)}x,s=AAAA,i=99999999".encode(),
            "asks for 99999999 iterations",
        ),
        (lambda _: b"r=other,s=AAAA,i=4096", "nonce does not continue the client's"),
        (lambda message: f"r={nonce_of(message)},s=AAAA,i=4096".encode(), "nonce does not continue"),
        (lambda _: b"", "not a server-first message"),
    ],
)
def test_a_false_broker_gets_no_proof_of_the_password(first, told):
    broker = FalseBroker(first)
    message = log_in_at(broker, **{"sasl.password": SECRET})
    assert told in message
    assert len(broker.received) == 1
    assert "Check user name" not in message  # another password would not help


@pytest.mark.parametrize("final", [b"v=AAAA", b"", b"r=x"])
def test_a_broker_that_does_not_know_the_credential_is_refused(final):
    broker = FalseBroker(lambda one: f"r={nonce_of(one)}x,s=AAAA,i=4096".encode(), lambda _: final)
    message = log_in_at(broker, **{"sasl.password": SECRET})
    assert "signature is wrong" in message or "not a server-final message" in message
    assert "Check user name" not in message


def test_a_brokers_reason_is_short_and_harmless_in_a_message():
    """The reason is shown on terminals, which obey control characters."""
    reason = f"\x1b]0;title\x07\r\n{SECRET}{'x' * 5000}"
    refused = SimpleNamespace(error_code=ErrorCode.sasl_authentication_failed, error_message=reason)
    message = log_in_at(
        FalseBroker(lambda _: refused), **{"sasl.mechanism": "PLAIN", "sasl.password": SECRET}
    )
    assert message.isprintable()
    assert len(message) < 600
    assert SECRET not in message
    assert "Check user name and password" in message


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
            security = security_of(server.mutual | changed)
            with (
                BlockingCluster(server.at["SSL"], deadline_s=1, security=security) as cluster,
                pytest.raises(UnavailableError, match=told),
            ):
                cluster.metadata()
