"""Faults for the next requests to the simulated S3 server, and holds, by which a test stops a single request."""

import asyncio
import threading
from dataclasses import dataclass

HELD_S_MAX = 60.0  # How long a test waits for a request by default. It is a bound for a broken program.


@dataclass(slots=True)
class S3Fault:
    """A fault for the next requests of one kind: how the server responds to them, and whether it carries them out.

    Attributes:
        kind: `put`, `get`, `head`, `delete`, `list`, `begin`, `part`, `complete` or `abort`. The last four are the
            requests of multipart uploads.
        key: a regular expression. The fault applies to requests whose key contains a match.
        status: the HTTP status of the answer. With 0 there is no answer: the connection is closed.
        is_applied: whether the server carries the request out, as if it had no fault, before it answers with the fault.
        code: the S3 error code in the answer, such as `ExpiredToken`; empty for the usual error code of the status.
        cut_size: if a number: the server carries the request out and answers without an error, but closes the
            connection after this many bytes of the answer's body.
        count: the number of requests that fail.
    """

    kind: str
    key: str = ""
    status: int = 503
    is_applied: bool = False
    cut_size: int | None = None
    count: int = 1
    code: str = ""


class S3Hold:
    """A hold, which stops one request. The server receives the request, wakes the test that waits for it, and responds
    only when the test decides so. It responds to other requests meanwhile.

        hold = s3.hold(S3Hold("put", "/manifest/", is_applied=True))
        hold.wait()  # the manifest is created, and the client has no answer
        ...
        hold.drop()

    Args:
        kind: the kind of request, as in `S3Fault`, or several: `put|complete`.
        key: a regular expression, as in `S3Fault`.
        is_applied: whether the server carries the request out before it stops it, so that only the answer is missing.
        number: which of the requests of this kind and key is stopped; 1 is the next one.
    """

    def __init__(self, kind: str, key: str = "", *, is_applied: bool = False, number: int = 1) -> None:
        self.kind = kind
        self.key = key
        self.is_applied = is_applied
        self.number = number
        self._stopped_key = ""
        self._has_come = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._goes_on: asyncio.Future[bool] | None = None

    def wait(self, timeout_s: float = HELD_S_MAX) -> str:
        """Wait until the server has received the request and stopped it. Return the request's key.

        Raises:
            TimeoutError: no such request has come within `timeout_s` seconds.
        """
        if not self._has_come.wait(timeout_s):
            raise TimeoutError(
                f"no {self.kind} request for a key like {self.key!r} has come within {timeout_s:g} s"
            )
        return self._stopped_key

    def release(self) -> None:
        """Let the stopped request continue: the server carries it out now, unless it did so before (`is_applied`), and
        responds.
        """
        self._decide(goes_on=True)

    def drop(self) -> None:
        """Close the connection of the stopped request without an answer. If the server has not carried the request out
        before (`is_applied`), it never does.
        """
        self._decide(goes_on=False)

    def _decide(self, *, goes_on: bool) -> None:
        assert self._loop is not None, "no request is stopped yet: call wait first"
        self._loop.call_soon_threadsafe(self.decide, goes_on)

    def decide(self, goes_on: bool) -> None:
        """Let the stopped request continue (`goes_on` is True), or have its connection closed. Only the first call has
        an effect. It runs in the event loop of the server.
        """
        if self._goes_on is not None and not self._goes_on.done():
            self._goes_on.set_result(goes_on)

    async def stop_request(self, key: str) -> bool:
        """Stop the request of this key until the test decides. Return True if the request continues, and False if the
        server has to close the connection without an answer.
        """
        self._loop = asyncio.get_running_loop()
        self._goes_on = self._loop.create_future()
        self._stopped_key = key
        self._has_come.set()
        return await self._goes_on
