"""The open connections of a broker, and their limits."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from stablelog.broker.loop.tasks import Scope


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a connection."""

    request_size_max: int
    connection_count_max: int
    connection_count_per_host_max: int
    in_flight_count_max: int
    idle_ms_max: int
    receive_ms_max: int
    handshake_ms_max: int = 10_000
    login_size_max: int = 524_288  # of a request before the login


class Member(Protocol):
    """An open connection, or one whose TLS handshake is under way."""

    host: str

    @property
    def scope(self) -> Scope:
        """The scope of the connection's work."""

    async def finish(self) -> None:
        """Accept no more requests, and close when the responses have been sent."""

    def close(self, why: str | None = None) -> None:
        """Close the connection at once."""


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """The client's address, and its address with its port; "?" if the client is gone already."""
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), f"{peer[0]}:{peer[1]}") if peer else ("?", "?")


def limit_reached(members: Collection[Member], limits: Limits, host: str) -> str | None:
    """The limit that a further connection from `host` would exceed, as `setting=value`; None if it may be opened."""
    if len(members) >= limits.connection_count_max:
        return f"max.connections={limits.connection_count_max}"
    if sum(member.host == host for member in members) >= limits.connection_count_per_host_max:
        return f"max.connections.per.ip={limits.connection_count_per_host_max}"
    return None
