"""Whether a partition can be used: it is open, it has not failed, and no append has stopped half-way."""

import pytest

from stablelog.errors import UnavailableError
from stablelog.log.availability import Availability


@pytest.fixture
def usability():
    return Availability("t-0")


def test_a_partition_that_is_open_can_be_used(usability):
    usability.check_usable()
    usability.check_open()
    assert usability.failure is None


def test_a_failed_partition_needs_a_restart_and_says_why(usability):
    usability.mark_failed(UnavailableError("the disk is gone"))
    with pytest.raises(
        UnavailableError, match=r"^partition t-0 has failed and needs a restart: the disk is gone$"
    ):
        usability.check_usable()
    usability.check_open()
    assert str(usability.failure) == "the disk is gone"


def test_the_first_failure_counts_and_is_told_once(usability):
    told = []
    usability.on_failure = told.append
    first = UnavailableError("first")
    for why in (first, UnavailableError("second")):
        usability.mark_failed(why)
    assert told == [first]
    assert usability.failure is first


def test_an_append_that_stopped_half_way_fails_the_partition(usability):
    told = []
    usability.on_failure = told.append
    usability.is_writing = True
    with pytest.raises(
        UnavailableError, match="an append was written and not completed because of an unexpected error"
    ):
        usability.check_usable()
    assert len(told) == 1


def test_a_closed_partition_has_not_failed_and_cannot_be_used(usability):
    told = []
    usability.on_failure = told.append
    usability.mark_closed()
    for call in (usability.check_usable, usability.check_open):
        with pytest.raises(UnavailableError, match=r"^partition t-0 is closed$"):
            call()
    assert str(usability.failure) == "partition t-0 is closed"
    assert told == []


def test_a_partition_that_had_failed_says_why_also_after_it_was_closed(usability):
    usability.mark_failed(UnavailableError("the disk is gone"))
    usability.mark_closed()
    assert str(usability.failure) == "the disk is gone"
    with pytest.raises(UnavailableError, match="has failed"):
        usability.check_usable()


def test_a_closed_partition_holds_nobody(usability):
    """The callback could hold the partition in a circle."""
    told = []
    usability.on_failure = told.append
    usability.mark_closed()
    usability.mark_failed(UnavailableError("late"))
    assert told == []
