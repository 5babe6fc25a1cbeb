"""Requests that are arriving: small ones wait in the inbox for memory, and a large one moves to a frame of its own."""

from stablelog.broker.network.arriving import ArrivingRequests
from stablelog.broker.network.budget import MemoryBudget
from stablelog.broker.network.responses import LENGTH

INBOX, LARGE, BUDGET = 100, 1000, 1200


class Owner:
    """A connection, as the budget sees it."""

    def __init__(self):
        self.resumed = 0

    def resume_receiving(self):
        self.resumed += 1

    def close(self, why=None):
        raise AssertionError(why)


class World:
    """A budget whose clock stands still and whose calls are made by hand, and what arrives on one connection."""

    def __init__(self):
        self.calls = []
        self.budget = MemoryBudget(BUDGET, 1.0, lambda: 0.0, lambda _s, call: self.calls.append(call), INBOX)
        self.owner = Owner()
        self.arriving = ArrivingRequests()

    def receive(self, data):
        """Put bytes where the next ones are received, as many as there is space for. Return the number."""
        space = self.arriving.free_space(self.budget.inboxes)
        size = min(len(space), len(data))
        space[:size] = data[:size]
        return size

    def fill_inbox(self, size):
        """Receive the length of a request and its first bytes, until the inbox is full."""
        self.arriving.inbox.filled = self.receive(LENGTH.pack(size) + bytes(INBOX))

    def serve(self):
        """Make the calls that the budget has scheduled."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_a_large_request_moves_to_a_frame_and_is_returned_when_it_is_complete():
    world = World()
    arriving = world.arriving
    world.fill_inbox(LARGE)
    assert arriving.expect_large(world.budget.open_claim(world.owner, LARGE))
    assert arriving.has_frame
    assert not arriving.inbox.filled
    left, complete = LARGE - (INBOX - LENGTH.size), None
    while left:
        assert complete is None
        size = world.receive(b"x" * left)
        assert size, "the claim grows with what has arrived"
        left -= size
        complete = arriving.fill_frame(size)
        assert complete is not None or arriving.has_room()
    request, claim = complete
    assert bytes(request) == bytes(INBOX - LENGTH.size) + b"x" * (LARGE - INBOX + LENGTH.size)
    assert (claim.size, claim.held, arriving.claim, arriving.has_frame) == (LARGE, LARGE, None, False)


def test_a_request_waits_for_memory_in_the_inbox():
    world = World()
    arriving = world.arriving
    other = world.budget.open_claim(Owner(), BUDGET)
    assert world.budget.fill_claim(other)
    arriving.inbox.filled = world.receive(LENGTH.pack(3) + b"abc" + b"next")
    arriving.claim = world.budget.open_claim(world.owner, 3)
    assert not world.budget.fill_claim(arriving.claim)
    world.budget.release_claim(other)
    world.serve()
    assert world.owner.resumed == 1
    request, claim = arriving.take_from_inbox()
    assert (bytes(request), claim.held) == (b"abc", 3)
    assert bytes(arriving.inbox.buffer[: arriving.inbox.filled]) == b"next"


def test_a_large_request_waits_for_memory_and_then_needs_a_frame():
    world = World()
    arriving = world.arriving
    other = world.budget.open_claim(Owner(), BUDGET)
    assert world.budget.fill_claim(other)
    world.fill_inbox(LARGE)
    assert not arriving.expect_large(world.budget.open_claim(world.owner, LARGE))
    assert not arriving.has_frame
    world.budget.release_claim(other)
    world.serve()
    assert world.owner.resumed == 1
    assert arriving.take_from_inbox() is None
    arriving.open_frame()
    assert arriving.has_frame


def test_the_time_in_which_a_request_waits_for_memory_does_not_count():
    world = World()
    arriving = world.arriving
    world.fill_inbox(LARGE)
    arriving.since = -7.0
    assert arriving.receives_since == -7.0
    claim = world.budget.open_claim(world.owner, LARGE)
    assert arriving.expect_large(claim)
    assert arriving.receives_since == -7.0
    claim.since += 3  # as the budget does after a wait of 3 s
    assert arriving.receives_since == -4.0


def test_dropped_bytes_take_no_memory():
    world = World()
    world.fill_inbox(LARGE)
    assert world.arriving.expect_large(world.budget.open_claim(world.owner, LARGE))
    world.arriving.since = 0.0
    world.arriving.drop()
    assert world.budget.left == BUDGET
    assert (world.arriving.claim, world.arriving.since, world.arriving.has_frame) == (None, None, False)
    assert len(world.arriving.free_space(world.budget.inboxes)) == INBOX
