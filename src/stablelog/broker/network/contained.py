"""Containment of callbacks: if a callback of a connection raises an unexpected exception, only this connection is
closed.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from stablelog.broker.loop.tasks import Scope, Tasks

Callback = TypeVar("Callback", bound=Callable[..., None])


class Contained(Protocol):
    """A connection whose callbacks are decorated with `contained`, so that an unexpected exception in one of them
    closes only this connection.
    """

    background: Tasks

    @property
    def scope(self) -> Scope:
        """The scope of the callbacks: the part of the broker that fails if one of them raises an unexpected exception.
        It is this connection only.
        """


def contained(callback: Callback) -> Callback:
    """Decorate a callback of a connection. If the callback raises an unexpected exception, the exception is logged and
    only this connection is closed.
    """

    @functools.wraps(callback)
    def wrapped(connection: Contained, *arguments: Any) -> None:
        try:
            callback(connection, *arguments)
        except Exception as error:  # noqa: BLE001 - the exception fails this connection only
            connection.background.report_unexpected("connection", connection.scope, error)

    return cast("Callback", wrapped)
