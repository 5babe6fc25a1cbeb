"""The logins of one broker: the rules of each listener, the check of passwords and tokens, and failed logins.

`stablelog.security.login` decides about each SASL message. This module has the passwords of PLAIN, the users'
credentials and the keys of tokens by which it checks a password or a token. It also counts logins, and logs those that
failed.
"""

import asyncio
import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.monitoring.limited_log import LimitedLog, quote_for_log
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.security.fair_turns import FairTurns
from stablelog.broker.security.token_keys import TokenKeys
from stablelog.env.clock import Clock
from stablelog.errors import StablelogError
from stablelog.security.credentials import CredentialTable, FoundCredential, is_password
from stablelog.security.exchanges import Identity, PasswordQuestion, Question
from stablelog.security.login import (
    Login,
    LoginAnswer,
    LoginError,
    LoginRules,
)
from stablelog.security.tokens import TokenError, TokenRules
from stablelog.wire.sasl import MECHANISMS

log = logging.getLogger(__name__)

HASH_THREADS: Final = 2
NONCE_SIZE: Final = 24


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """The settings of the logins of one listener.

    Attributes:
        rules: the mechanisms, and the limits of sessions.
        passwords: the users of PLAIN whose passwords are in the settings, with the passwords.
        token_rules: what a valid bearer token contains; None if the listener does not have OAUTHBEARER.
        keys_url: the URL of the keys that sign bearer tokens.
        keys_refresh_ms: the age at which these keys are loaded again, in ms.
    """

    rules: LoginRules
    passwords: Mapping[str, str]
    token_rules: TokenRules | None
    keys_url: str
    keys_refresh_ms: int

    def __repr__(self) -> str:
        return f"ListenerLogins({', '.join(self.rules.mechanisms)})"


class Logins:
    """The logins of one broker: checks the passwords and tokens of clients, on all listeners.

    Args:
        listeners: the settings of each listener with SASL, by the name of the listener.
        credentials: returns the present credentials of all users.
        clock: the broker's clock. Its wall clock decides whether a token is valid.
        tasks: starts the tasks that load the keys of bearer tokens.
        failure_delay_ms: the least time in ms between the request of a login that fails and its answer.
    """

    def __init__(
        self,
        listeners: Mapping[str, ListenerLogins],
        credentials: Callable[[], CredentialTable],
        *,
        clock: Clock,
        tasks: Tasks,
        failure_delay_ms: int,
    ) -> None:
        self._listeners = listeners
        self._credentials = credentials
        self._now_ms = clock.now_ms
        self._failure_delay_s = failure_delay_ms / 1000
        self._turns = FairTurns(HASH_THREADS)
        self._threads = ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="logins")
        self._keys = {
            (one.keys_url, one.keys_refresh_ms): TokenKeys(
                one.keys_url, refresh_ms=one.keys_refresh_ms, clock=clock, tasks=tasks
            )
            for one in listeners.values()
            if one.token_rules is not None
        }
        self._counts: Counter[tuple[str, str]] = Counter()
        self._log = LimitedLog(log, logging.WARNING, "failed logins", clock.now_ms)

    async def open(self) -> None:
        """Load the keys that sign the bearer tokens of each listener with OAUTHBEARER. Raises the errors of
        `TokenKeys.open`.
        """
        for keys in self._keys.values():
            await keys.open()

    def new_login(self, listener: str) -> Login | None:
        """Begin the login of a client that has connected to a listener.

        Returns:
            The state of the login, which each SASL message of the client changes. None if the listener has no SASL.
        """
        settings = self._listeners.get(listener)
        return None if settings is None else Login(settings.rules, self._credentials)

    async def authenticate(self, listener: str, host: str, login: Login, token: bytes) -> LoginAnswer:
        """Process a SASL message of a client, and return the answer to it. If the message completes the login, the
        login is counted.

        Args:
            listener: the name of the connection's listener.
            host: the client's address. The hash of a password takes much processor time, so the addresses get it in
                turn.
            login: the state of the client's login.
            token: the SASL message.

        Returns:
            The answer to the client.

        Raises:
            LoginError: the login has failed. The caller calls `count_failure`.
            RefusedError: the login does not expect a SASL message now, for example because it is complete.
        """
        result = login.authenticate(token, secrets.token_urlsafe(NONCE_SIZE), self._now_ms())
        if not isinstance(result, LoginAnswer):
            identity, why = None, "the token is not valid"
            try:
                identity = await self._check_identity(result, self._listeners[listener], host)
            except (TokenError, StablelogError) as error:
                why = f"a bearer token is refused: {error}"
            result = login.process_answer(identity, self._now_ms())
            if login.is_refused:
                self._log_failure(host, login.mechanism, "", why)
        if login.is_open:
            self._counts[login.mechanism, "success"] += 1
        return result

    async def _check_identity(
        self, question: Question, settings: ListenerLogins, host: str
    ) -> Identity | None:
        if isinstance(question, PasswordQuestion):
            listed = settings.passwords.get(question.user)
            if listed is not None and hmac.compare_digest(question.password.encode(), listed.encode()):
                return Identity(question.user)
            found = self._credentials().find_any(question.user)
            async with self._turns.turn(host):
                is_right = await in_thread(
                    self._threads, _is_password_right, question, settings.passwords, found
                )
            return Identity(question.user) if is_right else None
        assert settings.token_rules is not None
        keys = self._keys[settings.keys_url, settings.keys_refresh_ms]
        return await keys.identify(question.token, settings.token_rules)

    async def delay_failure(self, begun_s: float) -> None:
        """Wait before a failed login is answered, so that passwords cannot be guessed fast on one connection.

        Args:
            begun_s: the time of the event loop when the request arrived. The wait ends a fixed time after it. The time
                of the answer therefore shows little of how long the check of the password took.
        """
        left_s = begun_s + self._failure_delay_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def count_failure(self, host: str, login: Login, error: LoginError) -> None:
        """Count a failed login, and log it. Do nothing if `authenticate` has counted it already, when it refused the
        client's bearer token.

        Args:
            host: the client's address.
            login: the state of the client's login.
            error: the reason for the failure.
        """
        if not login.is_refused:  # Otherwise it was counted when the token was refused.
            self._log_failure(host, login.mechanism, error.user, error.why)

    def _log_failure(self, host: str, mechanism: str, user: str, why: str) -> None:
        mechanism = mechanism if mechanism in MECHANISMS else "unknown"
        self._counts[mechanism, "failure"] += 1
        name = f" of user {quote_for_log(user)}" if user else ""
        self._log.write("a login%s from %s with %s has failed: %s", name, host, mechanism, why)

    def samples(self) -> Iterator[Sample]:
        """Yield the metric of logins: how many logins succeeded and how many failed, by mechanism."""
        for (mechanism, result), count in self._counts.items():
            yield Sample("stablelog_logins", (mechanism, result), count)

    def close(self) -> None:
        """Stop the threads that check passwords, and stop loading the keys that sign bearer tokens. The call waits for
        the checks of passwords that have begun; checks that have not begun are cancelled.
        """
        self._threads.shutdown(wait=True, cancel_futures=True)
        for keys in self._keys.values():
            keys.close()


def _is_password_right(
    question: PasswordQuestion, passwords: Mapping[str, str], found: FoundCredential
) -> bool:
    """Return whether a password that a client has sent with the mechanism PLAIN is right.

    If the settings contain a password for the user, only that password is right. The check of a wrong password always
    takes the time of one hash, so that the time of the answer does not show whether the user exists.

    Args:
        question: the user and the password of the client.
        passwords: the passwords in the settings, by user.
        found: the user's credentials in the users' file, or substitutes if there are none.
    """
    listed = passwords.get(question.user)
    given = question.password.encode()
    if listed is not None and hmac.compare_digest(given, listed.encode()):
        return True
    return is_password(found, question.password) and listed is None
