"""Which code answers which request.

A frame is decoded into the newest shape of its request, whatever version it came in; the handler answers in the
newest shape, and the answer is encoded in the version that was asked for.
"""

import asyncio
import importlib
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.broker import Broker
from stablelog.broker.connection import Connection
from stablelog.broker.long_messages import encoded
from stablelog.env.disk import Buffer
from stablelog.errors import Refused
from stablelog.wire.messages import API_VERSIONS, decode_request, encode_response, import_messages

log = logging.getLogger(__name__)

API_AND_VERSION = struct.Struct(">hhi")
API_VERSIONS_KEY = 18
APPENDING = frozenset({0, 8, 24, 28})  # their handlers take `Connection.appending` before they await anything

Handler = Callable[[Broker, Any, "Context"], Awaitable[Any]]

# The module in `stablelog.broker.apis` that answers each API.
HANDLERS = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    32: "describe_configs",
    35: "describe_log_dirs",
    37: "create_partitions",
    42: "delete_groups",
    44: "incremental_alter_configs",
    47: "offset_delete",
    60: "describe_cluster",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
    10001: "begin_joint",
    10002: "commit_joint",
    10003: "abort_joint",
    10004: "describe_cut",
    10005: "describe_commits",
}


class Context(NamedTuple):
    """Who asks, and in which version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    appending: asyncio.Lock  # of the connection: see `Connection.appending`


class Router:
    """Takes frames to handlers and answers back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {}
        self._prepared: set[tuple[int, int]] = set()  # APIs and versions whose modules are imported

    def prepare(self, api_key: int, version: int) -> None:
        """Import what an API needs in a version. Can be called in any thread."""
        if (api_key, version) not in self._prepared:
            if api_key not in self._handlers:
                module = importlib.import_module(f"stablelog.broker.apis.{HANDLERS[api_key]}")
                self._handlers[api_key] = module.handle
            import_messages(api_key, version)
            self._prepared.add((api_key, version))

    async def respond(self, connection: Connection, frame: Buffer) -> Sequence[Buffer] | None:
        """Answer one request. None where the client wants no answer.

        Raises:
            StablelogError: the frame is not a request that this broker speaks; the connection is to be closed.
        """
        api_key, api_version, correlation_id = API_AND_VERSION.unpack_from(frame)
        versions = API_VERSIONS.get(api_key)
        if versions is None:
            raise Refused(ErrorCode.unsupported_version, f"API {api_key} is not spoken here")
        if api_key == API_VERSIONS_KEY and not versions[0] <= api_version <= versions[1]:
            # Any version is answered, so that a newer client can find out what to speak: version 0, and error 35.
            from stablelog.broker.apis.api_versions import answer as what_is_spoken

            refusal = what_is_spoken(self._broker, ErrorCode.unsupported_version)
            self._broker.metrics.count_request(api_key)
            return encode_response(api_key, 0, correlation_id, refusal)
        if not versions[0] <= api_version <= versions[1]:
            raise Refused(
                ErrorCode.unsupported_version,
                f"API {api_key} is spoken in versions {versions[0]} to {versions[1]}, not {api_version}",
            )
        is_prepared = (api_key, api_version) in self._prepared
        if is_prepared and connection.decoding.is_brief(api_key, frame):
            client_id, request = decode_request(api_key, api_version, frame)
        else:
            client_id, request = await connection.decoding.request(
                self._broker.message_threads, api_key, api_version, frame, self.prepare
            )
        context = Context(
            api_key, api_version, correlation_id, client_id, connection.host, connection.appending
        )
        if api_key not in APPENDING:
            async with connection.appending:  # also where it is free: others may be waiting for it
                pass
        try:
            answer = await self._handlers[api_key](self._broker, request, context)
        except Exception:
            self._broker.check_after_fault()
            raise
        self._broker.metrics.count_request(api_key)
        if answer is None or isinstance(answer, list):
            return answer
        return await encoded(
            self._broker.message_threads,
            api_key,
            api_version,
            correlation_id,
            answer,
            request_size=len(frame),
        )
