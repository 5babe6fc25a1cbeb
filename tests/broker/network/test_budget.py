"""The bytes of requests in flight: bounded, fair, and never stuck."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.broker.network.budget import GROWTH_MAX, PATIENCE_S, CompletionOrder, MemoryBudget, MemoryClaim
from tests.scale import examples

KB = 1 << 10
FIRST = 64 * KB  # what has come of a large request before it claims anything


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self.due = []

    def time(self):
        return self.now_s

    def later(self, seconds, call):
        self.due.append((self.now_s + seconds, call))

    def advance(self, seconds):
        end = self.now_s + seconds
        while self.due and min(at for at, _ in self.due) <= end:
            at, call = min(self.due, key=lambda entry: entry[0])
            self.due.remove((at, call))
            self.now_s = at
            call()
        self.now_s = end


class Sender:
    """A connection that sends one large request, as fast as it is let."""

    def __init__(self, budget, size, first=FIRST):
        self.budget = budget
        self.arrived = first
        self.waits = self.is_closed = False
        self.claim = budget.open_claim(self, size)
        self.why = None

    def resume_receiving(self):
        assert self.waits
        self.waits = False

    def close(self, why=None):
        self.is_closed, self.why = True, why

    def start(self):
        self.waits = not self.budget.grow_claim(self.claim, self.arrived)
        return self

    def send(self, count):
        """Send so many bytes more, if there is room for them."""
        if self.waits or self.is_closed or self.claim.is_whole:
            return
        self.arrived = self.claim.arrived = min(self.arrived + count, self.claim.held)
        if self.arrived == self.claim.size:
            self.budget.mark_complete(self.claim, is_quick=True)
        elif self.arrived == self.claim.held:
            self.waits = not self.budget.grow_claim(self.claim, self.arrived)

    def send_all(self):
        while not (self.waits or self.claim.is_whole):
            self.send(1 << 30)
        return self

    def finish(self):
        self.budget.release_claim(self.claim)


@pytest.fixture
def clock():
    return Clock()


def budget_of(size, clock):
    return MemoryBudget(size, 30.0, clock.time, clock.later)


def test_what_is_announced_holds_nothing_and_what_has_come_holds_twice_as_much_at_most(clock):
    budget = budget_of(256 << 20, clock)
    strangers = [Sender(budget, 100 << 20) for _ in range(2000)]
    assert budget.left == 256 << 20
    for stranger in strangers[:1000]:
        stranger.start()
    assert budget.left == (256 << 20) - 1000 * 2 * FIRST
    assert not any(stranger.waits for stranger in strangers)
    assert Sender(budget, 100 << 20).start().send_all().claim.is_whole, "there is room for others"


def test_a_request_that_comes_fast_claims_a_step_at_a_time(clock):
    budget = budget_of(10 << 20, clock)
    sender = Sender(budget, 8 << 20).start()
    held = [sender.claim.held]
    while not sender.claim.is_whole:
        sender.send(1 << 30)
        held.append(sender.claim.held)
    assert held[:3] == [2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert max(after - before for before, after in itertools.pairwise(held)) == GROWTH_MAX
    sender.finish()
    assert budget.left == 10 << 20


def test_requests_that_together_are_too_much_are_finished_one_after_the_other(clock):
    """Without the banker's rule each would hold a part, and none could be finished."""
    budget = budget_of(4 << 20, clock)
    senders = [Sender(budget, 3 << 20).start() for _ in range(8)]
    finished = 0
    for _ in range(200):
        for sender in senders:
            sender.send(200 * KB)
        for sender in [sender for sender in senders if sender.claim.is_whole]:
            sender.finish()
            senders.remove(sender)
            finished += 1
        clock.advance(0)
    assert finished == 8
    assert budget.left == 4 << 20


def test_a_newcomer_waits_behind_who_waits(clock):
    budget = budget_of(1 << 20, clock)
    first = Sender(budget, 924 * KB).start().send_all()
    second, third = Sender(budget, 900 * KB).start(), Sender(budget, 90 * KB).start()
    assert first.claim.is_whole
    assert third.claim.size <= budget.left, "there would be room for it"
    assert second.waits
    assert third.waits
    first.finish()
    clock.advance(0)
    assert not second.waits
    second.send_all()
    second.finish()
    clock.advance(0)
    assert not third.waits


def test_a_slow_sender_is_closed_when_others_wait_and_only_then(clock):
    budget = budget_of(1 << 20, clock)
    slow = Sender(budget, 1 << 20).start()
    while slow.claim.held < 800 * KB:
        slow.send(1 << 30)
    clock.advance(20)
    assert not slow.is_closed, "nobody waits: it may take its time"
    other = Sender(budget, 900 * KB).start()
    assert other.waits
    clock.advance(29)
    assert slow.is_closed
    assert "while others wait for memory" in slow.why
    slow.finish()
    clock.advance(0)
    other.send_all()
    assert other.claim.is_whole


def test_who_is_on_time_is_let_finish_though_others_wait(clock):
    budget = budget_of(1 << 20, clock)
    steady = Sender(budget, 1 << 20).start()
    other = Sender(budget, 1 << 20).start()
    for _ in range(20):
        clock.advance(1.0)
        for _ in range(10):
            steady.send(6 * KB)
            other.send(6 * KB)
    assert not steady.is_closed
    assert not other.is_closed, "what it waits for room is not its fault"
    assert steady.claim.is_whole


def test_a_long_poll_with_a_huge_request_gives_way_and_a_write_does_not(clock):
    budget = budget_of(1 << 20, clock)
    poll, write = Sender(budget, 500 * KB).start().send_all(), Sender(budget, 400 * KB).start().send_all()
    budget.mark_complete(poll.claim, is_quick=False)
    clock.advance(100)
    assert not poll.is_closed
    Sender(budget, 900 * KB).start()
    clock.advance(PATIENCE_S + 1)
    assert poll.is_closed
    assert not write.is_closed


def test_one_that_is_given_up_while_it_waits_is_forgotten(clock):
    budget = budget_of(1 << 20, clock)
    first = Sender(budget, 1 << 20).start().send_all()
    second, third = Sender(budget, 1 << 20).start(), Sender(budget, 1 << 20).start()
    second.finish()
    second.finish()
    first.finish()
    clock.advance(0)
    assert not third.waits
    third.finish()
    assert budget.left == 1 << 20


def crowd(clock, count):
    """A budget that `count` requests fill with their first parts and wait for more, and as many that wait behind them.

    There are free bytes, which none of them gets: no request could be completed afterwards.
    """
    budget = budget_of((count * 16 + 60) * KB, clock)
    arriving = [Sender(budget, 64 * KB, 8 * KB).start() for _ in range(count)]
    for sender in arriving:
        sender.send(64 * KB)
    waiting = [Sender(budget, 64 * KB, 8 * KB).start() for _ in range(count)]
    assert all(sender.waits for sender in arriving[1:] + waiting)
    assert budget.left > 16 * KB
    return budget, arriving, waiting


def test_many_connections_that_end_in_one_turn_are_one_occasion_to_serve_those_that_wait(clock):
    _budget, arriving, waiting = crowd(clock, 100)
    before = len(clock.due)
    for sender in arriving:
        sender.finish()
    assert len(clock.due) == before + 1
    clock.advance(0)
    assert not any(sender.waits for sender in waiting)


def test_many_waiting_claims_are_served_in_several_turns():
    class Running(Clock):
        """A clock that moves forward with each look at it."""

        def time(self):
            self.now_s += 0.001
            return self.now_s

    clock = Running()
    _budget, arriving, waiting = crowd(clock, 40)
    for sender in arriving:
        sender.finish()
    turns = 0
    while any(sender.waits for sender in waiting):
        served = sum(not sender.waits for sender in waiting)
        at, serve = min(clock.due, key=lambda entry: entry[0])
        clock.due.remove((at, serve))
        serve()
        turns += 1
        assert sum(not sender.waits for sender in waiting) - served <= 5
    assert turns >= 8


@pytest.mark.extended
def test_the_price_of_connections_that_end_while_others_wait_does_not_grow_with_each_pair_of_them(clock):
    """If each claim that waits is compared with all that arrive whenever a connection ends, this takes 16 s, and a minute
    with 600 of each.
    """
    _budget, arriving, waiting = crowd(clock, 400)
    before_s = time.process_time()
    for sender in waiting + arriving:
        sender.finish()
        clock.advance(0)
    assert time.process_time() - before_s < 1.5


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=8),
    st.integers(0, 30),
    st.integers(0, 8),
    st.integers(1, 12),
)
def test_a_claim_gets_bytes_if_all_requests_can_be_completed_one_after_the_other(requests, free, which, more):
    """Compared with a trial of the order. The requests before can be completed, as always in a budget."""

    def is_possible(requests, free):
        for rest, held in sorted(requests):
            if rest > free:
                return False
            free += held
        return True

    budget = budget_of(free + sum(held for _, held in requests) or 1, Clock())
    if not is_possible(requests, free):
        return
    claims = [budget_claim(budget, rest, held) for rest, held in requests]
    order = CompletionOrder(claims, free + sum(held for _, held in requests))
    if which < len(requests):
        rest, held = requests.pop(which)
        claim = claims[which]
    else:
        rest, held = more + which, 0
        claim = budget_claim(budget, rest, held)
    more = min(more, rest)
    wanted = more <= free and is_possible([*requests, (rest - more, held + more)], free - more)
    assert (more <= free and order.allows_growth(claim, more)) == wanted


def budget_claim(budget, rest, held):
    return MemoryClaim(budget, None, rest + held, 0.0, held)


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_the_bound_holds_and_everybody_is_served_whatever_happens(data):
    clock = Clock()
    size_max = data.draw(st.integers(2, 12)) << 18
    budget = budget_of(size_max, clock)
    senders = []
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["new", "send", "send", "finish", "lost", "wait"])):
            case "new":
                senders.append(Sender(budget, data.draw(st.integers(FIRST + 1, size_max))).start())
            case "wait":
                clock.advance(data.draw(st.floats(0, 3)))
            case _ if not senders:
                pass
            case "send":
                data.draw(st.sampled_from(senders)).send(data.draw(st.integers(1, size_max)))
            case "finish":
                for sender in [sender for sender in senders if sender.claim.is_whole][:1]:
                    sender.finish()
                    senders.remove(sender)
            case "lost":
                lost = data.draw(st.sampled_from(senders))
                lost.finish()
                senders.remove(lost)
        for closed in [sender for sender in senders if sender.is_closed]:
            closed.finish()
            senders.remove(closed)
        clock.advance(0)
        assert 0 <= budget.left <= size_max
        assert budget.left == size_max - sum(sender.claim.held for sender in senders)
    for _ in range(len(senders)):
        for sender in senders:
            sender.send_all()
        done = [sender for sender in senders if sender.claim.is_whole]
        assert done or not senders, "stuck: everybody waits for everybody"
        for sender in done:
            sender.finish()
            senders.remove(sender)
        clock.advance(0)
    assert not senders
    assert budget.left == size_max
