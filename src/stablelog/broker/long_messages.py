"""What would hold the event loop for long about a request or a response is done in a thread.

That is to import what an API needs, when it is asked for the first time; and to decode and encode what names many things.

kio takes 10 to 20 microseconds for each entry of a message: a request or a response with thousands of them would hold
the event loop for as long as all its clients notice.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from stablelog.broker.tasks import in_thread, in_thread_to_its_end
from stablelog.env.disk import Buffer
from stablelog.wire.messages import PRODUCE_KEY, decode_request, encode_response

REQUEST_SIZE_MAX = 16 << 10  # bytes of a request that is decoded on the event loop
ENTRY_COUNT_MAX = 300  # entries of a response that is encoded there
# Their responses can be much longer than their requests: Metadata, OffsetFetch, the describing and listing APIs.
LONG_RESPONSES = frozenset({3, 9, 15, 16, 32, 61, 65, 66, 10004, 10005})


class Decoding:
    """Decodes the requests of one connection, in the order in which they came.

    The caller begins the request without an await after it is decoded, so requests are begun in their order, too.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._count = 0  # requests that are in the thread, or wait for it

    def is_brief(self, api_key: int, frame: Buffer) -> bool:
        """Whether a request can be decoded on the event loop, by `decode_request`: a small one, with none before it."""
        return self._count == 0 and (api_key == PRODUCE_KEY or len(frame) <= REQUEST_SIZE_MAX)

    async def request(
        self,
        threads: Executor,
        api_key: int,
        version: int,
        frame: Buffer,
        prepare: Callable[[int, int], None],
    ) -> tuple[str | None, Any]:
        """As `decode_request`, in a thread, once all requests before have been decoded.

        Args:
            threads: decode.
            api_key: of the request.
            version: of the request.
            frame: the request.
            prepare: called with the API's key and version before, in a thread.
        """
        self._count += 1
        try:
            async with self._turn:
                # A caller that is cancelled waits for the thread: the frame counts as memory of its connection until then.
                await in_thread_to_its_end(asyncio.Lock(), threads, prepare, api_key, version)
                if api_key == PRODUCE_KEY:  # whose frame is used again as soon as the request has ended
                    return decode_request(api_key, version, frame)
                return await in_thread_to_its_end(
                    asyncio.Lock(), threads, decode_request, api_key, version, frame
                )
        finally:
            self._count -= 1


async def encoded(
    threads: Executor, api_key: int, version: int, correlation_id: int, response: Any, *, request_size: int
) -> Sequence[Buffer]:
    """As `encode_response`; in a thread if the response is long."""
    may_be_long = request_size > REQUEST_SIZE_MAX or api_key in LONG_RESPONSES
    if may_be_long and _entry_count(response) > ENTRY_COUNT_MAX:
        return await in_thread(threads, encode_response, api_key, version, correlation_id, response)
    return encode_response(api_key, version, correlation_id, response)


def _entry_count(message: Any) -> int:
    """How many entries a message has, at all depths; counted until they are more than ENTRY_COUNT_MAX."""
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
