"""Who may fill how much memory with requests: the bytes of requests in flight, over all connections.

A small request is let in as it is: it lies in its connection's inbox anyhow, and a connection has few of them. A large one
*claims* room as its bytes arrive, never more than twice what has come, so that announcing costs nothing and holds
nothing. What has come has to stay until all of it has, so a claim grows only if every request on its way can still
be finished, one after the other (the banker's rule); the first that waits is served first, and a newcomer waits
behind it.

While somebody waits, who holds room has to earn it: a request that arrives slower than the time that it has, and one
that is answered late (a long poll with a huge request), are given up by closing their connections.
"""

import math
from collections.abc import Callable
from typing import Protocol

from stablelog.broker.frames import Frames

GROWTH_MAX = 1 << 20
PATIENCE_S = 1.0
LOOK_S = 0.25  # how often, while somebody waits


class Holder(Protocol):
    """Whose request it is."""

    def admitted(self) -> None:
        """The room that was waited for is there, and taken."""

    def close(self, why: str | None = None) -> None:
        """The request is given up. `Budget.give_back` follows, at once or soon."""


class Claim:
    """The room of one request.

    Attributes:
        size: of the whole request.
        held: bytes that are taken from the budget.
        arrived: bytes that have come.
        since: when it began to arrive, later by what it has waited for room; once it is whole, when that was.
        mark: (bytes, time) of the last look at how it comes on, while others wait.
        is_whole: whether all of it has come, so that only its answer is waited for.
        is_quick: whether it is answered as fast as the disk allows; a request that may wait for others is not.
    """

    __slots__ = (
        "arrived",
        "held",
        "holder",
        "is_quick",
        "is_whole",
        "mark",
        "since",
        "size",
        "target",
        "waits_since",
    )

    def __init__(self, holder: Holder, size: int, now_s: float) -> None:
        self.holder = holder
        self.size = size
        self.held = 0
        self.arrived = 0
        self.since = now_s
        self.mark = (0, -math.inf)
        self.is_whole = False
        self.is_quick = True
        self.target = 0
        self.waits_since: float | None = None

    @property
    def rest(self) -> int:
        """Bytes that it has yet to take."""
        return self.size - self.held


class Budget:
    """The bytes that requests may fill.

    Args:
        size_max: how many; no request may be larger.
        receive_s: how long a request may take to arrive.
        clock: seconds that go on steadily.
        later: has something called after so many seconds.

    Attributes:
        frames: the memory that large requests arrive in.
    """

    def __init__(
        self,
        size_max: int,
        receive_s: float,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.size_max = size_max
        self.frames = Frames()
        self.left = size_max
        self._receive_s = receive_s
        self._clock = clock
        self._later = later
        self._looks = False
        self._claims: dict[Claim, None] = {}
        self._waiting: dict[Claim, None] = {}
        self._rest = 0  # of all that are on their way
        self._held = 0  # by those that have not come whole
        self._largest = 0  # that was ever claimed

    def claim(self, holder: Holder, size: int) -> Claim:
        """A request is on its way. It holds nothing yet."""
        assert 0 < size <= self.size_max
        claim = Claim(holder, size, self._clock())
        self._largest = max(self._largest, size)
        self._claims[claim] = None
        self._rest += size
        return claim

    def grow(self, claim: Claim, arrived: int) -> bool:
        """Take room for more than what has arrived now, or have the holder called when it is there."""
        assert claim.held >= arrived or claim.held == 0
        claim.arrived = arrived
        return self._take_or_wait(claim, min(arrived + min(arrived, GROWTH_MAX), claim.size))

    def take_whole(self, claim: Claim) -> bool:
        """Take room for all of a request that has arrived, or have the holder called when it is there."""
        claim.arrived = claim.size
        return self._take_or_wait(claim, claim.size)

    def _take_or_wait(self, claim: Claim, target: int) -> bool:
        claim.target = target
        is_behind_others = claim.held == 0 and bool(self._waiting)
        if not is_behind_others and self._has_room(claim):
            self._take(claim)
            return True
        claim.waits_since = self._clock()
        self._waiting[claim] = None
        if not self._looks:
            self._looks = True
            self._later(LOOK_S, self._close_overdue)
        return False

    def _take(self, claim: Claim) -> None:
        more = claim.target - claim.held
        assert 0 < more <= self.left
        claim.held = claim.target
        self._held += more
        self.left -= more
        self._rest -= more

    def _has_room(self, claim: Claim) -> bool:
        """Whether the claim can have what it wants, and all that are on their way can be finished after it."""
        more = claim.target - claim.held
        if more > self.left:
            return False
        if self.left >= self._rest or self.size_max - self._held - more >= self._largest:
            return True
        # What is worked on comes back by itself; of the others, those that need least are finished first.
        arriving = [each for each in self._claims if each.rest and each.held]
        if not claim.held:
            arriving.append(claim)
        free = self.size_max - sum(each.held for each in arriving) - more
        needs = sorted(
            (each.rest - more * (each is claim), each.held + more * (each is claim)) for each in arriving
        )
        for rest, held in needs:
            if rest > free:
                return False
            free += held
        return True

    def whole(self, claim: Claim, *, is_quick: bool) -> None:
        """All of it has come, and work on it begins."""
        assert claim.held == claim.size
        self._held -= claim.held
        claim.is_whole = True
        claim.is_quick = is_quick
        claim.since = self._clock()

    def give_back(self, claim: Claim) -> None:
        """The request is answered, or given up: its room is there for others."""
        if claim not in self._claims:
            return
        del self._claims[claim]
        self._waiting.pop(claim, None)
        self.left += claim.held
        self._held -= 0 if claim.is_whole else claim.held
        self._rest -= claim.rest
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        newcomers_wait = False
        for claim in list(self._waiting):
            if claim not in self._waiting or (newcomers_wait and not claim.held):
                continue
            if not self._has_room(claim):
                newcomers_wait = True
                continue
            del self._waiting[claim]
            assert claim.waits_since is not None
            claim.since += self._clock() - claim.waits_since
            claim.waits_since = None
            claim.mark = (0, -math.inf)
            self._take(claim)
            claim.holder.admitted()

    def _close_overdue(self) -> None:
        """Somebody waits: close who holds room and does not earn it."""
        self._looks = bool(self._waiting)
        if not self._looks:
            return
        self._later(LOOK_S, self._close_overdue)
        now_s = self._clock()
        for claim in list(self._claims):
            why = self._overdue(claim, now_s)
            if why is not None:
                claim.holder.close(why)

    def _overdue(self, claim: Claim, now_s: float) -> str | None:
        if not claim.held or claim.waits_since is not None or (claim.is_quick and claim.is_whole):
            return None
        if claim.is_whole:
            if now_s - claim.since < PATIENCE_S:
                return None
            return f"a request of {claim.size} bytes waits for its answer, and others for room"
        arrived, marked_s = claim.mark
        took_s = now_s - marked_s
        if took_s < PATIENCE_S:
            return None
        came = claim.arrived - arrived
        if took_s < 2 * PATIENCE_S and came * self._receive_s < claim.size * took_s:
            return f"{came} of the {claim.size} bytes of a request came in {took_s:.1f} s, and others wait for room"
        claim.mark = (claim.arrived, now_s)
        return None
