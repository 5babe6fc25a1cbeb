"""The responses of one connection: a queue in the order of the requests, sent in parts of at most about 1 MiB."""

import asyncio
import struct
from collections import deque
from collections.abc import Iterator, Sequence

from stablelog.broker.network import connection_states as states
from stablelog.broker.network.connection_states import transition
from stablelog.env.disk import Buffer

LENGTH = struct.Struct(">i")
WRITE_SIZE = 1 << 20  # The number of bytes of a large response that are passed to the transport at once.
# The number of response bytes that one connection sends before other connections get their turn: the event loop copies
# these bytes, and reads them from disk if necessary.
TURN_SIZE = 4 << 20


class QueuedResponse:
    """One response in the queue of its connection. It is added when the request begins, so that responses are sent in
    the order of the requests.

    Attributes:
        done: whether the response is computed. It is sent after all responses before it in the queue.
        buffers: the bytes of the response; None if the client expects no response.
    """

    __slots__ = ("buffers", "done")

    def __init__(self) -> None:
        self.done = False
        self.buffers: Sequence[Buffer] | None = None


class Responses:
    """The responses that a connection has not sent to its client yet, in the order of the requests.

    Attributes:
        state: whether responses can be sent.
        unblocked: an event that is set while responses may be sent. It is not set while the client leaves too many
            response bytes unread.
        blocked_since: when the client last began to leave too many bytes unread, in seconds of the event loop.
    """

    def __init__(self) -> None:
        self.state = states.READY
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.blocked_since = 0.0
        self._answers: deque[QueuedResponse] = deque()
        # The parts of the current response that are not sent yet.
        self._unsent: deque[Sequence[Buffer]] = deque()

    def __len__(self) -> int:
        """The number of requests whose responses are not being sent yet."""
        return len(self._answers)

    @property
    def are_sent(self) -> bool:
        """Whether the responses to all requests are sent completely."""
        return not self._answers and not self._unsent

    def add_response(self) -> QueuedResponse:
        """Add an entry for the response to a new request to the end of the queue, and return it. The response is put
        into the entry when it is computed.
        """
        answer = QueuedResponse()
        self._answers.append(answer)
        return answer

    def send_ready(self, transport: asyncio.Transport) -> bool:
        """Send the responses that are ready, until the client has too many unread bytes.

        Returns:
            Whether ready responses are left for the next turn of the event loop. In that turn the caller calls
            `end_turn`, and then this method again.
        """
        size = 0
        while self.state is states.READY:
            if size + WRITE_SIZE > TURN_SIZE:
                self.state = transition(self.state, states.LATER)
                return True
            part = self._next_part()
            if part is None:
                break
            size += sum(map(len, part))
            transport.writelines(part)
        return False

    def end_turn(self) -> None:
        """End the present turn of sending: the next turn of the event loop has begun. If `send_ready` has left
        responses for this turn, it may be called again now.
        """
        if self.state is states.LATER:
            self.state = transition(self.state, states.READY)

    def block_sending(self, now_s: float) -> None:
        """Send nothing more, because the client leaves too many response bytes unread."""
        self.state = transition(self.state, states.BLOCKED)
        self.unblocked.clear()
        self.blocked_since = now_s

    def unblock_sending(self) -> None:
        """Allow sending again after `block_sending`, because the client has read enough or has left. Has no effect if
        sending was not blocked.
        """
        if self.state is states.BLOCKED:
            self.state = transition(self.state, states.READY)
            self.unblocked.set()

    def _next_part(self) -> Sequence[Buffer] | None:
        """Remove the next bytes to write from the queue, and return them: a whole response, or a part of a large one.
        None if the next response is not computed yet, or if there is none.
        """
        while not self._unsent:
            if not self._answers or not self._answers[0].done:
                return None
            buffers = self._answers.popleft().buffers
            if buffers is not None:
                size = sum(map(len, buffers))
                framed = [LENGTH.pack(size), *buffers]
                if size <= WRITE_SIZE:
                    return framed
                self._unsent.extend(_split_for_writes(framed))
        return self._unsent.popleft()

    def clear(self) -> None:
        """Drop all responses, because the connection is lost."""
        self._answers.clear()
        self._unsent.clear()


def _split_for_writes(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Split or join the buffers of a response into parts of about WRITE_SIZE bytes. Each part is one write to the
    transport, the event loop's object for the socket.

    Yields:
        The buffers of one part.
    """
    part: list[Buffer] = []
    room = WRITE_SIZE
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            yield [*part, view[:room]]
            view, part, room = view[room:], [], WRITE_SIZE
        if len(view):
            part.append(view)
            room -= len(view)
    if part:
        yield part
