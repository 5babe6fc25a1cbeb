"""Memory budget: a limit for the memory of all requests in flight, over all connections.

A small request is received into the *inbox* of its connection, a buffer of fixed size. It takes no memory of the
budget, unless its connection has many requests in flight already. A large request takes memory of the budget step by
step while its bytes arrive, and never more than twice the bytes that have arrived. A client can therefore not reserve
memory by announcing a large request that it does not send. The memory that a request has taken, or waits for, is its
*claim*.

The bytes that have arrived stay in memory until the request is complete. If several incomplete requests shared the
whole budget, none of them could ever be completed. A claim therefore takes more memory only if all arriving requests
could still be completed one after the other (the banker's algorithm). Waiting claims are served in the order in which
they began to wait. They are served in several turns of the event loop, because clients decide how many of them there
are.

Requests that arrive before the login of their client have a budget and small inboxes of their own. A client that has
not logged in therefore takes no memory from other clients.

While a claim waits for memory, the budget closes two kinds of connection: those whose request arrives too slowly, and
those whose complete request keeps its memory for long, such as a long poll with a huge request.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stablelog.broker.loop.turns import TURN_S
from stablelog.broker.network.frame_buffers import FrameBuffers
from stablelog.broker.network.inbox import INBOX_SIZE, Inboxes

if TYPE_CHECKING:
    from stablelog.security.login import Login

GROWTH_MAX = 1 << 20
LOGIN_SIZE_MAX: Final = 16 << 20  # The memory of all large requests before a login, in bytes.
PATIENCE_S = 1.0
LOOK_S = 0.25  # The number of seconds between two checks for slow requests, while a request waits for memory.


class ClaimOwner(Protocol):
    """The connection of a request that has a claim: memory that the request has taken from the memory budget, or waits
    for.
    """

    def resume_receiving(self) -> None:
        """Continue receiving the request. The memory budget calls this method when it has granted the bytes for which
        the request has waited.
        """

    def close(self, why: str | None = None) -> None:
        """Discard the request and close the connection. The connection then calls `MemoryBudget.release_claim`, at once
        or later.

        Args:
            why: the reason for the log; None to log nothing.
        """


@dataclass(slots=True, eq=False)
class MemoryClaim:
    """The memory that one request has taken from the memory budget, or waits for.

    Attributes:
        budget: the memory budget.
        owner: the connection of the request.
        size: bytes of the whole request.
        held: bytes that the claim has taken from the budget.
        arrived: bytes of the request that have arrived.
        since: while the request arrives: the time at which it began to arrive, plus the time that it has waited for
            memory. Once the request is complete: the time at which it became complete.
        mark: (arrived bytes, time) at the last check whether the request arrives fast enough. Such checks are made only
            while other claims wait.
        is_whole: whether the request is complete, so that only its response is pending.
        is_quick: whether the response waits for the disk at most. False for a request that may wait for other requests,
            such as a long poll.
        target: the number of bytes that the claim is to hold. It is greater than `held` while the claim waits.
        waits_since: the time at which the claim began to wait for memory; None if it does not wait.
    """

    budget: "MemoryBudget"
    owner: ClaimOwner
    size: int
    since: float
    held: int = 0
    arrived: int = 0
    mark: tuple[int, float] = (0, -math.inf)
    is_whole: bool = False
    is_quick: bool = True
    target: int = 0
    waits_since: float | None = None

    @property
    def rest(self) -> int:
        """The number of bytes of the request that the claim has not taken from the memory budget yet."""
        return self.size - self.held


class CompletionOrder:
    """The order in which all arriving requests can be completed within the memory budget: the request that lacks the
    fewest bytes first. A request lacks the bytes of its size that it has not taken from the budget yet.

    A request that is completed returns its bytes to the budget, and the requests after it can use them. The order is
    possible if each request, when its turn comes, finds as many free bytes as it lacks.

    Args:
        arriving: the claims of incomplete requests that hold bytes of the budget already.
        size_max: bytes of the memory budget.
    """

    __slots__ = ("_free", "_rests", "_spare")

    def __init__(self, arriving: Iterable[MemoryClaim], size_max: int) -> None:
        needs = sorted((claim.rest, claim.held) for claim in arriving)
        free = size_max - sum(held for _, held in needs)
        self._rests = [rest for rest, _ in needs]
        # At index i: the free bytes once i requests are complete, and the least number of bytes that one of them left.
        self._free = list(accumulate((held for _, held in needs), initial=free))
        self._spare = list(accumulate(map(operator.sub, self._free, self._rests), min, initial=size_max))

    def allows_growth(self, claim: MemoryClaim, more: int) -> bool:
        """Return whether all arriving requests can still be completed, in the order of this object, after `claim` (the
        memory of one of them) has taken `more` bytes.

        The claim then lacks `more` bytes less, so it may move to an earlier place in the order. The result follows from
        three kinds of request:

        - The requests before that place find `more` bytes less than now. So each of them must now have at least `more`
          bytes to spare.
        - The claim itself finds `more` bytes less and lacks `more` bytes less. So it is enough if it could take that
          place now.
        - The requests after that place find at least as many bytes as now. So nothing has to be checked for them.
        """
        before = bisect_left(self._rests, claim.rest - more)
        return more <= self._spare[before] and claim.rest <= self._free[before]


class MemoryBudget:
    """The memory budget of a broker: a limit for the bytes that the requests of all connections take.

    Args:
        size_max: the limit in bytes. It is also the limit of a single request.
        receive_s: the seconds that a request may take to arrive, if other requests wait for memory.
        clock: returns monotonic seconds.
        later: schedules a call after a number of seconds.
        inbox_size: bytes of the buffer of an inbox.

    Attributes:
        frames: the buffers into which large requests are received.
        inboxes: the unused buffers for inboxes: the inbox of a connection receives its small requests.
        left: bytes that no claim has taken.
    """

    def __init__(
        self,
        size_max: int,
        receive_s: float,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        inbox_size: int = INBOX_SIZE,
    ) -> None:
        self.size_max = size_max
        self.frames = FrameBuffers()
        self.inboxes = Inboxes(inbox_size)
        self.left = size_max
        self._receive_s = receive_s
        self._clock = clock
        self._later = later
        self._looks = False
        self._serves = False  # Whether the next turn that serves waiting claims is scheduled.
        self._completions: CompletionOrder | None = None  # None after a change of the arriving requests.
        self._claims: dict[MemoryClaim, None] = {}
        self._waiting: dict[MemoryClaim, None] = {}
        self._rest = 0  # Bytes that the arriving requests still have to take from the budget.
        self._held = 0  # Bytes that the arriving requests have taken from the budget.
        self._largest = 0  # The size of the largest request that has ever made a claim.

    def open_claim(self, owner: ClaimOwner, size: int) -> MemoryClaim:
        """Return a claim (the memory that a request takes) for a request of `size` bytes that has begun to arrive. The
        claim holds no bytes of the budget yet.
        """
        assert 0 < size <= self.size_max
        claim = MemoryClaim(self, owner, size, self._clock())
        self._largest = max(self._largest, size)
        self._claims[claim] = None
        self._rest += size
        return claim

    def grow_claim(self, claim: MemoryClaim, arrived: int) -> bool:
        """Let the claim of a request (its memory) grow: take memory of the budget for the `arrived` bytes of the
        request and for the bytes that arrive next, for at most twice the arrived bytes.

        Returns:
            True if the claim has the memory. False if the budget has too few bytes now: the claim then waits, and the
            budget calls `resume_receiving` of its owner when it has granted the bytes.
        """
        assert claim.held >= arrived or claim.held == 0
        claim.arrived = arrived
        return self._grow_or_wait(claim, min(arrived + min(arrived, GROWTH_MAX), claim.size))

    def fill_claim(self, claim: MemoryClaim) -> bool:
        """Take memory of the budget for a whole request that has arrived already, in the inbox (the buffer for small
        requests) of its connection. `claim` is the memory that the request has taken, or waits for.

        Returns:
            True if the claim has the memory. False if the budget has too few bytes now: the claim then waits, and the
            budget calls `resume_receiving` of its owner when it has granted the bytes.
        """
        claim.arrived = claim.size
        return self._grow_or_wait(claim, claim.size)

    def _grow_or_wait(self, claim: MemoryClaim, target: int) -> bool:
        claim.target = target
        is_behind_others = claim.held == 0 and bool(self._waiting)
        if not is_behind_others and self._has_room(claim):
            self._take_bytes(claim)
            return True
        claim.waits_since = self._clock()
        self._waiting[claim] = None
        if not self._looks:
            self._looks = True
            self._later(LOOK_S, self._close_overdue)
        return False

    def _take_bytes(self, claim: MemoryClaim) -> None:
        more = claim.target - claim.held
        assert 0 < more <= self.left
        claim.held = claim.target
        self._completions = None
        self._held += more
        self.left -= more
        self._rest -= more

    def _has_room(self, claim: MemoryClaim) -> bool:
        """Return whether a claim (the memory that a request takes) may grow to its `target` bytes: whether the budget
        has the bytes, and all arriving requests can still be completed afterwards.
        """
        more = claim.target - claim.held
        if more > self.left:
            return False
        if self.left >= self._rest or self.size_max - self._held - more >= self._largest:
            return True
        if self._completions is None:
            arriving = (each for each in self._claims if each.rest and each.held)
            self._completions = CompletionOrder(arriving, self.size_max)
        return self._completions.allows_growth(claim, more)

    def mark_complete(self, claim: MemoryClaim, *, is_quick: bool) -> None:
        """Mark the claim of a request (its memory) as complete: all bytes of the request have arrived, and work on it
        begins.

        Args:
            claim: the claim of the request. It holds memory for all its bytes.
            is_quick: whether the response waits for the disk at most; False for a long poll.
        """
        assert claim.held == claim.size
        self._held -= claim.held
        claim.is_whole = True
        claim.is_quick = is_quick
        claim.since = self._clock()

    def release_claim(self, claim: MemoryClaim) -> None:
        """Release a claim: return the memory of a request to the budget, because the request was answered or
        discarded.
        """
        if claim not in self._claims:
            return
        del self._claims[claim]
        self._waiting.pop(claim, None)
        self._completions = None
        self.left += claim.held
        self._held -= 0 if claim.is_whole else claim.held
        self._rest -= claim.rest
        self._serve_soon()

    def _serve_soon(self) -> None:
        """In the next turn of the event loop, grant memory to the claims (requests that take memory) that wait for it.

        If the memory of more requests is returned before that turn, the waiting claims are served only once.
        """
        if self._waiting and not self._serves:
            self._serves = True
            self._later(0, self._serve_waiting)

    def _serve_waiting(self) -> None:
        self._serves = False
        end_s = self._clock() + TURN_S
        newcomers_wait = False
        for claim in list(self._waiting):
            if claim not in self._waiting or (newcomers_wait and not claim.held):
                continue
            if not self._has_room(claim):
                newcomers_wait = True
                continue
            now_s = self._clock()
            del self._waiting[claim]
            assert claim.waits_since is not None
            claim.since += now_s - claim.waits_since
            claim.waits_since = None
            claim.mark = (0, -math.inf)
            self._take_bytes(claim)
            claim.owner.resume_receiving()
            if now_s > end_s:
                self._serve_soon()
                return

    def _close_overdue(self) -> None:
        """If a request waits for memory of the budget, close those connections whose requests arrive too slowly, or
        keep their memory too long after they were complete. Then check again after LOOK_S seconds.
        """
        self._looks = bool(self._waiting)
        if not self._looks:
            return
        self._later(LOOK_S, self._close_overdue)
        now_s = self._clock()
        for claim in list(self._claims):
            why = self._overdue_reason(claim, now_s)
            if why is not None:
                claim.owner.close(why)

    def _overdue_reason(self, claim: MemoryClaim, now_s: float) -> str | None:
        if not claim.held or claim.waits_since is not None or (claim.is_quick and claim.is_whole):
            return None
        if claim.is_whole:
            if now_s - claim.since < PATIENCE_S:
                return None
            return f"a request of {claim.size} bytes has been waiting for long, and other requests need its memory"
        arrived, marked_s = claim.mark
        took_s = now_s - marked_s
        if took_s < PATIENCE_S:
            return None
        came = claim.arrived - arrived
        if took_s < 2 * PATIENCE_S and came * self._receive_s < claim.size * took_s:
            return f"a request arrives too slowly while others wait for memory: {came} of {claim.size} bytes in {took_s:.1f} s"
        claim.mark = (claim.arrived, now_s)
        return None


class MemoryBudgets(NamedTuple):
    """The two memory budgets of a broker.

    Attributes:
        requests: for connections whose client has logged in, or needs no login.
        logins: for connections whose client still has to log in.
    """

    requests: MemoryBudget
    logins: MemoryBudget

    def budget_for(self, login: "Login | None") -> MemoryBudget:
        """Return the memory budget for the next request of a connection.

        Args:
            login: the state of the client's login; None if the listener needs no login.
        """
        return self.requests if login is None or login.principal is not None else self.logins
