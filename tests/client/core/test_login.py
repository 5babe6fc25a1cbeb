"""The login of a connection: no secret goes to a false broker, or into a message."""

import datetime as dt
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.login import log_in
from stablelog.client.core.security import (
    security_of,
)
from stablelog.errors import AuthenticationError
from stablelog.wire.sasl import SaslMessageError
from tests.client.core.test_security import SASL, SECRET


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
