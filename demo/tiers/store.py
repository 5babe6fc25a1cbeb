"""The object store of the scene: the S3 server of the tests, in a process of its own, which counts requests by kind.

The process prints its address. For each line on its standard input it prints one line of JSON, the requests and bytes
since its start. It ends when its standard input ends.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter

from demo.tiers import BUCKET, TOPIC
from stablelog.testing.s3 import S3
from stablelog.testing.s3_messages import S3Request, S3Response

# Requests of multipart uploads are writes.
WRITES = ("put", "begin", "part", "complete", "abort")
PUT, GET_LOG, GET_INDEXES, GET_OTHER, LIST, DELETE = KINDS = (
    "PUT",
    "GET log",
    "GET indexes",
    "GET other",
    "LIST",
    "DELETE",
)
READS = (GET_LOG, GET_INDEXES)  # what a broker requests for a consumer


def kind_of(request: str, key: str) -> str:
    """Return the kind under which the scene counts a request.

    Args:
        request: the kind of request as the server names it.
        key: the key of the object. Log files and indexes count as such if they are of the scene's topic.
    """
    if request in WRITES:
        return PUT
    if request in ("list", "delete"):
        return request.upper()
    if f"t.{TOPIC}/" in key and key.endswith(".log"):
        return GET_LOG
    if f"t.{TOPIC}/" in key and key.endswith(".indexes"):
        return GET_INDEXES
    return GET_OTHER


class CountingS3(S3):
    """A server that also counts the bytes of requests by kind: those that it took and those that it returned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()

    def handle(self, request: S3Request) -> tuple[S3Response | None, int | None]:
        """Handle a request as the server does, and count it."""
        answer, cut_size = super().handle(request)
        kind = kind_of(request.kind, request.key)
        self.requests[kind] += 1
        self.sizes[kind] += len(request.body) + (0 if answer is None else len(answer.body))
        return answer, cut_size


async def run(delay_ms: float) -> None:
    """Serve until the standard input ends."""
    s3 = CountingS3(BUCKET, delay_s=delay_ms / 1000)

    async def answer_lines() -> None:
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            say(json.dumps({"requests": s3.requests, "sizes": s3.sizes}))

    await s3.serve(lambda: say(f"http://127.0.0.1:{s3.port}"), asyncio.ensure_future(answer_lines()))


def say(words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("delay_ms", type=float, help="before each request is handled")
    asyncio.run(run(parser.parse_args().delay_ms))
