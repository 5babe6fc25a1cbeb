"""The login of a connection: only a finished exchange logs in, in whatever order messages come."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.security.credentials import CredentialTable, derive, is_password
from stablelog.security.exchanges import Identity, PasswordQuestion, TokenQuestion
from stablelog.security.login import (
    REAUTHENTICATION_INTERVAL_MS,
    Login,
    LoginAnswer,
    LoginError,
    LoginRules,
    LoginState,
)
from stablelog.security.principal import Principal
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from stablelog.wire.sasl.oauthbearer import encode_token
from stablelog.wire.sasl.plain import encode_plain
from stablelog.wire.sasl.scram import BY_SASL_NAME, Mechanism, ScramClient

ITERATIONS = 4096
PASSWORD = {"alice": "alice-secret", "bob": "bob-secret"}
CREDENTIALS = CredentialTable(
    b"s" * 32,
    {
        user: {
            mechanism: derive(mechanism, password, f"salt of {user:5}".encode(), ITERATIONS)
            for mechanism in Mechanism
        }
        for user, password in PASSWORD.items()
    },
)
SCRAM = (SCRAM_SHA_256, SCRAM_SHA_512)


def new_login(mechanisms=MECHANISMS, **session_ms_max):
    rules = LoginRules(mechanisms, {name.replace("_", "-"): limit for name, limit in session_ms_max.items()})
    return Login(rules, lambda: CREDENTIALS)


def answer_to(question):
    """What the broker would find out."""
    if isinstance(question, PasswordQuestion):
        return Identity(question.user) if PASSWORD.get(question.user) == question.password else None
    user, _, expires = question.token.partition(".")
    return Identity(user, int(expires) if expires else None) if user in PASSWORD else None


def say(login, token, now_ms=0, nonce="servernonce"):
    result = login.authenticate(token, nonce, now_ms)
    if isinstance(result, LoginAnswer):
        return result
    return login.process_answer(answer_to(result), now_ms)


def scram_client(mechanism, user="alice", password=None, nonce="clientnonce"):
    return ScramClient(BY_SASL_NAME[mechanism], user, password or PASSWORD.get(user, "x"), nonce)


def log_in(login, mechanism, user="alice", now_ms=0, token=None, version=1):
    login.handshake(mechanism, version, now_ms)
    if mechanism in SCRAM:
        client = scram_client(mechanism, user)
        last = say(login, client.final(say(login, client.first(), now_ms).token), now_ms)
        client.check(last.token)
        return last
    if mechanism == PLAIN:
        return say(login, encode_plain(user, PASSWORD[user]), now_ms)
    return say(login, encode_token(token or user), now_ms)


def fails(call, *arguments):
    with pytest.raises(LoginError) as failed:
        call(*arguments)
    return failed.value


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_finished_exchange_logs_in(mechanism):
    login = new_login()
    assert login.accept_versions_request()
    assert not login.accept_versions_request()
    assert log_in(login, mechanism).lifetime_ms == 0
    assert login.is_open
    assert login.principal == Principal("User", "alice")
    assert login.accept_versions_request()
    assert not login.is_expired(2**62)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_handshake_of_version_0_is_followed_by_bare_messages(mechanism):
    login = new_login()
    login.handshake(mechanism, 0, 0)
    assert login.takes_bare_messages
    login = new_login()
    log_in(login, mechanism, version=0)
    assert not login.takes_bare_messages


def test_the_failures_of_kafka():
    for mechanism in SCRAM:
        login = new_login()
        login.handshake(mechanism, 1, 0)
        client = scram_client(mechanism, password="wrong")
        failed = fails(say, login, client.final(say(login, client.first()).token))
        assert failed.code == ErrorCode.sasl_authentication_failed
        assert str(failed) == (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        assert failed.user == "alice"
    login = new_login()
    login.handshake(PLAIN, 1, 0)
    failed = fails(say, login, encode_plain("alice", "wrong"))
    assert str(failed) == "Authentication failed: Invalid username or password"
    login = new_login()
    login.handshake(OAUTHBEARER, 1, 0)
    assert say(login, encode_token("nobody")).token == b'{"status":"invalid_token"}'
    assert not login.is_open
    assert str(fails(say, login, b"\x01")) == '{"status":"invalid_token"}'
    failed = fails(new_login((PLAIN,)).handshake, SCRAM_SHA_256, 1, 0)
    assert failed.code == ErrorCode.unsupported_sasl_mechanism


def test_a_refused_token_cannot_be_followed_by_another():
    login = new_login()
    login.handshake(OAUTHBEARER, 1, 0)
    say(login, encode_token("nobody"))
    fails(say, login, encode_token("alice"))
    assert login.state is LoginState.FAILED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nobody_acts_for_another_user(mechanism):
    login = new_login()
    login.handshake(mechanism, 1, 0)
    token = {
        PLAIN: encode_plain("alice", PASSWORD["alice"], "bob"),
        OAUTHBEARER: encode_token("alice", authorization_id="bob"),
    }.get(mechanism, b"n,a=bob,n=alice,r=abc")
    assert "authorization id" in str(fails(say, login, token))


def test_extensions_for_delegation_tokens_are_refused():
    login = new_login()
    login.handshake(SCRAM_SHA_256, 1, 0)
    assert "delegation" in fails(say, login, b"n,,n=alice,r=abc,tokenauth=true").why


def rounds(mechanism, user, password):
    """All messages of a failed login, as the client sees them."""
    login, seen = new_login(), []
    login.handshake(mechanism, 1, 0)
    try:
        if mechanism in SCRAM:
            client = scram_client(mechanism, user, password)
            seen.append(say(login, client.first()).token)
            seen.append(say(login, client.final(seen[-1])).token)
        else:
            say(login, encode_plain(user, password))
    except LoginError as failed:
        return [*seen, (failed.code, str(failed))]
    raise AssertionError("the login did not fail")


@pytest.mark.parametrize("mechanism", [*SCRAM, PLAIN])
def test_an_unknown_user_gets_the_messages_of_a_known_one(mechanism):
    known, unknown = rounds(mechanism, "alice", "wrong"), rounds(mechanism, "carol", "wrong")
    assert unknown[-1] == known[-1]
    assert len(unknown) == len(known)
    if mechanism in SCRAM:

        def shape(server_first):
            nonce, salt, iterations = server_first.split(b",")
            return nonce, len(base64.b64decode(salt[2:])), iterations

        assert shape(unknown[0]) == shape(known[0])
        assert rounds(mechanism, "carol", "other") == unknown  # the salt of an unknown user does not change


# -- re-authentication ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit_ms", "expires_ms", "lifetime_ms"),
    [(0, None, 0), (5000, None, 5000), (0, 7000, 6000), (5000, 7000, 5000), (5000, 4000, 3000), (0, 500, 0)],
)
def test_the_lifetime_of_a_session(limit_ms, expires_ms, lifetime_ms):
    login = new_login(OAUTHBEARER=limit_ms)
    token = "alice" if expires_ms is None else f"alice.{expires_ms}"
    assert log_in(login, OAUTHBEARER, now_ms=1000, token=token).lifetime_ms == lifetime_ms
    if lifetime_ms:
        assert not login.is_expired(999 + lifetime_ms)
    assert login.is_expired(1000 + lifetime_ms) == bool(limit_ms or expires_ms)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_is_renewed(mechanism):
    login = new_login(**{mechanism.replace("-", "_"): 5000})
    log_in(login, mechanism)
    assert log_in(login, mechanism, now_ms=6000).lifetime_ms == 5000
    assert login.is_open
    assert not login.is_expired(10_999)


def test_a_session_is_renewed_at_most_once_a_second():
    login = new_login()
    log_in(login, PLAIN)
    log_in(login, PLAIN, now_ms=10)  # as in Kafka, the interval begins with the first re-authentication
    with pytest.raises(RefusedError) as refused:
        login.handshake(PLAIN, 1, 9 + REAUTHENTICATION_INTERVAL_MS)
    assert refused.value.code == ErrorCode.illegal_sasl_state
    assert login.is_open
    log_in(login, PLAIN, now_ms=10 + REAUTHENTICATION_INTERVAL_MS)


def test_another_user_or_mechanism_renews_no_session():
    login = new_login()
    log_in(login, PLAIN)
    failed = fails(log_in, login, PLAIN, "bob")
    assert str(failed) == "Cannot change principals during re-authentication from User.alice: User.bob"
    login = new_login()
    log_in(login, PLAIN)
    failed = fails(log_in, login, SCRAM_SHA_256)
    assert "re-authentication of mechanism 'PLAIN'" in str(failed)
    assert login.state is LoginState.FAILED


def test_a_message_after_the_login_changes_nothing():
    login = new_login()
    log_in(login, PLAIN)
    with pytest.raises(RefusedError) as refused:
        say(login, encode_plain("bob", PASSWORD["bob"]))
    assert refused.value.code == ErrorCode.illegal_sasl_state
    assert (login.is_open, login.principal.name) == (True, "alice")


# -- hostile messages ----------------------------------------------------------------------------------------------


def exchange(mechanism):
    """A login up to its last message, and this message."""
    login = new_login()
    login.handshake(mechanism, 1, 0)
    if mechanism in SCRAM:
        client = scram_client(mechanism)
        return login, client.final(say(login, client.first()).token)
    return login, encode_plain("alice", PASSWORD["alice"]) if mechanism == PLAIN else encode_token("alice")


def logs_in(login, token):
    try:
        say(login, token)
    except LoginError:
        assert login.state is LoginState.FAILED
    return login.is_open


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_prefix_and_no_changed_bit_of_the_last_message_logs_in(mechanism):
    login, whole = exchange(mechanism)
    assert logs_in(login, whole)
    for end in range(len(whole)):
        login, _ = exchange(mechanism)
        assert not logs_in(login, whole[:end]), whole[:end]
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        if (
            changed.lower() == whole.lower()
            and b"bearer" in changed.lower()[: bit // 8 + 7]
            and mechanism == OAUTHBEARER
        ):
            continue  # the scheme is compared without its case
        login, _ = exchange(mechanism)
        assert not logs_in(login, bytes(changed)), bytes(changed)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_no_changed_bit_of_the_first_message_logs_in(mechanism):
    client = scram_client(mechanism)
    whole = client.first()
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        login = new_login()
        login.handshake(mechanism, 1, 0)
        try:
            server_first = say(login, bytes(changed)).token
            final = client.final(server_first)
        except (LoginError, ValueError):
            assert not login.is_open
            continue
        assert not logs_in(login, final)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_replayed_exchange_does_not_log_in(mechanism):
    client = scram_client(mechanism)
    login = new_login()
    login.handshake(mechanism, 1, 0)
    first = client.first()
    final = client.final(say(login, first, nonce="one").token)
    assert logs_in(login, final)
    again = new_login()
    again.handshake(mechanism, 1, 0)
    say(again, first, nonce="two")
    assert not logs_in(again, final)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_client_that_repeats_its_nonce_is_refused_and_named(mechanism):
    """librdkafka did so before 2.6.1."""
    client, login = scram_client(mechanism), new_login()
    login.handshake(mechanism, 1, 0)
    final = client.final(say(login, client.first(), nonce="one").token)
    with pytest.raises(LoginError) as refused:
        say(login, final.replace(b"r=clientnonce", b"r=clientnonceclientnonce"))
    assert "librdkafka does so before 2.6.1" in refused.value.why
    assert "librdkafka" not in str(refused.value)


def test_the_proof_of_one_user_or_mechanism_is_not_that_of_another():
    one = scram_client(SCRAM_SHA_256)
    login = new_login()
    login.handshake(SCRAM_SHA_256, 1, 0)
    one.first()
    bob = scram_client(SCRAM_SHA_256, "bob")
    final = one.final(say(login, bob.first()).token)
    assert not logs_in(login, final)


def test_a_huge_message_is_refused_fast():
    for mechanism in MECHANISMS:
        for token in (
            b"n,,n=" + b"=2C" * 170_000,
            b"\0" * 524_288,
            b"n,,n=a,r=" + b",a=b" * 130_000,
            b"n,," + b"\x01" * 520_000,
        ):
            login, _ = exchange(mechanism)
            assert not logs_in(login, token)


# -- any order -----------------------------------------------------------------------------------------------------

TOKENS = st.sampled_from(["right", "wrong", "garbage", "empty", "replay"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("versions")),
        st.tuples(st.just("handshake"), st.sampled_from([*MECHANISMS, "GSSAPI", ""])),
        st.tuples(st.just("authenticate"), TOKENS, st.sampled_from(["alice", "bob", "carol"])),
        st.tuples(st.just("wait"), st.sampled_from([0, 999, 1000, 5000])),
    ),
    max_size=12,
)


class Model:
    """What a login has to be, told by what the client has proven so far."""

    def __init__(self):
        self.phase = "initial"  # initial, handshake, authenticate, open, failed
        self.mechanism, self.chosen, self.user, self.round = None, None, None, 0
        self.renewed_ms, self.is_doomed, self.named = None, False, None

    def handshake(self, mechanism, now_ms):
        if self.phase == "open" and self.renewed_ms is not None and now_ms - self.renewed_ms < 1000:
            return
        if self.phase in ("authenticate", "failed") or mechanism not in MECHANISMS:
            self.phase = "failed"
            return
        if self.phase == "open":
            self.renewed_ms = now_ms
            self.is_doomed = mechanism != self.mechanism
        self.phase, self.chosen, self.round = "authenticate", mechanism, 0

    def authenticate(self, kind, user):
        if self.phase == "open":
            return
        if self.phase != "authenticate" or kind in ("garbage", "empty", "replay") or self.is_doomed:
            self.phase = "failed"
            return
        is_right = kind == "right" and user in PASSWORD
        if self.chosen in SCRAM and self.round == 0:
            self.round, self.named = 1, user
        elif self.chosen in SCRAM:
            self.end(is_right and user == self.named, user)
        elif self.chosen == OAUTHBEARER and self.round == 0 and not is_right:
            self.round = 1
        else:
            self.end(is_right and self.round == 0, user)

    def end(self, is_right, user):
        if is_right and self.user in (None, user):
            self.phase, self.mechanism, self.user = "open", self.chosen, user
        else:
            self.phase = "failed"


class Talk:
    """A client that sends what it is told to."""

    def __init__(self, login):
        self.login, self.client, self.server_first, self.old, self.count = login, None, None, b"\x01", 0

    def token(self, kind, user, mechanism, round_):
        if kind in ("garbage", "empty", "replay"):
            return {"garbage": b"n,,garbage\0", "empty": b"", "replay": self.old}[kind]
        password = PASSWORD.get(user, "x") if kind == "right" else "wrong"
        if mechanism in SCRAM:
            client = scram_client(mechanism, user, password, f"c{self.count}")
            self.count += 1
            if round_ == 0:
                self.client = client
                return client.first()
            if self.client.user != user or self.client.password != password:
                client = ScramClient(client.mechanism, user, password, self.client.nonce)
                client.first()
                return client.final(self.server_first)
            return self.client.final(self.server_first)
        return (
            encode_plain(user, password)
            if mechanism == PLAIN
            else encode_token(user if kind == "right" else "nobody")
        )


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_a_login_follows_a_simple_model_in_any_order(steps):
    login, model, now_ms = new_login(), Model(), 0
    talk = Talk(login)
    for step, *arguments in steps:
        if step == "versions":
            expected = model.phase in ("initial", "open")
            assert login.accept_versions_request() == expected
            if model.phase == "initial":
                model.phase = "handshake"
        elif step == "handshake":
            model.handshake(*arguments, now_ms)
            with_refusal(login.handshake, *arguments, 1, now_ms)
        elif step == "authenticate":
            mechanism = model.chosen if model.phase == "authenticate" else PLAIN
            token = talk.token(*arguments, mechanism, model.round if mechanism in SCRAM else 0)
            model.authenticate(*arguments)
            answer = with_refusal(say, login, token, now_ms, f"s{talk.count}")
            if answer is not None and answer.token.startswith(b"r="):
                talk.server_first = answer.token
            elif mechanism in SCRAM and model.phase in ("open", "failed"):
                talk.old = token
        else:
            now_ms += arguments[0]
        is_in = login.state.name.lower()
        assert is_in == model.phase
        assert login.is_open == (model.phase == "open")
        assert (login.principal.name if login.principal else None) == model.user


def with_refusal(call, *arguments):
    try:
        return call(*arguments)
    except RefusedError:
        return None


def test_questions_do_not_show_secrets():
    assert "secret" not in repr([PasswordQuestion("alice", "secret"), TokenQuestion("secret")])


@pytest.mark.parametrize("mechanism", SCRAM)
def test_the_channel_binding_repeats_the_header_of_the_first_message(mechanism):
    """Somebody on the way who changes the header is noticed."""
    login = new_login()
    login.handshake(mechanism, 1, 0)
    client = scram_client(mechanism)
    server_first = say(login, b"n,a=alice," + client.first()[3:]).token
    assert not logs_in(login, client.final(server_first))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_does_not_log_in_whatever_is_proven(mechanism):
    class Unknown:
        def find(self, mechanism, user):
            return CREDENTIALS.find(mechanism, user)._replace(is_known=False)

    login = Login(LoginRules(MECHANISMS, {}), Unknown)
    login.handshake(mechanism, 1, 0)
    client = scram_client(mechanism)
    assert not logs_in(login, client.final(say(login, client.first()).token))
    assert not is_password(Unknown().find(BY_SASL_NAME[mechanism], "alice"), PASSWORD["alice"])
