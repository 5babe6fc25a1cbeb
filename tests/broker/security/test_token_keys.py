"""The keys of tokens: when they are loaded, and from where."""

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.security.token_keys import (
    RELOAD_INTERVAL_MS,
    TokenKeys,
    load_keys,
)
from stablelog.env.http import SIZE_MAX
from stablelog.errors import DamageError, UnavailableError
from stablelog.security.keys_url import parse_keys_url
from stablelog.security.tokens import KeySet, TokenError, TokenRules
from stablelog.testing.sim_clock import SimClock
from tests.security.keys import NOW_S, document, private_key, public, token

RULES = TokenRules()
ONE, OTHER = private_key(), private_key("RSA", 1)


class Source:
    """An authorization server whose keys change, and that may be out of reach."""

    def __init__(self):
        self.keys = {"one": ONE}
        self.loads = 0
        self.clock = SimClock(NOW_S * 1000)
        self.failure = None
        self.tasks = Tasks(lambda _why: None)

    def load(self, _url):
        self.loads += 1
        if self.failure is not None:
            raise self.failure
        return KeySet(document(*(public(key, kid=key_id) for key_id, key in self.keys.items())))

    def token_keys(self, url="https://issuer/keys"):
        return TokenKeys(url, refresh_ms=3_600_000, clock=self.clock, tasks=self.tasks, load=self.load)


async def refused(keys, text):
    with pytest.raises(TokenError):
        await keys.identify(text, RULES)


async def life_of_keys():
    source = Source()
    keys = source.token_keys()
    await keys.open()
    assert (await keys.identify(token(ONE), RULES)).user == "alice"
    assert source.loads == 1

    # A new key is loaded when a token names it, but not for each of many tokens.
    source.clock.advance(RELOAD_INTERVAL_MS)
    await asyncio.gather(*(refused(keys, token(OTHER, key_id=f"made up {number}")) for number in range(50)))
    assert source.loads == 2
    source.keys["two"] = OTHER
    await refused(keys, token(OTHER, key_id="two"))
    source.clock.advance(RELOAD_INTERVAL_MS)
    assert (await keys.identify(token(OTHER, key_id="two"), RULES)).user == "alice"
    assert source.loads == 3

    # A wrong signature loads nothing.
    source.clock.advance(RELOAD_INTERVAL_MS)
    await refused(keys, token(OTHER, key_id="one"))
    assert source.loads == 3

    # Old keys are used while new ones are loaded, and if they cannot be loaded.
    source.clock.advance(3_600_000)
    source.failure = UnavailableError("no answer")
    recent = token(ONE, now_s=source.clock.now_ms() // 1000)
    for _ in range(3):
        assert (await keys.identify(recent, RULES)).user == "alice"
    await soon(lambda: source.loads == 4)
    source.failure, source.keys = None, {"two": OTHER}
    source.clock.advance(RELOAD_INTERVAL_MS)
    await keys.identify(recent, RULES)
    await soon(lambda: source.loads == 5)
    await asyncio.sleep(0)
    await refused(keys, recent)
    keys.close()
    await source.tasks.stop()


async def soon(condition):
    while not condition():  # noqa: ASYNC110 - a thread changes it
        await asyncio.sleep(0.001)


def test_keys_are_loaded_when_they_are_new_old_or_unknown():
    asyncio.run(asyncio.wait_for(life_of_keys(), 20))


def test_a_server_out_of_reach_does_not_keep_the_broker_from_starting():
    async def life():
        source = Source()
        source.failure = UnavailableError("no answer")
        keys = source.token_keys()
        await keys.open()
        with pytest.raises(UnavailableError, match="no answer"):
            await keys.identify(token(ONE), RULES)
        assert source.loads == 1
        source.failure = None
        source.clock.advance(RELOAD_INTERVAL_MS)
        assert (await keys.identify(token(ONE), RULES)).user == "alice"
        keys.close()
        source.failure = DamageError("broken")
        with pytest.raises(DamageError, match="broken"):
            await source.token_keys("file:///keys.json").open()

    asyncio.run(life())


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer/keys?x=1",
        "file:///keys.json",
        "http://localhost:80/",
        "http://127.0.0.1/k",
        "http://[::1]/k",
    ],
)
def test_urls(url):
    assert parse_keys_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "keys.json",
        "http://issuer/keys",
        "http://127.0.0.1.example.com/",
        "ftp://x/y",
        "file://host/x",
        "https:///x",
    ],
)
def test_urls_that_are_refused(url):
    with pytest.raises(ValueError, match="https://"):
        parse_keys_url(url)


def test_a_file(tmp_path):
    path = tmp_path / "my keys.json"
    url = path.as_uri()
    with pytest.raises(UnavailableError, match="No such file"):
        load_keys(url)
    path.write_bytes(document(public(ONE, kid="one")))
    assert load_keys(url).identify(token(ONE), RULES, NOW_S * 1000).user == "alice"
    path.write_text("{}")
    with pytest.raises(DamageError, match=r"my%20keys\.json has no keys of tokens"):
        load_keys(url)
    path.write_bytes(b"x" * (SIZE_MAX + 1))
    with pytest.raises(UnavailableError, match="more than"):
        load_keys(url)


@contextmanager
def serving(status, body, **headers):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://me:secret@127.0.0.1:{server.server_port}/keys?code=secret"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.extended
def test_a_server():
    with serving(200, document(public(ONE, kid="one"))) as url:
        assert load_keys(url).identify(token(ONE), RULES, NOW_S * 1000).user == "alice"
    for status, body, why in (
        (302, b"", "status 302"),
        (404, b"", "status 404"),
        (200, b"x" * (SIZE_MAX + 1), "more than"),
    ):
        with serving(status, body, Location="https://elsewhere/") as url:
            with pytest.raises(UnavailableError, match=why) as failed:
                load_keys(url)
            assert "secret" not in str(failed.value)
    with pytest.raises(UnavailableError, match="refused"):
        load_keys(url)


@pytest.mark.parametrize("late_s", [3 * 3600, 0, -3 * 3600])
def test_tokens_are_valid_by_the_wall_clock_and_sessions_last_as_they_say(late_s):
    """The broker was started with a clock that was wrong by `late_s`, and the clock was then set right."""

    async def life():
        source = Source()
        source.clock = SimClock((NOW_S - late_s) * 1000)
        keys = source.token_keys()
        await keys.open()
        if late_s:
            await refused(keys, token(ONE))
        source.clock.set_wall_clock(late_s * 1000)
        identity = await keys.identify(token(ONE), RULES)
        assert identity.expires_ms == source.clock.now_ms() + 3600 * 1000
        keys.close()
        await source.tasks.stop()

    asyncio.run(asyncio.wait_for(life(), 20))
