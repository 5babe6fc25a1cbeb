"""The state of a log that verification has read so far."""

import pytest

from stablelog.log.verify.state import FileFinding, LogState
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY


@pytest.fixture
def state():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(DIRECTORY / f"{7:020d}.index", b"content")
    return LogState(disk, DIRECTORY)


@pytest.mark.parametrize(
    ("are_begins_known", "is_compacted", "is_complete"),
    [(True, False, True), (False, False, False), (True, True, False), (False, True, False)],
)
def test_a_log_is_complete_if_it_has_every_batch_of_the_transactions_that_end_in_it(
    state, are_begins_known, is_compacted, is_complete
):
    state.are_begins_known, state.is_compacted = are_begins_known, is_compacted
    assert state.is_complete is is_complete


def test_a_log_is_complete_from_its_first_batch_on(state):
    assert state.is_complete
    assert (state.end_offset, len(state.producers), state.epochs.entries) == (0, 0, [])


def test_files_are_read_by_offset_and_suffix_and_may_be_missing(state):
    assert state.path(7, ".index") == DIRECTORY / f"{7:020d}.index"
    assert state.content(7, ".index") == b"content"
    assert state.content(8, ".index") is None


def test_two_states_share_no_producers(state):
    assert LogState(state.disk, DIRECTORY).producers is not state.producers
    assert FileFinding(DIRECTORY, "a") == FileFinding(DIRECTORY, "a")
