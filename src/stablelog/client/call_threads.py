"""Calls that may block for long, such as the resolution of a host name, in threads that the caller can leave behind."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final

from stablelog.processes import watch

THREADS_MAX: Final = 4


class CallThreads:
    """Daemon threads that call functions, at most THREADS_MAX. Further calls wait until a thread is free.

    A caller that gives up cancels its future. A function that has begun runs on in its thread; its result is dropped.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch(self)

    def after_fork(self) -> None:
        """Leave the threads and their calls to the parent process."""
        # Reentrant, because a signal handler may begin a call, too.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread_count = 0

    def start(self, function: Callable[[], Any]) -> "Future[Any]":
        """Call a function in a thread. Never waits."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, function))
            if self._thread_count < THREADS_MAX:
                threading.Thread(target=self._work, name="stablelog-aside", daemon=True).start()
                self._thread_count += 1
        return future

    def call(self, function: Callable[[], Any], limit_s: float) -> Any:
        """Call a function in a thread, and return its result.

        Raises:
            TimeoutError: the function did not return in time. Its thread is left behind.
        """
        future = self.start(function)
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


aside: Final = CallThreads()
AddressInfo = tuple[Any, ...]  # an item of `socket.getaddrinfo`


def numeric(host: str, port: int) -> list[AddressInfo] | None:
    """Return the addresses of a host that is given by its IP address; None for a name."""
    try:
        return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except socket.gaierror:
        return None


def resolve(host: str, port: int, limit_s: float) -> list[AddressInfo]:
    """Return the addresses of a host.

    Raises:
        OSError: there is no such host, or its name was not resolved in time.
    """
    found = numeric(host, port)
    if found is not None:
        return found
    try:
        return list(aside.call(lambda: named(host, port), limit_s))
    except TimeoutError:
        raise TimeoutError(f"the name {host!r} was not resolved in time") from None


def named(host: str, port: int) -> list[AddressInfo]:
    """Resolve the name of a host. May block for long."""
    return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))


def connect(host: str, port: int, limit_s: float) -> socket.socket:
    """Connect to a host, and return the socket, whose timeout is `limit_s`.

    Raises:
        OSError: no address of the host accepts a connection in time.
    """
    end = time.monotonic() + limit_s
    failure: OSError = OSError(f"the name {host!r} has no address")
    addresses = resolve(host, port, limit_s)
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
