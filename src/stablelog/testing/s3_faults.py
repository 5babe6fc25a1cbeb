"""The faults that a test can request for the S3 server's next requests, and the stops of single requests."""

import asyncio
import threading
from dataclasses import dataclass

HELD_S_MAX = 60.0  # How long a test waits for a request by default. It is a bound for a broken program.


@dataclass(slots=True)
class S3Fault:
    """A fault for the next requests of one kind: what the server responds, and whether it applies the requests.

    Attributes:
        kind: `put`, `get`, `head`, `delete`, `list`, `begin`, `part`, `complete` or `abort`. The last four are the
            requests of multipart uploads.
        key: a regular expression. The fault applies to requests whose key contains a match.
        status: the HTTP status of the answer. With 0 there is no answer: the connection is closed.
        is_applied: whether the server applies the request before it answers with the fault.
        code: the code in the answer, such as `ExpiredToken`; empty for the usual one of the status.
        cut_size: bytes of the body after which the answer ends; None for the whole answer, as without a fault.
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
    """A stop of one request. The server receives the request, tells the test, and responds only when the test lets it.
    It responds to other requests meanwhile.

        hold = s3.hold(S3Hold("put", "/manifest/", is_applied=True))
        hold.wait()  # the manifest is created, and the client has no answer
        ...
        hold.drop()

    Args:
        kind: the kind of request, as in `S3Fault`, or several: `put|complete`.
        key: a regular expression, as in `S3Fault`.
        is_applied: whether the server applies the request before it stops.
        number: which of the matching requests is stopped; 1 is the next one.
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
        """Wait until the request has come. Return its key.

        Raises:
            TimeoutError: it has not come in time.
        """
        if not self._has_come.wait(timeout_s):
            raise TimeoutError(
                f"no {self.kind} request for a key like {self.key!r} has come within {timeout_s:g} s"
            )
        return self._stopped_key

    def release(self) -> None:
        """Let the request continue: the server applies it now, unless it was applied before, and responds."""
        self._decide(goes_on=True)

    def drop(self) -> None:
        """Close the connection without an answer. If the request is not applied yet, it never will be."""
        self._decide(goes_on=False)

    def _decide(self, *, goes_on: bool) -> None:
        assert self._loop is not None, "wait for the request first"
        self._loop.call_soon_threadsafe(self.decide, goes_on)

    def decide(self, goes_on: bool) -> None:
        """Decide whether the request continues (`goes_on`) or its connection is closed. The first decision counts. Runs
        in the event loop of the server.
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
