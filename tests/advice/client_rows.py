"""The rows of the native client."""

import stablelog
from stablelog.client.core.security import read_security_settings
from stablelog.client.core.tokens import get_token
from tests.advice.steps import command, doing, row, steps
from tests.client.transactions import create, write_undecodable
from tests.secured import jaas

SECURED = "secured brokers"
USER = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas()}
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID, CLIENT_SECRET = (f"sasl.oauthbearer.client.credentials.client.{name}" for name in ("id", "secret"))
SERVER = {**OAUTH, TOKEN_URL: "https://tokens.example.com/token", CLIENT_ID: "a", CLIENT_SECRET: "b"}


def without(given, *names):
    return {name: value for name, value in given.items() if name not in names}


def log_in(at, settings, fixture="secured", deadline=30.0):
    """Write a transaction as a client of a listener. The settings are a function of the secured broker."""

    def work(user):
        server = user.fixture(fixture)
        with (
            stablelog.connect(server.at[at], settings=settings(server), deadline=deadline) as client,
            client.transaction(timeout=60) as txn,
        ):
            written = txn.write("orders", value=b"v")
        return written.result(30)

    return doing(work)


def tls(at="SSL", changed=None, *left_out, fixture="secured", deadline=30.0, **functions):
    """As `log_in`, with the settings of a client that the listener accepts, but for what is changed or left out."""

    def settings(server):
        more = {name.replace("_", "."): function(server) for name, function in functions.items()}
        return without(server.settings(at), *left_out) | (changed or {}) | more

    return log_in(at, settings, fixture, deadline)


def plain(changed, at="SASL_PLAINTEXT"):
    """As `log_in`, with settings that need no file."""
    return log_in(at, lambda _: {"security.protocol": at, **changed})


def token(settings, *, file="token"):
    """The token that a client with these settings would show; a token endpoint is not asked."""

    def work(user):
        (user.path / file).write_text("the-token\n")
        credentials = read_security_settings(user.fill(settings)).credentials
        if credentials.endpoint is None:
            assert get_token(credentials, "h:1") == "the-token"
        return "accepted"

    return doing(work)


def key_files(server):
    """The client's key and certificate in two files, as librdkafka has them."""
    folder = server.certificates.client.parent
    (folder / "client.key").write_text(server.certificates.key)
    return folder / "client.key"


def one_file(server):
    """The same in one file."""
    path = server.certificates.client.parent / "one.pem"
    path.write_text(key_files(server).read_text() + server.certificates.chain)
    return str(path)


def encrypted_file(server):
    path = server.certificates.client.parent / "encrypted.pem"
    path.write_text(server.certificates.encrypted_key("secret") + server.certificates.chain)
    return str(path)


LOGIN = [
    row(
        "requires a client certificate: set ssl.keystore.location",
        tls("SSL", None, "ssl.keystore.location"),
        tls(),
        group=SECURED,
    ),
    row(
        "does not accept the client's certificate (ssl.keystore.location)",
        tls(ssl_keystore_location=lambda server: str(server.certificates.foreign)),
        tls(ssl_keystore_location=lambda server: str(server.certificates.client)),
        group=SECURED,
    ),
    row(
        "the broker does not accept {mechanism}: set sasl.mechanism to one of",
        tls(
            "SASL_SSL",
            OAUTH | {"security.protocol": "SASL_SSL", "oauth_cb": lambda _: "t"},
            "sasl.jaas.config",
        ),
        tls("SASL_SSL", {"sasl.mechanism": "SCRAM-SHA-256"}),
        tls("SASL_SSL", {"sasl.mechanism": "SCRAM-SHA-512"}),
        group=SECURED,
    ),
    row(
        "the listener of the broker has no login: set security.protocol=",
        log_in("PLAINTEXT", lambda _: {"security.protocol": "SASL_PLAINTEXT", **USER}),
        log_in("PLAINTEXT", lambda _: {"security.protocol": "PLAINTEXT"}),
        plain(USER),
        group=SECURED,
    ),
    row(
        "Check user name and password",
        plain({**USER, "sasl.jaas.config": jaas(password="wrong")}),
        plain(USER),
        plain(
            {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": 'Alice, "s secret" 5=ü',
            }
        ),
        group=SECURED,
    ),
    row(
        "and the client is set to {security.protocol}: set security.protocol=",
        log_in("SASL_PLAINTEXT", lambda _: {}),
        plain(USER),
        log_in("PLAINTEXT", lambda _: {}),
        group=SECURED,
    ),
    row(
        "has TLS and closes each connection without a client certificate",
        log_in("SSL", lambda _: {}),
        tls(),
        log_in("PLAINTEXT", lambda _: {}),
        group=SECURED,
    ),
    # -- TLS -------------------------------------------------------------------------------------------------------
    row(
        "{tls.trust_path or 'ssl.truststore.certificates'} cannot be used",
        tls("SASL_SSL", {"ssl.truststore.certificates": "no certificate"}, "ssl.truststore.location"),
        tls(
            "SASL_SSL",
            None,
            "ssl.truststore.location",
            ssl_truststore_certificates=lambda server: server.certificates.trust.read_text(),
        ),
        group=SECURED,
    ),
    row(
        "ssl.keystore.key with ssl.keystore.certificate.chain",
        tls(
            "SSL",
            {"ssl.keystore.key": "no key"},
            "ssl.keystore.location",
            ssl_keystore_certificate_chain=lambda server: server.certificates.chain,
        ),
        tls(
            "SSL",
            None,
            "ssl.keystore.location",
            ssl_keystore_key=lambda server: server.certificates.key,
            ssl_keystore_certificate_chain=lambda server: server.certificates.chain,
        ),
        group=SECURED,
    ),
    row(
        "may not accept the client's certificate (ssl.keystore.location)",
        tls(
            ssl_keystore_location=lambda server: str(server.certificates.foreign),
            fixture="secured_by_tls_12",
            deadline=1.0,
        ),
        tls(fixture="secured_by_tls_12"),
        group=SECURED,
    ),
    row(
        "may require a client certificate (ssl.keystore.location)",
        tls("SSL", None, "ssl.keystore.location", fixture="secured_by_tls_12", deadline=1.0),
        tls(fixture="secured_by_tls_12"),
        group=SECURED,
    ),
    row(
        "set ssl.truststore.location to a PEM file with the certificate",
        tls("SASL_SSL", ssl_truststore_location=lambda server: str(server.certificates.stranger)),
        tls("SASL_SSL", ssl_truststore_location=lambda server: str(server.certificates.trust)),
        group=SECURED,
    ),
    # -- settings --------------------------------------------------------------------------------------------------
    row(
        "the client loads no class of Java: leave it out",
        token({**OAUTH, "sasl.login.class": "a.B", TOKEN_URL: "file://$path/token"}),
        token({**OAUTH, TOKEN_URL: "file://$path/token"}),
        group=SECURED,
    ),
    row(
        "Kerberos (GSSAPI) is not supported: leave it out",
        plain({"sasl.kerberos.service.name": "kafka"}),
        plain(USER),
        group=SECURED,
    ),
    row(
        "give one PEM file with the key and the certificates",
        tls("SSL", None, "ssl.keystore.location", ssl_key_location=lambda server: str(key_files(server))),
        tls(ssl_keystore_location=one_file),
        group=SECURED,
    ),
    row(
        "The password of an encrypted key is ssl.key.password",
        tls("SSL", {"ssl.keystore.password": "secret"}, ssl_keystore_location=encrypted_file),
        tls("SSL", {"ssl.key.password": "secret"}, ssl_keystore_location=encrypted_file),
        group=SECURED,
    ),
    row(
        "{self._named('security.protocol')} is none of",
        plain({"security.protocol": "TLS", **USER}),
        plain({"security.protocol": "SASL_PLAINTEXT", **USER}),
        group=SECURED,
    ),
    row(
        "has no effect with security.protocol={protocol}",
        log_in("SASL_PLAINTEXT", lambda _: USER),
        plain(USER),
        log_in("PLAINTEXT", lambda _: {}),
        group=SECURED,
    ),
    row(
        "={kind} is not supported: convert the store to a PEM file",
        tls("SSL", {"ssl.keystore.type": "PKCS12"}),
        tls(),
        tls("SSL", {"ssl.keystore.type": "PEM"}),
        group=SECURED,
    ),
    row(
        "is neither https nor empty",
        tls("SSL", {"ssl.endpoint.identification.algorithm": "http"}),
        tls("SSL", {"ssl.endpoint.identification.algorithm": "https"}),
        tls("SSL", {"ssl.endpoint.identification.algorithm": ""}),
        group=SECURED,
    ),
    row(
        "belong together: give both",
        tls("SSL", None, "ssl.keystore.location", ssl_keystore_key=lambda server: server.certificates.key),
        tls(
            "SSL",
            None,
            "ssl.keystore.location",
            ssl_keystore_key=lambda server: server.certificates.key,
            ssl_keystore_certificate_chain=lambda server: server.certificates.chain,
        ),
        group=SECURED,
    ),
    row(
        "{self._named(one)} and {self._named(other)} exclude each other",
        plain({**USER, "sasl.username": "alice"}),
        plain(USER),
        plain(
            {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": 'Alice, "s secret" 5=ü',
            }
        ),
        group=SECURED,
    ),
    row(
        "'missing: give one of'} {', '.join(MECHANISMS)}",
        plain({"sasl.jaas.config": jaas()}),
        plain({"sasl.jaas.config": jaas(), "sasl.mechanism": "SCRAM-SHA-256"}),
        plain({"sasl.jaas.config": jaas(), "sasl.mechanism": "SCRAM-SHA-512"}),
        group=SECURED,
    ),
    row(
        "a token is given, but {self._named('sasl.mechanism')} is",
        plain({**USER, "oauth_cb": lambda _: "the-token"}),
        plain(USER),
        token({**OAUTH, "oauth_cb": lambda _: "the-token"}),
        group=SECURED,
    ),
    row(
        "is missing: give {self._named(JAAS)} with username",
        plain({"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice"}),
        plain(USER),
        plain(
            {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": 'Alice, "s secret" 5=ü',
            }
        ),
        group=SECURED,
    ),
    row(
        "is not OAuthBearerLoginCallbackHandler: give the function",
        token({**OAUTH, "sasl.login.callback.handler.class": "a.Other"}),
        token({**OAUTH, "oauth_cb": lambda _: "the-token"}),
        seen="accepted",
    ),
    row(
        "is not oidc: tokens without a signature",
        token({**OAUTH, "sasl.oauthbearer.method": "default", "oauth_cb": lambda _: "the-token"}),
        token({**OAUTH, "sasl.oauthbearer.method": "oidc", "oauth_cb": lambda _: "the-token"}),
        seen="accepted",
    ),
    row(
        "the token of {mechanism} is missing: give",
        token(OAUTH),
        token(SERVER),
        token({**OAUTH, TOKEN_URL: "file://$path/token"}),
        token({**OAUTH, "oauth_cb": lambda _: "the-token"}),
        seen="accepted",
    ),
    row(
        "is not valid: write https://..., or file:///path",
        token({**SERVER, TOKEN_URL: "tokens.example.com"}),
        token(SERVER),
        token({**SERVER, TOKEN_URL: "http://localhost:8080/token"}),
        token({**OAUTH, TOKEN_URL: "file://$path/a%20token"}, file="a token"),
        seen="accepted",
    ),
    row(
        "has no effect without a token endpoint",
        token({**OAUTH, TOKEN_URL: "file://$path/token", CLIENT_SECRET: "b"}),
        token(SERVER),
        token({**OAUTH, TOKEN_URL: "file://$path/token"}),
        seen="accepted",
    ),
    row(
        "{self._named(name)} is missing: a token endpoint",
        token(without(SERVER, CLIENT_ID)),
        token(SERVER),
        seen="accepted",
    ),
    row(
        "cannot contain a colon",
        token({**SERVER, CLIENT_ID: "a:b"}),
        token({**SERVER, CLIENT_ID: "a.b"}),
        seen="accepted",
    ),
    row(
        "{self._named(JAAS)} is not valid: {error}",
        plain({**USER, "sasl.jaas.config": "username=alice"}),
        plain(USER),
        group=SECURED,
    ),
]


def transaction(topic, *, group="", timeout=60.0, value=b"v", deadline=30.0):
    """A transaction that writes one record."""

    def work(user):
        with (
            stablelog.connect(user.bootstrap, deadline=deadline) as client,
            client.transaction(group, timeout=timeout) as txn,
        ):
            written = txn.write(user.fill(topic), value=value)
        return written.result(30)

    return doing(work)


def alter(**settings):
    """Change settings of the user's topic."""

    def step(user):
        words = [f"--config {name.replace('_', '.')}={value}" for name, value in settings.items()]
        return command(f"topics alter $topic {' '.join(words)}")(user)

    return step


def _with_a_closed_client(user):
    client = stablelog.connect(user.bootstrap)
    client.close()
    with client.transaction() as txn:
        txn.write(user["topic"], value=b"v")


def read(order):
    def work(user):
        with stablelog.connect(user.bootstrap) as client:
            return [one.records[0].value for one in client.read(user["ordered"], order=order, wait=0.1)]

    return doing(work)


def read_all(*topics):
    """Read transactions of several topics to their end."""

    def work(user):
        with stablelog.connect(user.bootstrap) as client:
            return list(client.read([user.fill(topic) for topic in topics], wait=0))

    return doing(work)


def read_on(*, by_position=False, cut=False):
    """Read a topic of several partitions separately, from a commit sequence or from a position."""

    def work(user):
        with stablelog.connect(user.bootstrap) as client:
            topic = create(user.bootstrap)
            for value in ("one", "two"):
                with client.transaction() as txn:
                    txn.write(topic, value=value, partition=0)
            reader = client.read(topic, cut=cut, wait=0)
            after = next(reader).commit_sequence
            after = reader.position if by_position else after
            return [one.records[0].value for one in client.read(topic, cut=cut, after=after, wait=0)]

    return doing(work)


def paused(*, cut):
    """Pause a partition of a reader."""

    def work(user):
        with stablelog.connect(user.bootstrap) as client:
            reader = client.read(user["ordered"], cut=cut, wait=0)
            reader.pause(user["ordered"], 0)
            return len(list(reader))

    return doing(work)


def _in_doubt(user):
    """A commit whose response is lost."""
    broker = user.fixture("stablelog_faults")
    topic = create(broker.bootstrap)
    client = user.cleanup.enter_context(stablelog.connect(broker.bootstrap, deadline=1.0))
    user.transaction = client.transaction(timeout=60)
    user.transaction.write(topic, value=b"v")
    broker.faults.drop("CommitJoint", count=1_000_000, is_delivered=True)
    user.transaction.commit()


def _read_undecodable(user):
    """A topic with a record that no client can decode."""
    user.undecodable = create(user.bootstrap, partitions=1)
    write_undecodable(user.bootstrap, user.undecodable)
    _read_past(user, skip_unreadable=False)


def _read_past(user, *, skip_unreadable=True):
    with stablelog.connect(user.bootstrap) as client:
        (one,) = client.read(user.undecodable, wait=0.1, skip_unreadable=skip_unreadable)
    assert one.unreadable_count == 1


def _commit_again(user):
    user.fixture("stablelog_faults").faults.clear()
    assert user.transaction.commit().commit_sequence > 0


TRANSACTIONS = [
    row(
        "Call commit() of this transaction again to learn the outcome",
        doing(_in_doubt),
        doing(_commit_again),
    ),
    row(
        "To leave such records out, set skip_unreadable=True",
        doing(_read_undecodable),
        doing(_read_past),
    ),
    row(
        "is closed: make another one with stablelog.connect",
        doing(_with_a_closed_client),
        transaction("$topic"),
    ),
    row(
        "whole transactions can only be read with order='commit'",
        read("offset"),
        read("commit"),
        seen="two",
    ),
    row(
        "this reader reads all partitions together",
        paused(cut=True),
        paused(cut=False),
    ),
    row(
        "(the number of a commit) is no position in the",
        read_on(),
        read_on(by_position=True),
        read_on(cut=True),
        seen="[b'two']",
    ),
    row(
        "`stablelog topics create {name}` creates it",
        transaction("$new", deadline=1.0),
        steps(command("topics create $new"), transaction("$new")),
        steps(
            command("topics create $later --config stablelog.order=commit"),
            transaction("$later"),
            read_all("$later"),
        ),
    ),
    row(
        "Make the batches smaller or the setting larger",
        steps(alter(max_message_bytes=1000), transaction("$topic", value=bytes(2000))),
        transaction("$topic", value=bytes(200)),
        steps(alter(max_message_bytes=4000), transaction("$topic", value=bytes(2000))),
    ),
    row(
        "is greater than transaction.max.timeout.ms",
        transaction("$topic", timeout=100_000.0),
        transaction("$topic", timeout=900.0),
    ),
    row(
        "the transaction was begun with group=",
        transaction("$of_payments", group="orders"),
        transaction("$of_payments", group="payments"),
    ),
    row(
        "Use client.transaction(group=",
        transaction("$of_payments"),
        transaction("$of_payments", group="payments"),
    ),
    row(
        "--config stablelog.order=commit` creates it for this reader",
        read_all("$new", "$ordered"),
        steps(
            command("topics create $new --config stablelog.order=commit"),
            read_all("$new", "$ordered"),
        ),
    ),
]
CLIENT = LOGIN + TRANSACTIONS
