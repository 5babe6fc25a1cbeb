"""The states of a connection, and the changes from one state to another that are possible.

A connection has three states at a time, which change independently of each other:

- `Life`: whether the connection accepts requests, and how it ends.
- `Intake`: what happens to the bytes that the client sends.
- `Sending`: whether responses are sent to the client.

The tables AFTER_LIFE, AFTER_INTAKE and AFTER_SENDING list every possible change. Any other change is a defect of the
broker, and `transition` asserts that it does not happen.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar


class Life(Enum):
    """The life of a connection: whether it accepts requests, and how it ends."""

    CONNECTING = 1  # The connection has no transport yet.
    OPEN = 2  # Requests are accepted.
    DRAINING = 3  # No request is accepted. The requests in flight are completed.
    ENDING = 4  # As DRAINING, and the connection is closed when all responses are sent.
    CUT = 5  # The broker has closed the connection, and its transport is ending.
    LOST = 6  # The transport has ended.


class Intake(Enum):
    """The intake of a connection: what happens to the bytes that the client sends."""

    READING = 1  # They arrive in the inbox, and complete requests are begun.
    HELD = 2  # Not read: the client is muted, leaves responses unread, or has too many requests in flight.
    TURN = 3  # Not read: the next request in the inbox waits for the next turn of the event loop.
    ROOM = 4  # Not read: the next request in the inbox waits for the memory budget.
    LARGE = 5  # They are the rest of a large request, and arrive in a buffer of its own.
    LARGE_HELD = 6  # Not read: the client leaves responses unread.
    LARGE_ROOM = 7  # Not read: the rest of the large request waits for the memory budget.
    DROPPING = 8  # They are read and dropped: the connection accepts no more requests.


class Sending(Enum):
    """Whether responses are sent to the client."""

    READY = 1  # Each response is sent as soon as it is computed and those before it are sent.
    LATER = 2  # The next turn of the event loop sends more.
    BLOCKED = 3  # The client leaves too many response bytes unread. No request is begun.


# In Python 3.11, to read a member through its class takes ten times as long as to compare two members. The connection
# compares states several times for each request, so it uses these names.
CONNECTING, OPEN, DRAINING, ENDING, CUT, LOST = Life
READING, HELD, TURN, ROOM, LARGE, LARGE_HELD, LARGE_ROOM, DROPPING = Intake
READY, LATER, BLOCKED = Sending

READ: Final = (READING, LARGE, DROPPING)  # the states in which the connection reads from the socket

State = TypeVar("State", Life, Intake, Sending)

AFTER_LIFE: Final[Mapping[Life, tuple[Life, ...]]] = {
    CONNECTING: (OPEN,),
    OPEN: (DRAINING, CUT, LOST),
    DRAINING: (ENDING, CUT, LOST),
    ENDING: (CUT, LOST),
    CUT: (LOST,),
    LOST: (),
}
AFTER_INTAKE: Final[Mapping[Intake, tuple[Intake, ...]]] = {
    READING: (HELD, TURN, ROOM, LARGE, DROPPING),
    HELD: (READING, DROPPING),
    TURN: (HELD, DROPPING),
    ROOM: (HELD, LARGE_HELD, DROPPING),
    LARGE: (READING, LARGE_HELD, LARGE_ROOM, DROPPING),
    LARGE_HELD: (LARGE, DROPPING),
    LARGE_ROOM: (LARGE_HELD, DROPPING),
    DROPPING: (),
}
AFTER_SENDING: Final[Mapping[Sending, tuple[Sending, ...]]] = {
    READY: (LATER, BLOCKED),
    LATER: (READY, BLOCKED),
    BLOCKED: (READY,),
}
_TABLES: Final[tuple[Mapping[Any, tuple[Enum, ...]], ...]] = (AFTER_LIFE, AFTER_INTAKE, AFTER_SENDING)
_AFTER: Final = {state: following for table in _TABLES for state, following in table.items()}


def transition(state: State, following: State) -> State:
    """Return `following`, the new state of a connection. Assert that the tables allow this state after `state`."""
    assert following in _AFTER[state], f"{following} does not follow {state}"
    return following
