"""Containment of callbacks: an unexpected exception in a connection's callback fails that connection only."""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from stablelog.broker.loop.tasks import Scope, Tasks

Callback = TypeVar("Callback", bound=Callable[..., None])


class Contained(Protocol):
    """A connection whose callbacks are contained."""

    background: Tasks

    @property
    def scope(self) -> Scope:
        """The scope that an unexpected exception fails."""


def contained(callback: Callback) -> Callback:
    """Wrap a callback that other code calls: an unexpected exception in the callback closes the connection."""

    @functools.wraps(callback)
    def wrapped(connection: Contained, *arguments: Any) -> None:
        try:
            callback(connection, *arguments)
        except Exception as error:  # noqa: BLE001 - the exception fails this connection only
            connection.background.report_unexpected("connection", connection.scope, error)

    return cast("Callback", wrapped)
