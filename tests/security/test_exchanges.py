"""The exchanges of the SASL mechanisms: what ends them, what they ask, and what fails them."""

import pytest

from stablelog.security.credentials import CredentialTable, derive
from stablelog.security.exchanges import (
    OTHER_AUTHORIZATION_ID,
    ExchangeEnd,
    ExchangeError,
    Identity,
    OauthBearerExchange,
    PasswordQuestion,
    PlainExchange,
    ScramExchange,
    TokenQuestion,
)
from stablelog.wire.sasl.oauthbearer import encode_token
from stablelog.wire.sasl.plain import encode_plain
from stablelog.wire.sasl.scram import Mechanism, ScramClient

CREDENTIALS = CredentialTable(
    b"s" * 32, {"alice": {one: derive(one, "secret", b"some salt", 4096) for one in Mechanism}}
)


def test_plain_asks_for_the_password_and_ends_with_the_identity():
    exchange = PlainExchange()
    assert exchange.respond(encode_plain("alice", "secret"), "n") == PasswordQuestion("alice", "secret")
    assert exchange.process_answer(Identity("alice")) == ExchangeEnd(b"", Identity("alice"))


def test_plain_fails_with_a_wrong_password_or_for_another_user():
    exchange = PlainExchange()
    exchange.respond(encode_plain("alice", "guess"), "n")
    with pytest.raises(ExchangeError) as failed:
        exchange.process_answer(None)
    assert (failed.value.message, failed.value.user) == (
        "Authentication failed: Invalid username or password",
        "alice",
    )
    exchange.respond(b"bob\0alice\0secret", "n")
    with pytest.raises(ExchangeError) as failed:
        exchange.process_answer(Identity("alice"))
    assert failed.value.message == OTHER_AUTHORIZATION_ID


def test_a_question_hides_its_secret():
    assert "secret" not in repr(PasswordQuestion("alice", "secret"))
    assert "secret" not in repr(TokenQuestion("secret"))


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(
    ("user", "password", "is_right"),
    [("alice", "secret", True), ("alice", "guess", False), ("bob", "secret", False)],
)
def test_scram_ends_only_with_the_password_of_a_known_user(mechanism, user, password, is_right):
    exchange = ScramExchange(mechanism, CREDENTIALS.find)
    client = ScramClient(mechanism, user, password, "client")
    final = client.final(exchange.respond(client.first(), "server"))
    if not is_right:
        with pytest.raises(ExchangeError, match="wrong user name or password"):
            exchange.respond(final, "server")
        return
    end = exchange.respond(final, "server")
    client.check(end.token)
    assert end.identity == Identity("alice")


def test_scram_refuses_the_last_message_of_another_exchange():
    first, second = (ScramExchange(Mechanism.SHA_256, CREDENTIALS.find) for _ in range(2))
    client = ScramClient(Mechanism.SHA_256, "alice", "secret", "client")
    first.respond(client.first(), "one")
    final = client.final(second.respond(client.first(), "two"))
    with pytest.raises(ExchangeError, match="not that of the exchange"):
        first.respond(final, "one")


def test_oauthbearer_answers_an_invalid_token_with_an_error_and_fails_after_it():
    exchange = OauthBearerExchange()
    assert exchange.respond(encode_token("token"), "n") == TokenQuestion("token")
    error = exchange.process_answer(None)
    assert error == b'{"status":"invalid_token"}'
    with pytest.raises(ExchangeError) as failed:
        exchange.respond(encode_token("other"), "n")
    assert failed.value.message == error.decode()


def test_oauthbearer_ends_with_the_identity_of_the_token():
    exchange = OauthBearerExchange()
    exchange.respond(encode_token("token"), "n")
    assert exchange.process_answer(Identity("alice", 5)) == ExchangeEnd(b"", Identity("alice", 5))


def test_scram_fails_for_an_unknown_user_even_if_the_client_proves_the_invented_credential():
    known = CREDENTIALS.find(Mechanism.SHA_256, "alice")
    exchange = ScramExchange(Mechanism.SHA_256, lambda _kind, _user: known._replace(is_known=False))
    client = ScramClient(Mechanism.SHA_256, "alice", "secret", "client")
    final = client.final(exchange.respond(client.first(), "server"))
    with pytest.raises(ExchangeError, match="wrong user name or password"):
        exchange.respond(final, "server")
