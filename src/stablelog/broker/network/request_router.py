"""The interface through which a connection calls the router of requests."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from stablelog.env.disk import Buffer
from stablelog.wire.api import Api


class RequestRouter(Protocol):
    """Passes each request to the handler of its API, and returns the encoded response."""

    @property
    def apis(self) -> Mapping[int, Api]:
        """The APIs that the broker serves, by API key."""

    def respond(self, connection: Any, frame: Buffer) -> Awaitable[Sequence[Buffer] | None]:
        """Handle a request of a connection. Return the response; None if the client expects none.

        Raises:
            StablelogError: the request is not valid. The connection has to be closed.
        """
