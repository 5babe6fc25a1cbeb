"""The login of a connection: no secret goes to a false broker, or into a message. A listener with another
security protocol is named."""

import datetime as dt
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.login import certificate_message, explain_closed_connection, log_in
from stablelog.client.core.security import PLAINTEXT, read_security_settings
from stablelog.client.core.steps import Open
from stablelog.client.responses import ClosedError
from stablelog.errors import AuthenticationError, UnavailableError
from stablelog.wire.sasl import SaslMessageError
from stablelog.wire.sasl.scram import ScramClient
from tests.client.core.test_security import SASL, SECRET
from tests.client.stepping import run_steps


class FalseBroker:
    """A connection to a broker that answers a login by `answers`: functions of the client's message."""

    address = "h:1"
    handshake = SimpleNamespace(error_code=ErrorCode.none, mechanisms=())

    def __init__(self, *answers, security=PLAINTEXT):
        self.versions = {36: (0, 2)}
        self.security = security
        self.answers = iter(answers)
        self.received = []

    def request_unchanged_steps(self, _handshake):
        return self.handshake
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


def logged_in(broker, **settings):
    """Log in, and return the lifetime of the session in ms."""
    credentials = read_security_settings({**SASL, "sasl.username": "a", **settings}).credentials
    return run_steps(log_in(broker, credentials), lambda effect: effect.function())


def with_lifetime(auth_bytes):
    return SimpleNamespace(
        error_code=ErrorCode.none, auth_bytes=auth_bytes, session_lifetime=dt.timedelta(seconds=5)
    )


def token_settings(tmp_path):
    (tmp_path / "token").write_text(SECRET)
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": (tmp_path / "token").as_uri(),
    }


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


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (ErrorCode.sasl_authentication_failed, "Check user name and password"),
        (ErrorCode.broker_not_available, "broker is stopping"),
    ],
)
def test_another_password_is_advised_only_if_the_broker_has_refused_this_one(reason, message):
    refused = SimpleNamespace(error_code=reason, error_message="the broker is stopping")
    found = log_in_at(FalseBroker(lambda _: refused), **{"sasl.mechanism": "PLAIN", "sasl.password": SECRET})
    assert message in found
    assert ("Check user name" in found) == (reason is ErrorCode.sasl_authentication_failed)


def test_a_session_of_plain_has_the_lifetime_that_the_broker_tells():
    broker = FalseBroker(lambda _: with_lifetime(b""))
    assert logged_in(broker, **{"sasl.mechanism": "PLAIN", "sasl.password": SECRET}) == 5000
    assert broker.received == [f"\0a\0{SECRET}".encode()]


def test_a_session_of_scram_has_the_lifetime_of_the_last_message(monkeypatch):
    """A client whose check of the broker's signature is always content."""
    checked = []
    monkeypatch.setattr(ScramClient, "check", lambda _, signature: checked.append(signature))
    broker = FalseBroker(
        lambda one: f"r={nonce_of(one)}x,s=AAAA,i=4096".encode(), lambda _: with_lifetime(b"v=AAAA")
    )
    assert logged_in(broker, **{"sasl.password": SECRET}) == 5000
    assert checked == [b"v=AAAA"]
    # At least 16 random bytes, in base64: nobody can guess a nonce, or meet one again.
    assert len(nonce_of(broker.received[0].decode())) >= 22


def test_a_session_of_a_token_has_the_lifetime_that_the_broker_tells(tmp_path):
    assert logged_in(FalseBroker(lambda _: with_lifetime(b"")), **token_settings(tmp_path)) == 5000


def test_a_refused_token_is_not_in_the_message_and_another_one_is_advised(tmp_path):
    """The broker refuses the token with a challenge, to which the client responds with an abort."""
    told = f'{{"status":"bad {SECRET}"}}'.encode()
    broker = FalseBroker(lambda _: told, lambda _: b"")
    message = log_in_at(broker, **token_settings(tmp_path))
    assert SECRET not in message
    assert "bad [hidden]" in message
    assert message.endswith(". Get a valid token")
    assert len(broker.received) == 2


def test_a_broker_without_sasl_authenticate_is_refused():
    broker = FalseBroker()
    broker.versions = {}
    message = log_in_at(broker, **{"sasl.mechanism": "PLAIN", "sasl.password": SECRET})
    assert "the broker does not support SaslAuthenticate" in message
    assert broker.received == []


@pytest.mark.parametrize("mechanisms", [("SCRAM-SHA-512", "PLAIN"), ()])
def test_a_mechanism_that_the_broker_lacks_is_refused_with_those_that_it_has(mechanisms):
    broker = FalseBroker()
    broker.handshake = SimpleNamespace(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=mechanisms)
    known = "PLAIN, SCRAM-SHA-512" if mechanisms else "its mechanisms"
    message = log_in_at(broker, **{"sasl.password": SECRET})
    assert f"set sasl.mechanism to one of {known}" in message
    assert "Check user name" not in message


@pytest.mark.parametrize(("protocol", "advised"), [("SASL_SSL", "SSL"), ("SASL_PLAINTEXT", "PLAINTEXT")])
def test_a_listener_without_a_login_is_told_with_the_protocol_to_set(protocol, advised):
    security = read_security_settings(
        {**SASL, "sasl.username": "a", "sasl.password": SECRET, "security.protocol": protocol}
    )
    broker = FalseBroker(security=security)
    broker.handshake = SimpleNamespace(error_code=ErrorCode.illegal_sasl_state)
    message = log_in_at(broker, **{"sasl.password": SECRET})
    assert (
        f"the listener of the broker has no login: set security.protocol={advised}, or use another port"
        in message
    )


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


def explained(security, probes=None, /, **found):
    """Run `explain` against listeners, by the protocol of the probe. Return the message of the refusal; None for none.

    `found` has what each listener answers: an error code, an error, or a list of these for one probe after the other.
    `probes` gets the protocol of each probe.
    """
    opened = []

    def perform(effect):
        if not isinstance(effect, Open):
            return None
        code = found.get(effect.probe.name)
        if probes is not None:
            probes.append(effect.probe.name)
        if isinstance(code, list):
            code = code.pop(0)
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


def test_the_protocol_that_the_client_does_not_have_is_tried_first_and_ends_the_search_if_it_answers():
    probes = []
    assert explained(PLAINTEXT, probes, SSL=ErrorCode.none, PLAINTEXT=LOGIN) is None
    assert probes == ["SSL"]


def test_a_broker_that_closes_one_connection_may_be_stopping_and_is_asked_again():
    probes = []
    found = explained(PLAINTEXT, probes, SSL=[CLOSING, CLOSING, OPEN])
    assert "the listener at h:1 has the security protocol SSL" in found
    assert probes == ["SSL"] * 3


def test_a_listener_without_tls_that_closes_connections_says_nothing_of_certificates():
    assert explained(read_security_settings({"security.protocol": "SSL"}), PLAINTEXT=CLOSING) is None


def test_only_who_would_lose_tls_is_warned():
    assert "Without TLS" not in explained(PLAINTEXT, SSL=OPEN)
    assert "Without TLS" not in explained(PLAINTEXT, PLAINTEXT=LOGIN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "requires a client certificate: set ssl.keystore.location"),
        ({"ssl.keystore.location": "a.pem"}, "does not accept the client's certificate"),
        (
            {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"},
            "does not accept the client's certificate",
        ),
    ],
)
def test_a_client_with_a_certificate_is_told_that_the_listener_does_not_accept_it(settings, message):
    security = read_security_settings({"security.protocol": "SSL", **settings})
    assert certificate_message("h:1", security).startswith(f"h:1 {message}")
