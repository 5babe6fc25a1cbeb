"""Effects: what the steps of the client ask of the shell that runs them.

Steps are generators. A step that needs the outside yields an effect, and the shell sends the effect's result back, or
throws the effect's error. So the same steps run over blocking sockets, over asyncio, and in tests over a script.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stablelog.wire.guard import Buffer

if TYPE_CHECKING:
    from stablelog.types import SecurityProtocol

Result = TypeVar("Result")


class Open(NamedTuple):
    """Open a connection to this address ("host:port"). The result is a `Connection` of the shell.

    The shell raises UnavailableError if no connection can be made, and AuthenticationError if client and broker do not
    accept each other's certificates.

    Attributes:
        address: the address.
        probe: PLAINTEXT or SSL for a connection that finds out what the listener speaks, without a login and without a
            check of certificates; None for a connection with the client's own security settings.
    """

    address: str
    probe: "SecurityProtocol | None" = None


class Send(NamedTuple):
    """Send bytes, in several pieces. There is no result.

    The shell raises OSError if they cannot be sent completely. `connection` is one of its connections.
    """

    connection: object
    pieces: list[Buffer]


class Receive(NamedTuple):
    """Receive exactly this many bytes. The result is a memoryview of them.

    The shell raises OSError if they do not arrive in time. `connection` is one of its connections.
    """

    connection: object
    size: int


class Pause(NamedTuple):
    """Wait this many seconds. There is no result. The pause may end early if the call is cancelled."""

    seconds: float


class Call(NamedTuple):
    """Call a function that reads a file, draws random bytes, computes for milliseconds, or is the user's. The result is
    its result. The shell raises what the function raises.
    """

    function: Callable[[], Any]


class Now(NamedTuple):
    """Read the clock. The result is the seconds since an arbitrary moment; the clock never goes back."""


class Emit(NamedTuple):
    """Hand an item to the caller, and go on when the caller asks for the next one. There is no result."""

    item: Any


NOW: Final = Now()
Effect = Open | Send | Receive | Pause | Call | Now | Emit
Steps = Generator[Effect, Any, Result]


def as_steps(call: Callable[[], Result]) -> Steps[Result]:
    """Make steps without effects of a function."""
    return call()
    yield  # makes this function a generator
