"""The public keys that sign bearer tokens. They are loaded from a URL in a thread, and kept in memory.

The keys are loaded again when they are old, and when a token names a key that is not among them.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import in_thread
from stablelog.env import http
from stablelog.env.clock import Clock
from stablelog.errors import DamageError, StablelogError, UnavailableError
from stablelog.security.exchanges import Identity
from stablelog.security.tokens import KeySet, TokenRules, UnknownKeyError, check_library

log = logging.getLogger(__name__)

# After a load, successful or not, the next one begins at this time at the earliest: clients can send any key id.
RELOAD_INTERVAL_MS: Final = 10_000


def load_keys(url: str) -> KeySet:
    """Load the keys (a JSON Web Key Set) from a URL. Blocks until the server has answered: see `http.send_request`.

    Raises:
        UnavailableError: the keys cannot be loaded; the message says why.
        DamageError: the document is not a key set.
        UsageError: the library for tokens is not installed.
    """
    parts = urlsplit(url)
    try:
        content = _read_file(parts) if parts.scheme == "file" else _get_document(parts)
        return KeySet(content)
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"the keys that sign tokens cannot be loaded from {http.shown_url(parts)}: "
            f"{http.failure_in_words(error)}"
        ) from error
    except DamageError as damage:
        raise DamageError(
            f"{http.shown_url(parts)} has no keys of tokens: {damage}. Set the URL of a JSON Web Key Set"
        ) from damage


def _read_file(url: SplitResult) -> bytes:
    with Path(unquote(url.path)).open("rb") as file:
        content = file.read(http.SIZE_MAX + 1)
    http.check_size(content)
    return content


def _get_document(url: SplitResult) -> bytes:
    response = http.send_request(url, {"Accept": "application/json"})
    if response.status != http.OK:
        raise OSError(f"the server of the keys responds with HTTP status {response.status}")
    return response.content


class TokenKeys:
    """The keys of one authorization server.

    Args:
        url: the URL of the keys: see `stablelog.security.keys_url`.
        refresh_ms: the age at which the keys are loaded again, in ms. The old keys are used until the new ones are
            loaded.
        clock: the broker's clock.
        tasks: starts the tasks that load the keys.
        load: loads the keys; called in a thread.
    """

    def __init__(
        self,
        url: str,
        *,
        refresh_ms: int,
        clock: Clock,
        tasks: Tasks,
        load: Callable[[str], KeySet] = load_keys,
    ) -> None:
        self._url = url
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._tasks = tasks
        self._load = load
        self._keys: KeySet | None = None
        self._loaded_ms = 0
        self._tried_ms: int | None = None
        self._failure: StablelogError | None = None
        self._turn = asyncio.Lock()
        # A thread of its own: a slow authorization server must not delay other work.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="token keys")
        self._is_refreshing = False

    async def open(self) -> None:
        """Load the keys when the broker starts.

        If the authorization server does not respond, this is logged and the broker starts nevertheless. The keys are
        then loaded when a client logs in.

        Raises:
            UnavailableError, DamageError: the keys are in a file that cannot be read.
            UsageError: the library for tokens is not installed.
        """
        check_library()
        try:
            await self._reload()
        except StablelogError as error:
            if urlsplit(self._url).scheme == "file":
                raise
            log.warning(
                "clients cannot log in with OAUTHBEARER yet, because the keys that sign tokens were not loaded: %s",
                error,
            )

    async def identify(self, token: str, rules: TokenRules) -> Identity:
        """Verify a bearer token with the keys, and return whom it identifies: see `KeySet.identify`.

        If no keys are loaded yet, or the token names a key that is not among them, the keys are first loaded.

        Args:
            token: the token.
            rules: what a valid token contains, such as its audience.

        Raises:
            TokenError: the token is not valid.
            StablelogError: no keys are loaded yet, and they cannot be loaded now.
        """
        if self._keys is None:
            await self._reload_if_due()
        if self._keys is None:
            raise self._failure or UnavailableError(
                "the token cannot be checked: the keys that sign bearer tokens are not loaded"
            )
        if (
            self._clock.now_ms() - self._loaded_ms >= self._refresh_ms
            and not self._is_refreshing
            and self._is_load_due()
        ):
            self._is_refreshing = True
            self._tasks.start("token keys", self._refresh)
        try:
            return self._verify_token(token, rules)
        except UnknownKeyError:
            if not await self._reload_if_due():
                raise
        return self._verify_token(token, rules)

    def _verify_token(self, token: str, rules: TokenRules) -> Identity:
        """Verify a token, and return whom it identifies.

        The token names the time at which it expires by the wall clock. This time is converted to broker time (which
        never goes back), so that a later change of the wall clock neither ends nor prolongs the session.
        """
        assert self._keys is not None
        wall_ms = self._clock.wall_ms()
        identity = self._keys.identify(token, rules, wall_ms)
        if identity.expires_ms is None:
            return identity
        return identity._replace(expires_ms=identity.expires_ms - wall_ms + self._clock.now_ms())

    async def _refresh(self) -> None:
        try:
            await self._reload_if_due()
        finally:
            self._is_refreshing = False

    def _is_load_due(self) -> bool:
        return self._tried_ms is None or self._clock.now_ms() - self._tried_ms >= RELOAD_INTERVAL_MS

    async def _reload_if_due(self) -> bool:
        """Load the keys, unless they were loaded a short time ago. If the load fails, this is logged and the present
        keys remain.

        Returns:
            Whether newer keys are available than at the beginning of this call.
        """
        loaded_ms = self._loaded_ms if self._keys is not None else None
        async with self._turn:
            if self._is_load_due():
                try:
                    await self._load_now()
                except StablelogError as error:
                    log.warning("%s", error)
            return self._keys is not None and self._loaded_ms != loaded_ms

    async def _reload(self) -> None:
        async with self._turn:
            await self._load_now()

    async def _load_now(self) -> None:
        self._tried_ms = self._clock.now_ms()
        try:
            self._keys = await in_thread(self._thread, self._load, self._url)
        except StablelogError as error:
            self._failure = error
            raise
        self._loaded_ms, self._failure = self._tried_ms, None

    def close(self) -> None:
        """Load no more keys. The call does not wait for a load in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)
