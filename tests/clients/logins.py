"""A broker whose only listener needs a login, and clients that log in."""

import asyncio
import base64
import contextlib
import http.server
import json
import ssl
import subprocess
import threading
import time

import stablelog
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER
from tests.cli.test_cli import run
from tests.clients.drivers import unique
from tests.security.keys import document, private_key, public, token

PASSWORD = "alice,=secret ü"
WRONG = "wrong-secret"
TIMEOUT_S = 60
LISTENER = "listener.name.sasl_plaintext."


def keys_file(directory):
    """A file with the keys of an authorization server. Returns its URL."""
    path = directory / "keys.json"
    path.write_bytes(document(public(private_key(), kid="one")))
    return path.as_uri()


def bearer(user="alice", *, lifetime_s=3600, key=0):
    """A token for a user, which ends at this time. The broker knows the key 0 only."""
    now_s = int(time.time())
    return token(private_key(number=key), now_s=now_s, sub=user, exp=now_s + lifetime_s)


def token_settings(directory):
    """The settings of a broker that has every mechanism, and the keys of the authorization server."""
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": keys_file(directory),
    }


class TokenEndpoint:
    """The token endpoint of an authorization server, for clients with an id and a secret (RFC 6749, section 4.4).

    The id of a client is the user of its tokens. The tokens of FOREIGN are signed by a key that the broker does not know.

    Attributes:
        url: the address of the endpoint.
        lifetime_s: of the tokens.
        given: the users of the tokens that were given, in order.
        answer: the status and the content of each response, if it is not None.

    Args:
        certificate: the file with the key and the certificate of a server with TLS; None for one without.
    """

    FOREIGN = "mallory"
    SECRET = "endpoint-secret"

    def __init__(self, certificate=None):
        self.lifetime_s = 3600
        self.given = []
        self.answer = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = self.url.replace("http", "https", 1)

    def _handler(endpoint):  # noqa: N805 - `self` is the handler's
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
                user, _, secret = base64.b64decode(credentials).decode().partition(":")
                if endpoint.answer is not None:
                    self._send(*endpoint.answer)
                    return
                is_known = scheme == "Basic" and secret == endpoint.SECRET
                if not is_known or "grant_type=client_credentials" not in body:
                    self._answer(401, {"error": "invalid_client"})
                    return
                endpoint.given.append(user)
                text = bearer(user, lifetime_s=endpoint.lifetime_s, key=int(user == endpoint.FOREIGN))
                fields = {"token_type": "Bearer", "expires_in": endpoint.lifetime_s}
                self._answer(200, {"access_token": text, **fields})

            def _answer(self, status, fields):
                self._send(status, json.dumps(fields).encode())

            def _send(self, status, content):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        return Handler

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def sasl_settings(directory, **more):
    """The settings of a broker with each mechanism: `carol` is a user of the settings."""
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        f"{LISTENER}plain.sasl.jaas.config": 'PlainLoginModule required user_carol="carol-secret";',
        **token_settings(directory),
        "group.initial.rebalance.delay.ms": "0",
        **more,
    }


def add_user(data, user="alice", password=PASSWORD):
    """Add a user to the directory of a broker that does not run."""
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    done = run("users", "add", user, "--data", str(data), "--password-file", "-", *both, given=password)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def served(directory, **more):
    """A running broker with the user `alice`."""
    add_user(directory / "data")
    with stablelog.serve(directory / "data", settings=sasl_settings(directory, **more)) as broker:
        yield broker


def librdkafka(bootstrap, mechanism, password=PASSWORD, user="alice", **more):
    """The settings of confluent-kafka."""
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
        **more,
    }
    if mechanism == OAUTHBEARER:
        return settings | {"oauth_cb": lambda _config: (password, time.time() + 3600)}
    return settings | {"sasl.username": user, "sasl.password": password}


def oidc(bootstrap, endpoint, user="alice", secret=TokenEndpoint.SECRET, **more):
    """The settings of librdkafka for a token of this endpoint."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": user,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "log_level": 0,
        **more,
    }


def java(mechanism, password=PASSWORD, user="alice"):
    """The settings of the Java client."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";',
    }


def java_with_token(url, user="alice", secret=TokenEndpoint.SECRET):
    """The settings of the Java client for a token of a token endpoint, or of a file."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    client = f' clientId="{user}" clientSecret="{secret}"' if url.startswith("http") else ""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": f"{module} required{client};",
    }


def run_kcat(settings, *words, lines=None):
    """Run kcat until it ends. Returns a `subprocess.CompletedProcess` with text."""
    command = ["kcat", *words]
    command += [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)


# Each driver writes a record and reads it again, and returns the value. A failed login raises an error; kafka-python
# tries again until its patience ends. With `trust`, the file of an authority, it connects with TLS.


def confluent(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S, trust=None):
    settings = librdkafka(bootstrap, mechanism, password)
    if trust is not None:
        settings |= {"security.protocol": "SASL_SSL", "ssl.ca.location": str(trust)}
    return write_and_read(settings, topic, patience_s=patience_s)


def write_and_read(settings, topic, *, patience_s=TIMEOUT_S):
    """Write and read a record with these settings of confluent-kafka."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

    errors = []
    settings = settings | {"error_cb": errors.append}
    producer = Producer(settings)
    producer.produce(topic, b"value", partition=0)
    deadline = time.monotonic() + patience_s
    while len(producer) and not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.05)
    if len(producer):
        producer.purge()
        producer.flush(1)
        raise KafkaException(errors[0])
    consumer = Consumer(settings | {"group.id": unique("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    return message.value()


def kafka_python(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S, trust=None):
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return password

    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "bootstrap_timeout_ms": patience_s * 1000,
    }
    if trust is not None:
        settings |= {"security_protocol": "SASL_SSL", "ssl_cafile": str(trust)}
    if mechanism == OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings |= {"sasl_plain_username": "alice", "sasl_plain_password": password}
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, b"value", partition=0).get(TIMEOUT_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    try:
        return next(consumer).value
    finally:
        consumer.close()


def aiokafka(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S, trust=None):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self):
            return password

    async def work():
        settings = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if trust is not None:
            context = ssl.create_default_context(cafile=trust)
            settings |= {"security_protocol": "SASL_SSL", "ssl_context": context}
        if mechanism == OAUTHBEARER:
            settings["sasl_oauth_token_provider"] = Provider()
        else:
            settings |= {"sasl_plain_username": "alice", "sasl_plain_password": password}
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"value", partition=0)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            return (await consumer.getone()).value
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(work(), patience_s))


DRIVERS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
