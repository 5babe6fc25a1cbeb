"""Daemon threads for calls that may block for long, such as the resolution of a host name. A caller can stop waiting
for such a call.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final

from stablelog.processes import watch_forks

THREADS_MAX: Final = 4


class CallThreads:
    """A group of at most THREADS_MAX daemon threads that call functions. When all of them are busy, further calls wait
    for a free thread.

    A caller that stops waiting cancels its future. A function that is running continues in its thread, and its result
    is dropped.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch_forks(self)

    def after_fork(self) -> None:
        """In a forked process, forget the threads and their calls: a fork copies no threads."""
        # Reentrant, because a signal handler may begin a call, too.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread_count = 0

    def start_call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Start the call of a function in a thread, and return a future of its result. This method never waits: if no
        thread is free, the call begins later.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, function))
            if self._thread_count < THREADS_MAX:
                threading.Thread(target=self._work, name="stablelog-call", daemon=True).start()
                self._thread_count += 1
        return future

    def call_within(self, function: Callable[[], Any], limit_s: float) -> Any:
        """Call a function in a thread, and return its result. Wait at most `limit_s` seconds.

        Raises:
            TimeoutError: the function did not return in time. It continues to run in its thread, and its result is
                dropped.
        """
        future = self.start_call(function)
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise  # the function's own error
            raise TimeoutError("timed out") from None
        finally:
            future.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread_count -= 1
                    return
                future, function = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                _set(future.set_exception, error)
            else:
                _set(future.set_result, result)


def _set(setter: Callable[[Any], None], result: Any) -> None:
    with suppress(InvalidStateError):  # the caller has given up
        setter(result)


shared_threads: Final = CallThreads()
AddressInfo = tuple[Any, ...]  # an item of `socket.getaddrinfo`


def numeric_addresses(host: str, port: int) -> list[AddressInfo] | None:
    """Return the socket addresses for a host that is an IP address; None if the host is a name."""
    try:
        return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except socket.gaierror:
        return None


def resolve_addresses(host: str, port: int, limit_s: float) -> list[AddressInfo]:
    """Return the socket addresses of a host. Wait at most `limit_s` seconds for the name server.

    Raises:
        OSError: there is no such host, or its name was not resolved in time.
    """
    found = numeric_addresses(host, port)
    if found is not None:
        return found
    try:
        return list(shared_threads.call_within(lambda: look_up_addresses(host, port), limit_s))
    except TimeoutError:
        raise TimeoutError(f"the name {host!r} was not resolved in time") from None


def look_up_addresses(host: str, port: int) -> list[AddressInfo]:
    """Return the socket addresses of a host name. This may block for long."""
    return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))


def connect_socket(host: str, port: int, limit_s: float) -> socket.socket:
    """Connect to a host, and return the socket. Its timeout is `limit_s`.

    Raises:
        OSError: no address of the host accepts a connection in time.
    """
    end = time.monotonic() + limit_s
    failure: OSError = OSError(f"the name {host!r} has no address")
    addresses = resolve_addresses(host, port, limit_s)
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        connected = socket.socket(family, kind, protocol)
        try:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            connected.settimeout(left_s / (len(addresses) - place))
            connected.connect(address)
            connected.settimeout(limit_s)
            return connected
        except OSError as error:
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
    raise failure
