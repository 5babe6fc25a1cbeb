"""Decoding and encoding of long messages in threads, so that they do not block the event loop.

The message library kio takes 10 to 20 microseconds for each entry of a message. A message with thousands of entries
would block the event loop so long that all its clients would notice. The import of an API's message classes, at the
first request of the API, takes long as well and is also done in a thread.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from stablelog.broker.loop.threads import in_thread, in_thread_to_its_end
from stablelog.broker.loop.turns import Turn
from stablelog.env.disk import Buffer
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.messages import decode_request, encode_response, has_many_topics, produce_in_steps

Result = TypeVar("Result")

REQUEST_SIZE_MAX = 16 << 10  # The size in bytes of the largest request that is decoded on the event loop.
ENTRY_COUNT_MAX = 300  # The number of entries of the largest response that is encoded on the event loop.


class RequestDecoder:
    """Decodes the requests of one connection in the order in which they arrived.

    The caller must begin the work on a request without an await after the decoding, so that the requests also begin in
    this order.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._count = 0  # The number of requests that a thread decodes, or that wait for a thread.

    def is_brief(self, api_key: int, version: int, frame: Buffer) -> bool:
        """Return whether a request may be decoded on the event loop, because `decode_request` takes little time for it.

        This is so for a small request, and for a Produce request of few topics. If an earlier request of the connection
        is still being decoded, the result is False: the request must then wait for its turn in `decode_in_order`.
        """
        if self._count:
            return False
        return len(frame) <= REQUEST_SIZE_MAX or (
            api_key == ApiKey.PRODUCE and not has_many_topics(version, frame)
        )

    async def decode_in_order(
        self,
        threads: Executor,
        api: Api,
        version: int,
        frame: Buffer,
        prepare: Callable[[Api, int], None],
    ) -> tuple[str | None, Any]:
        """Decode a request after all earlier requests of the connection. A Produce request is decoded on the event loop
        in several turns, and any other request in a thread.

        Args:
            threads: the thread pool that decodes.
            api: the API of the request.
            version: the version of the request.
            frame: the bytes of the request.
            prepare: imports the classes of the API's messages, which takes long. Called first, in a thread, with the
                API and the version.

        Returns:
            (the client id, the request). The client id is None if the client gives itself no name.
        """
        self._count += 1
        try:
            async with self._turn:
                # Wait for the thread even if the caller is cancelled: until the thread has ended, the connection must
                # not use the memory of the frame for another request.
                await in_thread_to_its_end(threads, prepare, api, version)
                # Decode a Produce request on the event loop, so that no thread refers to its buffer: the buffer is used
                # for another request as soon as this request has ended.
                if api.key == ApiKey.PRODUCE:
                    return await _run_in_turns(produce_in_steps(version, frame))
                return await in_thread_to_its_end(threads, decode_request, api, version, frame)
        finally:
            self._count -= 1


async def _run_in_turns(steps: Generator[None, None, Result]) -> Result:
    """Run a generator to its end in several turns of the event loop, and return its result. Other tasks run between two
    of its steps.
    """
    turn = Turn()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        if turn.is_over:
            await turn.end()


async def encode_without_blocking(
    threads: Executor, api: Api, version: int, correlation_id: int, response: Any, *, request_size: int
) -> Sequence[Buffer]:
    """Return a response in encoded form, as `encode_response` does. If the response has so many entries that its
    encoding would block the event loop, it is encoded in a thread.

    Args:
        threads: the thread pool that encodes.
        api: the API of the response.
        version: the version of the request.
        correlation_id: the correlation id of the request.
        response: the response in the newest version of the API.
        request_size: bytes of the request. For most APIs, a small request has a short response, which need not be
            measured.
    """
    # A request has at least one byte for each of its entries.
    may_be_long = request_size > ENTRY_COUNT_MAX or api.has_long_response
    if may_be_long and _entry_count(response) > ENTRY_COUNT_MAX:
        return await in_thread(threads, encode_response, api, version, correlation_id, response)
    return encode_response(api, version, correlation_id, response)


def _entry_count(message: Any) -> int:
    """Return the number of entries in the arrays of a message, nested arrays included. The count stops above
    ENTRY_COUNT_MAX, so that a greater result is only a lower bound.
    """
    count = 0
    for name in _field_names(message.__class__):
        value = getattr(message, name)
        if type(value) is not tuple:
            continue
        count += len(value)
        for entry in value:
            if count > ENTRY_COUNT_MAX:
                return count
            if is_dataclass(entry):
                count += _entry_count(entry)
    return count


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
