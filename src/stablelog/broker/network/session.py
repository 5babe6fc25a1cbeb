"""Session: who the client of a connection is, and on which listener it has connected."""

from dataclasses import dataclass, field

from stablelog.broker.listener import LOCAL, Listener
from stablelog.security.principal import ANONYMOUS, Principal


@dataclass(slots=True)
class Session:
    """The client of a connection.

    Attributes:
        listener: the listener on which the client has connected.
        host: the address of the client.
        principal: the identity of the client. A login changes it.
    """

    listener: Listener = field(default=LOCAL)
    host: str = "?"
    principal: Principal = ANONYMOUS
