"""The login of a connection: no secret goes to a false broker, or into a message. A listener with another
security protocol is named."""

import datetime as dt
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.login import explain_closed_connection, log_in
from stablelog.client.core.security import PLAINTEXT, read_security_settings
from stablelog.client.core.steps import Open
from stablelog.client.responses import ClosedError
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.wire.sasl import SaslMessageError
from tests.client.core.test_security import SASL, SECRET
from tests.client.stepping import run_steps


class FalseBroker:
    """A connection to a broker that answers a login by `answers`: functions of the client's message."""

    address = "h:1"
    security = None

    def __init__(self, *answers):
        self.versions = {36: (0, 2)}
        self.answers = iter(answers)
        self.received = []

    def request_unchanged_steps(self, _handshake):
        return SimpleNamespace(error_code=ErrorCode.none, mechanisms=())
        yield

    def request_steps(self, request):
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
    steps = log_in(broker, read_security_settings({**SASL, "sasl.username": "a", **settings}).credentials)
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


class Probed:
    """A connection to a listener, for a probe: it answers a handshake with an error code, or closes the connection."""

    def __init__(self, code):
        self._code, self.is_closed = code, False

    def negotiate(self):
        if isinstance(self._code, Exception):
            raise self._code
        return
        yield

    def request_unchanged_steps(self, _handshake):
        return SimpleNamespace(error_code=self._code)
        yield

    def close(self):
        self.is_closed = True


def explained(security, **found):
    """Run `explain` against listeners, by the protocol of the probe. Return the message of the refusal; None for none."""
    opened = []

    def perform(effect):
        if not isinstance(effect, Open):
            return None
        code = found.get(effect.probe.name)
        if code is None:
            raise UnavailableError("silent")
        opened.append(Probed(code))
        return opened[-1]

    try:
        run_steps(explain_closed_connection("h:1", security), perform)
    except AuthenticationError as refused:
        return str(refused)
    else:
        return None
    finally:
        assert all(one.is_closed for one in opened)


OPEN, LOGIN = ErrorCode.illegal_sasl_state, ErrorCode.unsupported_sasl_mechanism
CLOSING = ClosedError("h:1", "closed")


@pytest.mark.parametrize(
    ("found", "protocol"),
    [
        ({"PLAINTEXT": LOGIN}, "SASL_PLAINTEXT"),
        ({"SSL": OPEN}, "SSL"),
        ({"SSL": LOGIN}, "SASL_SSL"),
    ],
)
def test_a_listener_with_another_security_protocol_is_told_with_the_one_to_set(found, protocol):
    message = explained(PLAINTEXT, **found)
    assert message == (
        f"the listener at h:1 has the security protocol {protocol}, and the client is set to PLAINTEXT: set "
        f"security.protocol={protocol}, or use another port"
    )


def test_who_would_lose_tls_is_warned():
    message = explained(read_security_settings({"security.protocol": "SSL"}), PLAINTEXT=OPEN)
    assert "set security.protocol=PLAINTEXT" in message
    assert "Without TLS, who reads the network reads all records" in message


@pytest.mark.parametrize(
    "found", [{}, {"PLAINTEXT": OPEN}, {"PLAINTEXT": ErrorCode.none}, {"PLAINTEXT": CLOSING}]
)
def test_a_listener_that_is_silent_or_has_the_clients_protocol_is_not_explained(found):
    assert explained(PLAINTEXT, **found) is None


def test_a_listener_that_closes_after_the_handshake_wants_another_certificate():
    assert "has TLS and closes each connection without a client certificate" in explained(
        PLAINTEXT, SSL=CLOSING
    )
    assert "requires a client certificate" in explained(
        read_security_settings({"security.protocol": "SSL"}), SSL=CLOSING
    )
