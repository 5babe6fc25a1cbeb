"""Failed logins get the error codes and messages of Apache Kafka. By night, where Apache Kafka can be had."""

import socket
import struct

import pytest

from peers import apache_kafka
from stablelog.wire.sasl import PLAIN, SCRAM_SHA_256
from stablelog.wire.sasl.plain import encode_plain
from tests.broker.desk import frame, read_answer
from tests.clients.logins import served

pytestmark = [pytest.mark.night, pytest.mark.java]
HANDSHAKE, VERSIONS, AUTHENTICATE = 17, 18, 36
JAAS = 'org.apache.kafka.common.security.{} required username="admin" password="x" user_carol="carol-secret";'


@pytest.fixture(scope="module")
def addresses(module_path):
    """The ports of stablelog and of Apache Kafka, each with a listener that has PLAIN and SCRAM-SHA-256."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_SHA_256}",
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS.format("plain.PlainLoginModule")[:-1]
        + ' user_admin="x";',
        "listener.name.plaintext.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    try:
        kafka = apache_kafka.KafkaBroker(module_path / "kafka", settings)
        kafka.start()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
    try:
        mechanisms = {"sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_SHA_256}"}
        with served(module_path, **mechanisms) as broker:
            yield broker.port, kafka.port
    finally:
        kafka.stop()


class Peer:
    """One connection, with requests as bytes."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)

    def send(self, api_key, version, **fields):
        request = frame(api_key, version, **fields)
        self.socket.sendall(struct.pack(">i", len(request)) + request)

    def receive(self, api_key, version):
        """The answer; None if the connection is closed instead."""
        try:
            size = self._exactly(4)
            return size and read_answer(api_key, version, self._exactly(int.from_bytes(size, "big")))[0]
        except ConnectionError:
            return None

    def _exactly(self, size):
        content = b""
        while len(content) < size:
            part = self.socket.recv(size - len(content))
            if not part:
                return None
            content += part
        return content

    def ask(self, api_key, version, **fields):
        self.send(api_key, version, **fields)
        answer = self.receive(api_key, version)
        if answer is None:
            return "closed"
        told = [answer.error_code.name, getattr(answer, "error_message", None)]
        return (*told, *(answer.mechanisms if api_key == HANDSHAKE and answer.error_code else ()))

    def close(self):
        self.socket.close()


CASES = {
    "a mechanism that is not there": [(HANDSHAKE, 1, {"mechanism": "GSSAPI"})],
    "a wrong password": [
        (HANDSHAKE, 1, {"mechanism": PLAIN}),
        (AUTHENTICATE, 1, {"auth_bytes": encode_plain("carol", "wrong")}),
    ],
    "another authorization id": [
        (HANDSHAKE, 1, {"mechanism": PLAIN}),
        (AUTHENTICATE, 1, {"auth_bytes": encode_plain("carol", "carol-secret", "admin")}),
    ],
    "no message of PLAIN": [(HANDSHAKE, 1, {"mechanism": PLAIN}), (AUTHENTICATE, 1, {"auth_bytes": b"x"})],
    "no message of SCRAM": [
        (HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256}),
        (AUTHENTICATE, 1, {"auth_bytes": b"x"}),
    ],
    "metadata before the login": [(3, 4, {"topics": (), "allow_auto_topic_creation": False})],
    "a right password": [
        (HANDSHAKE, 1, {"mechanism": PLAIN}),
        (AUTHENTICATE, 1, {"auth_bytes": encode_plain("carol", "carol-secret")}),
        (AUTHENTICATE, 1, {"auth_bytes": encode_plain("carol", "carol-secret")}),
    ],
    "version 0 with a wrong password": [(HANDSHAKE, 0, {"mechanism": PLAIN})],
}


@pytest.mark.parametrize("case", CASES)
def test_the_answers_are_those_of_kafka(addresses, case):
    answers = []
    for port in addresses:
        peer = Peer(port)
        try:
            answers.append([peer.ask(api_key, version, **fields) for api_key, version, fields in CASES[case]])
        finally:
            peer.close()
    if case == "no message of PLAIN":  # Kafka's message says how many parts the token has
        answers = [[one[0] for one in found] for found in answers]
    assert answers[0] == answers[1]
