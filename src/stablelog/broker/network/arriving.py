"""The bytes that a connection has received and that belong to requests on which work has not begun. Small requests are
in the inbox (a buffer), and a large request is in a frame (a buffer for it alone).
"""

from stablelog.broker.network.budget import MemoryClaim
from stablelog.broker.network.inbox import Inbox, Inboxes
from stablelog.broker.network.responses import LENGTH
from stablelog.env.disk import Buffer


class ArrivingRequests:
    """The requests of one connection that are still arriving, or that wait for memory of the memory budget
    (`broker.network.budget`).

    Small requests, and the beginning of a large one, arrive in the inbox. A request that is too large for the inbox
    arrives in a frame (buffer) of its own, and takes memory of the budget: its *claim*.

    Attributes:
        inbox: the buffer with the bytes of small requests, and with the first bytes of a large one.
        claim: the claim of the request that arrives in a frame, or that waits for memory; None if there is none.
        since: when the incomplete request began to arrive, in seconds of the event loop; None if none is incomplete.
    """

    __slots__ = ("_frame", "_frame_filled", "claim", "inbox", "since")

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.claim: MemoryClaim | None = None
        self.since: float | None = None
        self._frame: memoryview | None = None
        self._frame_filled = 0

    @property
    def has_frame(self) -> bool:
        """Whether a large request arrives in a frame (buffer)."""
        return self._frame is not None

    @property
    def receives_since(self) -> float | None:
        """When the incomplete request began to arrive, in seconds of the event loop; None if no request is incomplete.

        While a request waits for memory of the budget, this time moves forward, because the wait does not count against
        the time limit of the request.
        """
        return self.since if self.claim is None else self.claim.since

    def free_space(self, inboxes: Inboxes) -> memoryview:
        """Return the buffer into which the next bytes are received: the unfilled rest of the frame (the buffer of a
        large request), or the free part of the inbox.
        """
        if self._frame is None:
            return self.inbox.free_space(inboxes)
        assert self.claim is not None
        return self._frame[self._frame_filled : self.claim.held]

    def expect_large(self, claim: MemoryClaim) -> bool:
        """Move a request whose first bytes are in the inbox to a frame (a buffer for it alone), because it is too large
        for the inbox. The rest of it arrives in the frame.

        Returns:
            True if the frame is open. False if the memory budget has too few bytes: the claim then waits, and the
            caller calls `open_frame` when the budget has granted the bytes.
        """
        self.claim = claim
        if self.since is not None:
            claim.since = self.since
        if not claim.budget.grow_claim(claim, self.inbox.filled - LENGTH.size):
            return False
        self.open_frame()
        return True

    def open_frame(self) -> None:
        """Get a frame (buffer) for the large request, and move to it the bytes of the request that have arrived in the
        inbox.
        """
        assert self.claim is not None
        self._frame = self.claim.budget.frames.take_frame(self.claim.size)
        part = self.inbox.buffer[LENGTH.size : self.inbox.filled]
        self._frame[: len(part)] = part
        self._frame_filled = len(part)
        self.inbox.clear()

    def fill_frame(self, size: int) -> tuple[Buffer, MemoryClaim] | None:
        """Count `size` bytes that have arrived in the frame, the buffer of the large request.

        Returns:
            (the bytes of the request, its claim on the memory budget) if the request is complete now; None if more
            bytes must arrive.
        """
        frame, claim = self._frame, self.claim
        assert frame is not None
        assert claim is not None
        self._frame_filled += size
        claim.arrived = self._frame_filled
        if self._frame_filled < claim.size:
            return None
        self._frame = self.claim = self.since = None
        return frame.toreadonly(), claim

    def has_room(self) -> bool:
        """Whether more bytes of the large request may arrive in its frame (buffer). If not, the request's claim waits
        for memory of the memory budget.
        """
        claim = self.claim
        assert claim is not None
        return self._frame_filled < claim.held or claim.budget.grow_claim(claim, self._frame_filled)

    def take_from_inbox(self) -> tuple[Buffer, MemoryClaim] | None:
        """Remove the request that has waited for memory of the budget from the inbox.

        Returns:
            (the bytes of the request, its claim on the budget). None if the request is too large for the inbox, so that
            it needs a frame (a buffer of its own); nothing is removed then.
        """
        claim = self.claim
        assert claim is not None
        end = LENGTH.size + claim.size
        if end > len(self.inbox.buffer):
            return None
        request = bytes(self.inbox.buffer[LENGTH.size : end])
        self.inbox.drop_bytes(end)
        self.claim = self.since = None
        return request, claim

    def drop(self) -> None:
        """Drop all bytes that have arrived, and return the request's memory to the budget."""
        if self.claim is not None:
            self.claim.budget.release_claim(self.claim)
        self.claim = self._frame = self.since = None
        self.inbox.clear()
