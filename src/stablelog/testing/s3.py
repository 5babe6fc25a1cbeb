"""An S3 server for tests. It starts in a fraction of a second, counts requests, and lets chosen requests fail or wait.

    with serve_s3("bucket") as s3:
        store = open_store("s3://bucket/prefix", allow_http=True, options=s3.options)
        s3.fail(S3Fault("put", "manifest/", status=503, is_applied=True))
        s3.hold(S3Hold("put", ".log"))
        s3.refuse()

The server keeps objects in memory and accepts any credentials. It supports the requests that stablelog sends: objects,
ranges, conditional puts, multipart uploads and listings. It also runs as a program, for measurements:

    python -m stablelog.testing.s3 --bucket bucket --delay-ms 30

The program refuses connections after the signal SIGUSR1, and accepts them again after SIGUSR2. It keeps the objects
meanwhile.
"""

import argparse
import asyncio
import contextlib
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from stablelog.testing.s3_bucket import S3Bucket
from stablelog.testing.s3_faults import S3Fault, S3Hold
from stablelog.testing.s3_link import S3Link
from stablelog.testing.s3_messages import S3Request, S3Response, error_answer, read_request

HEADER_SIZE_MAX = 64 << 10
HOST = "127.0.0.1"
FAULT_CODES = {403: "AccessDenied", 409: "ConditionalRequestConflict"}  # By the status of a fault.


@dataclass
class S3(S3Bucket):
    """The state of a server: one bucket and its connections. Tests may change every attribute while it runs.

    Attributes:
        counts: the number of requests of each kind, such as `put` (`S3Fault.kind` has the list).
        keys: the number of requests by kind and key.
        delay_s: the delay before each request is handled, in seconds.
        port: the port on 127.0.0.1; 0 until the server runs.
        is_silent: whether the server answers no request. A request that has come while this was set is never applied
            or answered, as if the network had lost it.
        silent_count: how many requests have come while `is_silent` was set.
        up: the simulated network link from the clients to the server; its rate has no limit unless a test sets one.
        down: the simulated network link from the server to the clients.
    """

    counts: Counter[str] = field(default_factory=Counter)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    delay_s: float = 0.0
    port: int = 0
    is_silent: bool = False
    silent_count: int = 0
    up: S3Link = field(default_factory=S3Link)
    down: S3Link = field(default_factory=S3Link)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._faults: list[S3Fault] = []
        self._holds: list[S3Hold] = []
        self._held: list[S3Hold] = []  # Those that have stopped a request.
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def options(self) -> dict[str, str]:
        """Options for an S3 store of the library obstore, with which it uses this server."""
        return {
            "aws_endpoint": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
        }

    def fail(self, fault: S3Fault) -> None:
        """Let the next requests fail that the fault describes."""
        self._faults.append(fault)

    def clear_faults(self) -> None:
        """Let no request fail any more."""
        self._faults.clear()

    def hold(self, hold: S3Hold) -> S3Hold:
        """Stop the next request that `hold` describes until the test lets it continue. Return `hold`: its `wait` waits
        for the request, and its `release` or `drop` decides about the request.
        """
        self._holds.append(hold)
        return hold

    def refuse(self) -> None:
        """Close all connections, and refuse new ones. Any thread may call this, except the one that runs the server,
        which would wait for itself.
        """
        self._in_loop(self.close_port)

    def accept(self) -> None:
        """Accept connections again after `refuse`. Any thread may call this, except the one that runs the server, which
        would wait for itself.
        """
        assert self._loop is not None, "the server does not run"
        asyncio.run_coroutine_threadsafe(self.open_port(), self._loop).result()

    def break_connections(self) -> None:
        """Close all connections, as a restart of the server does. Any thread may call this, except the one that runs
        the server, which would wait for itself.
        """
        self._in_loop(self._break_connections)

    def _in_loop(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        assert self._loop is not None, "the server does not run"
        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, request: S3Request) -> tuple[S3Response | None, int | None]:
        """Carry out a request, or apply to it the fault that a test has set for such requests.

        Returns:
            A pair. First the answer; None if the server closes the connection without one. Second the number of bytes
            after which the answer's body is cut off; None if the whole body is sent.
        """
        kind = request.kind
        self.counts[kind] += 1
        self.keys[kind, request.key] += 1
        fault = self._fault_of(kind, request.key)
        if fault is None:
            return self.apply(request), None
        answer = self.apply(request) if fault.is_applied or fault.cut_size is not None else None
        if fault.cut_size is not None:
            return answer, fault.cut_size
        if not fault.status:
            return None, None
        return error_answer(fault.status, fault.code or FAULT_CODES.get(fault.status, "SlowDown")), None

    def _fault_of(self, kind: str, key: str) -> S3Fault | None:
        for fault in self._faults:
            if fault.kind == kind and re.search(fault.key, key):
                fault.count -= 1
                if not fault.count:
                    self._faults.remove(fault)
                return fault
        return None

    def _hold_of(self, kind: str, key: str) -> S3Hold | None:
        for hold in self._holds:
            if kind in hold.kind.split("|") and re.search(hold.key, key):
                hold.number -= 1
                if not hold.number:
                    self._holds.remove(hold)
                    self._held.append(hold)
                    return hold
        return None

    # -- connections -------------------------------------------------------------------------------------------

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._conversations[task] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await read_request(reader, writer, self.up)) is not None:
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.is_silent:
                    self.silent_count += 1
                    await reader.read()  # up to the end of the connection
                    break
                answer, cut_size = await self._answer(request)
                if answer is None:
                    break
                writer.write(answer.head())
                await self.down.send(writer, answer.body if cut_size is None else answer.body[:cut_size])
                if cut_size is not None:
                    break
        writer.close()
        del self._conversations[task]

    async def _answer(self, request: S3Request) -> tuple[S3Response | None, int | None]:
        """Handle a request as `handle` does, and return the same pair: the answer, and the number of bytes after which
        it is cut off. If a test holds the request, wait until the test decides. If the test drops the request, return
        (None, None): the connection is closed without an answer.
        """
        hold = self._hold_of(request.kind, request.key)
        if hold is not None and not hold.is_applied and not await hold.stop_request(request.key):
            return None, None
        answer, cut_size = self.handle(request)
        if hold is not None and hold.is_applied and not await hold.stop_request(request.key):
            return None, None
        return answer, cut_size

    async def open_port(self) -> None:
        """Listen for connections. Called in the server's event loop."""
        listening = _bound(self.port)
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(self.converse, sock=listening, limit=HEADER_SIZE_MAX)

    def close_port(self) -> None:
        """Close the port and all connections. Called in the server's event loop."""
        assert self._server is not None
        self._server.close()
        self._break_connections()

    def _break_connections(self) -> None:
        for writer in self._conversations.values():
            writer.close()

    async def serve(self, ready: Callable[[], object], stopped: Awaitable[object], port: int = 0) -> None:
        """Serve the requests of all connections until `stopped` is done. Call `ready` when the port is open."""
        self._loop, self.port = asyncio.get_running_loop(), port
        with contextlib.ExitStack() as stack:
            if sys.platform == "linux":
                # No other process gets the port while the server refuses connections. Only on Linux, two sockets can
                # have the same port if one of them listens.
                self.port = stack.enter_context(_bound(port)).getsockname()[1]
            await self.open_port()
            ready()
            await stopped
            for hold in self._held:
                hold.decide(goes_on=False)
            self.close_port()
            await asyncio.gather(*self._conversations)


def _bound(port: int) -> socket.socket:
    # asyncio disables Nagle's algorithm only for a socket that was created with this protocol. With it, an answer takes 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


@contextlib.contextmanager
def serve_s3(bucket: str = "bucket", *, delay_s: float = 0.0) -> Iterator[S3]:
    """Context with an S3 server, which runs in a thread of this process until the `with` block ends.

    Args:
        bucket: the name of the bucket.
        delay_s: the delay before each request is handled, in seconds.

    Yields:
        The state of the server, by which a test controls it.
    """
    s3 = S3(bucket, delay_s=delay_s)
    is_up = threading.Event()
    stops: list[Callable[[], object]] = []

    async def work() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        await s3.serve(is_up.set, stopped.wait())

    thread = threading.Thread(target=asyncio.run, args=(work(),), name="s3", daemon=True)
    thread.start()
    is_up.wait()
    try:
        yield s3
    finally:
        stops[0]()
        thread.join()


def main() -> None:
    """Serve as a program, until it is interrupted."""
    parser = argparse.ArgumentParser(description="An S3 server for tests. It keeps objects in memory.")
    parser.add_argument("--bucket", default="bucket", help="the name of its only bucket")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0 for any")
    parser.add_argument("--delay-ms", type=float, default=0, help="before each request is handled")
    parser.add_argument("--rate", type=float, help="bytes a second of each direction of the link")
    arguments = parser.parse_args()
    s3 = S3(
        arguments.bucket,
        delay_s=arguments.delay_ms / 1000,
        up=S3Link(arguments.rate),
        down=S3Link(arguments.rate),
    )

    async def work() -> None:
        loop, opened = asyncio.get_running_loop(), []
        loop.add_signal_handler(signal.SIGUSR1, s3.close_port)
        loop.add_signal_handler(signal.SIGUSR2, lambda: opened.append(loop.create_task(s3.open_port())))
        await s3.serve(
            lambda: print(f"http://127.0.0.1:{s3.port}", flush=True),  # noqa: T201 - for the process that starts this one
            loop.create_future(),
            arguments.port,
        )

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work())


if __name__ == "__main__":
    main()
