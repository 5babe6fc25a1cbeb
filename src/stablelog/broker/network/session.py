"""Session: who the client of a connection is, and on which listener it has connected."""

from dataclasses import dataclass

from stablelog.security.login import Login
from stablelog.security.principal import ANONYMOUS, Principal


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener."""

    name: str
    is_sasl: bool


@dataclass(slots=True)
class Session:
    """The client of a connection."""

    listener: Listener = Listener("PLAINTEXT", is_sasl=False)
    host: str = "?"
    principal: Principal = ANONYMOUS
    login: Login | None = None
