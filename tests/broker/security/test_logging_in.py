"""Requests of a connection before, during and after its login, and the APIs of users' credentials."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.monitoring.limited_log import LINES_MAX
from stablelog.broker.network.long_messages import RequestDecoder
from stablelog.broker.network.session import Session
from stablelog.broker.requests.router import Router
from stablelog.broker.security.logins import ListenerLogins, Logins
from stablelog.errors import RefusedError
from stablelog.security.login import LoginRules
from stablelog.security.principal import ANONYMOUS, Principal
from stablelog.security.tokens import TokenRules
from stablelog.wire.api import ApiKey
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from stablelog.wire.sasl.oauthbearer import encode_token
from stablelog.wire.sasl.plain import encode_plain
from stablelog.wire.sasl.scram import BY_SASL_NAME, Mechanism, ScramClient, salted_password
from tests.broker.desk import Desk, frame, opened
from tests.declared_apis import APIS
from tests.security.keys import document, private_key, public, token

SHA_256, SHA_512 = Mechanism.SHA_256, Mechanism.SHA_512
DELAY_MS = 20
NONE = ErrorCode.none


def on_desk(conversation, tmp_path=None, **more):
    async def work():
        async with opened() as desk:
            install(desk.broker, tmp_path, **more)
            await upsert(desk, "alice", "alice-secret")
            await upsert(desk, "bob", "bob-secret", SHA_512)
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 60))


def install(broker, tmp_path, *, mechanisms=MECHANISMS, session_ms_max=0):
    """Give the broker's listener SASL."""
    url = ""
    if tmp_path is not None:
        (tmp_path / "keys.json").write_bytes(document(public(private_key(), kid="one")))
        url = (tmp_path / "keys.json").as_uri()
    listener = ListenerLogins(
        LoginRules(mechanisms, dict.fromkeys(mechanisms, session_ms_max)),
        {"carol": "carol-secret"},
        TokenRules() if url else None,
        url,
        3_600_000,
    )
    assert broker.logins is None  # no listener has SASL
    broker.logins = Logins(
        {"CLIENTS": listener},
        lambda: broker.users.credentials,
        clock=broker.clock,
        tasks=broker.tasks,
        failure_delay_ms=DELAY_MS,
    )


async def upsert(desk, user, password, mechanism=SHA_256, salt=b"salt", iterations=4096):
    salted = salted_password(mechanism, password, salt, iterations)
    change = {
        "name": user,
        "mechanism": mechanism.value,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted,
    }
    answer = await desk.ask_with(51, 0, {"deletions": [], "upsertions": [change]})
    return [(one.user, one.error_code.name) for one in answer.results]


class Client(Desk):
    """A connection to the listener with SASL."""

    def __init__(self, desk):
        super().__init__(desk.broker)
        listener = SimpleNamespace(name="CLIENTS", is_sasl=True)
        self.session = Session(listener, "198.51.100.7", login=desk.broker.logins.new_login("CLIENTS"))
        self.is_closing = False
        self.stranger = SimpleNamespace(
            host="198.51.100.7",
            appending=asyncio.Lock(),
            decoding=RequestDecoder(),
            session=self.session,
            close_when_sent=self._close,
            close=self._close,
        )

    def _close(self):
        self.is_closing = True

    async def versions(self, version=4):
        values = {"client_software_name": "x", "client_software_version": "1"}
        return await self.ask_with(ApiKey.API_VERSIONS, version, values)

    async def handshake(self, mechanism, version=1):
        return await self.ask_with(ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism})

    async def say(self, message, version=2):
        return await self.ask_with(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": message})

    async def log_in(self, mechanism, user="alice", password=None, version=2):
        assert (await self.handshake(mechanism)).error_code is NONE
        password = password or f"{user}-secret"
        if mechanism == PLAIN:
            return await self.say(encode_plain(user, password), version)
        if mechanism == OAUTHBEARER:
            return await self.say(encode_token(password), version)
        scram = ScramClient(BY_SASL_NAME[mechanism], user, password, "nonce")
        first = await self.say(scram.first(), version)
        last = await self.say(scram.final(first.auth_bytes), version)
        if last.error_code is NONE:
            scram.check(last.auth_bytes)
        return last

    async def bare(self, message):
        buffers = await self.router.respond(self.stranger, message)
        return None if buffers is None else b"".join(buffers)

    async def is_served(self):
        answer = await self.ask_with(ApiKey.LIST_GROUPS, 4, {"states_filter": ()})
        return answer.error_code is NONE


def test_each_mechanism_logs_in(tmp_path):
    async def conversation(desk):
        now_s = desk.broker.now_ms() // 1000
        for mechanism, user, password in (
            (PLAIN, "carol", None),  # in the settings
            (PLAIN, "alice", None),  # with a stored credential of each mechanism
            (PLAIN, "bob", None),
            (SCRAM_SHA_256, "alice", None),
            (SCRAM_SHA_512, "bob", None),
            (OAUTHBEARER, "dave", token(private_key(), now_s=now_s, sub="dave")),
        ):
            client = Client(desk)
            assert client.session.principal == ANONYMOUS
            await client.versions()
            answer = await client.log_in(mechanism, user, password)
            assert answer.error_code is NONE, (mechanism, answer)
            assert client.session.principal == Principal("User", user)
            assert await client.is_served()
            assert not client.is_closing
            lifetime_ms = answer.session_lifetime.total_seconds() * 1000
            assert (lifetime_ms > 3_000_000) == (mechanism == OAUTHBEARER)

    on_desk(conversation, tmp_path)


def test_failures_are_answered_late_counted_and_logged(tmp_path, caplog):
    async def conversation(desk):
        for mechanism, user, why in (
            (PLAIN, "carol", "Invalid username or password"),
            (PLAIN, "alice", "Invalid username or password"),
            (PLAIN, "nobody", "Invalid username or password"),
            (SCRAM_SHA_256, "alice", "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
            (SCRAM_SHA_512, "alice", "due to invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ):
            client, begun_s = Client(desk), asyncio.get_running_loop().time()
            answer = await client.log_in(mechanism, user, "a wrong secret")
            assert answer.error_code is ErrorCode.sasl_authentication_failed
            assert why in answer.error_message
            assert asyncio.get_running_loop().time() - begun_s >= DELAY_MS / 1000
            assert client.is_closing
            assert client.session.principal == ANONYMOUS
            assert await client.router.respond(client.stranger, frame(3, 1, topics=())) is None
        client = Client(desk)
        refused = await client.log_in(OAUTHBEARER, "x", "wrong.secret.token")
        assert (refused.error_code, refused.auth_bytes) == (NONE, b'{"status":"invalid_token"}')
        assert (await client.say(b"\x01")).error_code is ErrorCode.sasl_authentication_failed
        samples = {sample.labels: sample.value for sample in desk.broker.logins.samples()}
        assert samples == {
            (PLAIN, "failure"): 3,
            (SCRAM_SHA_256, "failure"): 1,
            (SCRAM_SHA_512, "failure"): 1,
            (OAUTHBEARER, "failure"): 1,
        }

    with caplog.at_level(logging.WARNING):
        on_desk(conversation, tmp_path)
    assert (
        "a login of user 'carol' from 198.51.100.7 with PLAIN has failed: wrong user name or password"
        in caplog.text
    )
    assert (
        "with OAUTHBEARER has failed: a bearer token is refused: the token is not a JSON web token"
        in caplog.text
    )
    assert "secret" not in caplog.text


def test_a_user_of_the_settings_has_no_second_password():
    async def conversation(desk):
        await upsert(desk, "carol", "stored")
        assert (
            await Client(desk).log_in(PLAIN, "carol", "stored")
        ).error_code is ErrorCode.sasl_authentication_failed
        assert (await Client(desk).log_in(PLAIN, "carol")).error_code is NONE

    on_desk(conversation)


@pytest.mark.extended
def test_few_failed_logins_are_logged(caplog):
    async def conversation(desk):
        for number in range(LINES_MAX + 5):
            client = Client(desk)
            await client.handshake(PLAIN)
            await client.say(encode_plain(f"user{number}\n" * 50, "wrong"))
        desk.broker.clock.advance(10_000)
        await Client(desk).log_in(PLAIN, "nobody", "wrong")

    with caplog.at_level(logging.WARNING):
        on_desk(conversation)
    messages = [record.message for record in caplog.records if record.name.endswith("logins")]
    assert len(messages) == LINES_MAX + 2
    assert all("\n" not in message and len(message) < 400 for message in messages)
    assert "5 failed logins were not logged" in messages


# -- the gate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", [key for key in APIS if key not in (17, 18, 36)])
def test_no_other_request_is_answered_before_the_login(api_key):
    async def conversation(desk):
        for prepare in (
            lambda _client: asyncio.sleep(0),
            Client.versions,
            lambda client: client.handshake(PLAIN),
        ):
            client = Client(desk)
            await prepare(client)
            # Not even decoded: nothing follows the client id.
            request = (
                api_key.to_bytes(2, "big") + APIS[api_key].last_version.to_bytes(2, "big") + b"\0\0\0\1\0\0"
            )
            with pytest.raises(RefusedError, match="before the login"):
                await client.router.respond(client.stranger, request)

    on_desk(conversation)


def test_versions_are_asked_once_before_the_login():
    async def conversation(desk):
        client = Client(desk)
        unknown = ApiKey.API_VERSIONS.to_bytes(2, "big") + b"\0\x63\0\0\0\1\0\0"
        assert await client.router.respond(client.stranger, unknown) is not None
        assert (await client.versions(3)).error_code is NONE
        for ask in (client.versions(), client.router.respond(client.stranger, unknown)):
            with pytest.raises(RefusedError, match="before the login"):
                await ask
        client = Client(desk)
        await client.log_in(PLAIN)
        for _ in range(2):
            assert (await client.versions()).error_code is NONE

    on_desk(conversation)


def test_messages_out_of_order_close_the_connection():
    async def conversation(desk):
        client = Client(desk)
        answer = await client.say(encode_plain("carol", "carol-secret"))
        assert answer.error_code is ErrorCode.illegal_sasl_state
        assert client.is_closing
        client = Client(desk)
        await client.handshake(PLAIN)
        assert (await client.handshake(PLAIN)).error_code is ErrorCode.illegal_sasl_state
        assert client.is_closing
        client = Client(desk)
        answer = await client.handshake("GSSAPI")
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, MECHANISMS)
        assert client.is_closing

    on_desk(conversation)


def test_a_request_that_follows_the_login_without_a_pause_is_answered():
    async def conversation(desk):
        client = Client(desk)
        await client.handshake(PLAIN)
        await Client(desk).log_in(PLAIN)  # so that all is imported
        client.router.prepare_api(APIS[36], 2)
        client.router.prepare_api(APIS[16], 4)
        login = asyncio.ensure_future(client.say(encode_plain("alice", "alice-secret")))
        await asyncio.sleep(0)
        assert await client.is_served()
        assert (await login).error_code is NONE

    on_desk(conversation)


def test_requests_behind_a_login_come_after_it_however_long_its_message_is_decoded():
    """Without a broker that has decoded such a message before, a thread imports what decodes it."""

    async def conversation(desk):
        client = Client(desk)
        client.router = Router(desk.broker)
        messages = [
            frame(ApiKey.SASL_HANDSHAKE, 1, mechanism=PLAIN),
            frame(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=encode_plain("alice", "alice-secret")),
            frame(ApiKey.LIST_GROUPS, 4, states_filter=()),
            frame(ApiKey.LIST_GROUPS, 4, states_filter=()),
        ]
        answers = await asyncio.gather(*(client.router.respond(client.stranger, one) for one in messages))
        assert all(answers)

    on_desk(conversation)


def test_a_listener_without_sasl_knows_no_login():
    async def conversation(desk):
        answer = await desk.ask_with(17, 1, {"mechanism": PLAIN})
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.illegal_sasl_state, ())
        answer = await desk.ask_with(36, 2, {"auth_bytes": encode_plain("carol", "carol-secret")})
        assert answer.error_code is ErrorCode.illegal_sasl_state

    on_desk(conversation)


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_after_a_handshake_of_version_0_messages_have_no_headers(mechanism, caplog):
    async def conversation(desk):
        client = Client(desk)
        assert (await client.handshake(mechanism, 0)).error_code is NONE
        if mechanism == PLAIN:
            assert await client.bare(encode_plain("alice", "alice-secret")) == b""
        else:
            scram = ScramClient(SHA_256, "alice", "alice-secret", "nonce")
            scram.check(await client.bare(scram.final(await client.bare(scram.first()))))
        assert await client.is_served()
        client = Client(desk)
        await client.handshake(mechanism, 0)
        assert await client.bare(b"x") is None
        assert client.is_closing

    with caplog.at_level(logging.WARNING):
        on_desk(conversation)
    assert len([record for record in caplog.records if "has failed" in record.message]) == 1
    assert "closing" not in caplog.text


# -- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_a_session_ends_unless_the_client_authenticates_again(mechanism):
    async def conversation(desk):
        client, late = Client(desk), Client(desk)
        for one in (client, late):
            assert (await one.log_in(mechanism)).session_lifetime.total_seconds() == 5
        desk.broker.clock.advance(4_999)
        assert await client.is_served()
        assert await late.is_served()
        assert (await client.log_in(mechanism)).session_lifetime.total_seconds() == 5
        desk.broker.clock.advance(1)
        assert await client.is_served()
        for ask in (late.is_served(), late.versions()):
            with pytest.raises(RefusedError, match="the session of User:alice has expired"):
                await ask
        assert (await late.log_in(mechanism)).error_code is NONE
        assert await late.is_served()

    on_desk(conversation, session_ms_max=5000)


def test_another_user_cannot_take_over_a_session():
    async def conversation(desk):
        client = Client(desk)
        await client.log_in(PLAIN, "alice")
        desk.broker.clock.advance(2000)
        answer = await client.log_in(PLAIN, "bob")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "Cannot change principals" in answer.error_message
        assert client.is_closing
        assert client.session.principal.name == "alice"

    on_desk(conversation)


# -- credentials ---------------------------------------------------------------------------------------------------


def test_credentials_are_described_changed_and_kept():
    async def conversation(desk):
        async def described(*users):
            answer = await desk.ask_with(50, 0, {"users": [{"name": user} for user in users] or None})
            return [
                (
                    one.user,
                    one.error_code.name,
                    [(info.mechanism, info.iterations) for info in one.credential_infos],
                )
                for one in answer.results
            ]

        assert await described() == [("alice", "none", [(1, 4096)]), ("bob", "none", [(2, 4096)])]
        assert await upsert(desk, "alice", "new", SHA_512, iterations=16_384) == [("alice", "none")]
        assert await described("alice", "x", "bob", "bob") == [
            ("alice", "none", [(1, 4096), (2, 16_384)]),
            ("x", "resource_not_found", []),
            ("bob", "duplicate_resource", []),
        ]
        answer = await desk.ask_with(
            51, 0, {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": []}
        )
        assert [one.error_code for one in answer.results] == [NONE]
        assert await described("alice") == [("alice", "none", [(2, 16_384)])]
        answer = await desk.ask_with(
            51, 0, {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": []}
        )
        assert [one.error_code for one in answer.results] == [ErrorCode.resource_not_found]

    on_desk(conversation)
