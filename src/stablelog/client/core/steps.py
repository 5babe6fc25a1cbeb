"""Effects: the I/O operations that the steps of the client ask for, such as sending bytes.

Steps are generators. To do I/O, they yield an effect. The code that runs them (the *shell*) carries the effect out, and
sends its result back into the generator, or throws its error there. So the same steps run over blocking sockets, over
asyncio, and in tests over a script.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stablelog.wire.guard import Buffer

if TYPE_CHECKING:
    from stablelog.types import SecurityProtocol

Result = TypeVar("Result")


class Open(NamedTuple):
    """Open a connection to this address ("host:port"). The result is a connection of the class that the *shell* uses:
    the code that runs the steps, over blocking sockets or over asyncio.

    The shell raises UnavailableError if it cannot connect, and AuthenticationError if client and broker do not accept
    each other's certificates.

    Attributes:
        address: the address.
        probe: None for an ordinary connection with the security settings of the client. PLAINTEXT or SSL for a
            connection that only finds out the security protocol of a listener: without a login, and without a check of
            certificates.
    """

    address: str
    probe: "SecurityProtocol | None" = None


class Send(NamedTuple):
    """Send bytes, in several pieces, over a connection that `Open` has returned. There is no result. The code that
    carries this out raises OSError if it cannot send all of them.
    """

    connection: object
    pieces: list[Buffer]


class Receive(NamedTuple):
    """Receive exactly this many bytes from a connection that `Open` has returned. The result is a memoryview of the
    bytes. The code that carries this out raises OSError if they do not arrive in time.
    """

    connection: object
    size: int


class Pause(NamedTuple):
    """Pause for this many seconds. There is no result. A cancelled call ends the pause early."""

    seconds: float


class Call(NamedTuple):
    """Call a function that reads a file, draws random bytes, computes for milliseconds, or belongs to the user, so that
    the code that carries this out can call it in a thread. The result, or the error, is that of the function.
    """

    function: Callable[[], Any]


class Now(NamedTuple):
    """Read the clock. The result is a time in seconds, counted from an arbitrary moment. The clock never moves back."""


class Emit(NamedTuple):
    """Hand an item, such as a transaction that was read, to the caller of the steps, the generator that yields this
    object. The generator continues when the caller requests the next item. There is no result.
    """

    item: Any


NOW: Final = Now()
Effect = Open | Send | Receive | Pause | Call | Now | Emit
Steps = Generator[Effect, Any, Result]


def as_steps(call: Callable[[], Result]) -> Steps[Result]:
    """Return steps (a generator) that only call a function and return its result, for code that expects steps. They
    yield no effect (I/O operation).
    """
    return call()
    yield  # makes this function a generator
