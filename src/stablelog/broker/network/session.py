"""Session: who the client of a connection is, and on which listener it has connected."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stablelog.broker.settings.listeners import LOCAL, Listener
from stablelog.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from stablelog.security.login import Login


@dataclass(slots=True)
class Session:
    """The session of one connection: what the handlers of its requests know of the client.

    Attributes:
        listener: the listener on which the client has connected.
        host: the address of the client.
        principal: the identity of the client. A login changes it.
        login: the state of the client's login; None if the listener has no SASL.
        authenticating: a lock that a SASL request of the login holds until its answer is known. Later requests wait for
            the lock, because a client may send them without waiting for that answer.
    """

    listener: Listener = field(default=LOCAL)
    host: str = "?"
    principal: Principal = ANONYMOUS
    login: "Login | None" = None
    authenticating: asyncio.Lock = field(default_factory=asyncio.Lock)
