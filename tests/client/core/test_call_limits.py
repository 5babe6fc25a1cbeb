"""The limits of a client's calls: deadlines within one another, and the end of retries."""

import pytest

from stablelog.client.core.call_limits import GRACE_S, CallLimits
from stablelog.client.core.steps import NOW
from stablelog.errors import UnavailableError
from tests.client.core.scripted import Brokers, Link


@pytest.fixture
def limits():
    return CallLimits(5)


def test_the_seconds_that_are_left_are_those_until_the_deadline_of_the_call(limits):
    assert limits.time_left_s(100) == 5
    with limits.limit_waits_until(102.4):
        assert limits.time_left_s(100) == pytest.approx(2)
        assert limits.time_left_s(200) == 0


def test_a_limit_within_another_one_only_shortens_it_and_ends_with_its_block(limits):
    with limits.limit_waits_until(10):
        with limits.limit_waits_until(20):
            assert limits.until == 10
        with pytest.raises(KeyError), limits.limit_waits_until(7):
            assert limits.until == 7
            raise KeyError
        assert limits.until == 10
    assert limits.until is None


def test_a_call_has_the_deadline_of_the_client_unless_it_has_its_own(limits):
    brokers = Brokers()
    brokers.now = 100

    def call():
        now = yield NOW
        return now, limits.until

    assert brokers.run(limits.run_until_deadline(call())) == (100, 105 + GRACE_S)
    assert brokers.run(limits.run_until_deadline(call(), 0.3)) == (100, 100.3)
    assert limits.until is None


def test_a_cancelled_client_ends_its_long_polls_and_says_what_was_cancelled(limits):
    limits.check_cancelled("waiting")
    limits.waiting_on = [Link("one", Brokers())]
    limits.cancel_retries()
    assert limits.waiting_on[0].is_closed
    with pytest.raises(UnavailableError, match=r"^waiting did not succeed: the call was cancelled$"):
        limits.check_cancelled("waiting")
    limits.allow_retries()
    limits.check_cancelled("waiting")
