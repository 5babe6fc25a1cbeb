"""From every position of the view a reader gets every later commit and the end, whatever retention does meanwhile."""

import os

import pytest

from stablelog.commit_order.fetch_assembler import FetchAssembler
from stablelog.commit_order.view import CommitOrder
from tests.commit_order import retention_history
from tests.scale import seeds

pytestmark = pytest.mark.extended

COUNT = int(os.environ.get("STABLELOG_RETENTION_HISTORIES", "40"))


def test_from_every_position_a_reader_gets_every_later_commit_and_reaches_the_end():
    assert retention_history.run_many(seeds(COUNT)) == []


FAULTS = {
    "retention forgets what transactions need": (
        CommitOrder,
        "first_needed_offset",
        lambda self: self.start_offset,
    ),
    "retention deletes nothing": (CommitOrder, "first_needed_offset", lambda self: 0),
    "no fetch passes a torn transaction": (FetchAssembler, "add_empty_batch", lambda self, end: None),
    "without the store, a transaction is torn": (
        CommitOrder,
        "first_whole_position",
        lambda self, start: start,
    ),
}


@pytest.mark.night
@pytest.mark.parametrize("fault", FAULTS)
def test_the_histories_find_every_fault_that_is_made_on_purpose(monkeypatch, fault):
    owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        for seed in range(80):
            retention_history.run(seed)
