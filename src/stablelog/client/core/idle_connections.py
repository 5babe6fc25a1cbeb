"""Idle connections to brokers, which a client keeps for reuse."""

from typing import Final

from stablelog.client.core.connection import BrokerConnection

IDLE_MAX: Final = 4  # maximum of idle connections to one broker that are kept for reuse


class IdleConnections:
    """The connections of one client that no call uses now and that are kept for reuse, by the address of their
    broker.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[BrokerConnection]] = {}

    def take(self, address: str) -> BrokerConnection | None:
        """Remove and return the connection to this address that was used last; None if there is none."""
        idle = self._idle.get(address)
        return idle.pop() if idle else None

    def add(self, connection: BrokerConnection) -> None:
        """Keep a connection for reuse; close it instead if it broke or still awaits a response. If the broker then has
        too many idle connections, close the one that was idle for longest.
        """
        idle = self._idle.setdefault(connection.address, [])
        if connection.is_closed or connection.is_awaiting:
            connection.close()
        else:
            idle.append(connection)
        if len(idle) > IDLE_MAX:
            idle.pop(0).close()  # close the connection that was idle for longest

    def close(self) -> None:
        """Close and drop all idle connections."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
