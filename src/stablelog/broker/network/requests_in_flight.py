"""The requests of one connection that are being processed, each in a task, and the memory that each request takes."""

import asyncio

from stablelog.broker.network.budget import MemoryClaim
from stablelog.broker.network.request_head import is_one_way, is_produce
from stablelog.env.disk import Buffer


class RequestsInFlight:
    """The requests of one connection that are being processed."""

    def __init__(self) -> None:
        self._requests: dict[asyncio.Task[None], tuple[Buffer, MemoryClaim | None]] = {}

    def __len__(self) -> int:
        """The number of requests of the connection that are being processed."""
        return len(self._requests)

    @property
    def tasks(self) -> "frozenset[asyncio.Task[None]]":
        """The tasks of the requests."""
        return frozenset(self._requests)

    def add_request(self, task: "asyncio.Task[None]", frame: Buffer, claim: MemoryClaim | None) -> None:
        """Add a request with the task that processes it.

        Args:
            task: the task. The caller calls `end_request` when it has ended.
            frame: the bytes of the request.
            claim: the memory that the request has taken from the memory budget; None if it has taken none.
        """
        self._requests[task] = frame, claim

    def end_request(self, task: "asyncio.Task[None]") -> None:
        """Remove a request whose task has ended, and free its frame (buffer) and its memory of the budget."""
        frame, claim = self._requests.pop(task)
        if claim is None:
            return
        claim.budget.release_claim(claim)
        if isinstance(frame, memoryview) and is_produce(frame):
            # Keep the frame (buffer) for another request: the batches of the Produce request are in the log, and no
            # object refers to the frame.
            claim.budget.frames.keep_frame(frame)

    def cancel_requests(self, *, keeps_one_way: bool = False) -> None:
        """Cancel the tasks of the requests.

        Args:
            keeps_one_way: whether to spare Produce requests with acks=0. Their clients expect no response, and may
                disconnect before the request is processed.
        """
        for task, (frame, _) in self._requests.items():
            if not (keeps_one_way and is_one_way(frame)):
                task.cancel()
