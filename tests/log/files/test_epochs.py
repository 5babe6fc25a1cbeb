"""The leader epochs of a log and their file, against a log that keeps an epoch for each record."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.epochs import LeaderEpochs


@pytest.mark.extended
@given(some.lists(some.tuples(some.integers(0, 8), some.integers(0, 6)), max_size=12), some.data())
def test_leader_epochs_are_those_of_a_log_that_keeps_an_epoch_for_each_record(steps, data):
    epochs, log = LeaderEpochs(), []
    for epoch, count in steps:
        known = epochs.latest
        epochs.assign_epoch(epoch, len(log))
        assert epochs.latest == max(epoch, known)
        log += [max(epoch, known)] * count
    entries = epochs.entries
    assert entries == sorted(entries)
    assert LeaderEpochs.decode(epochs.encode()).entries == entries
    for offset, epoch in enumerate(log):
        assert epochs.epoch_of(offset) == epoch
    assert epochs.epoch_of(-1) == -1
    assert epochs.latest == (entries[-1][0] if entries else -1)
    for asked in range(-1, 10):
        if not entries or asked > epochs.latest or asked < 0:
            expected = (-1, -1)
        elif asked == epochs.latest:
            expected = asked, len(log)
        else:
            below = [known for known, _ in entries if known <= asked]
            ends = next(start for known, start in entries if known > asked)
            expected = (below[-1] if below else asked), ends
        assert epochs.end_offset(asked, len(log)) == expected
    end = data.draw(some.integers(0, len(log) + 1))
    kept = [entry for entry in entries if entry[1] < end]
    epochs.truncate_to(end)
    assert epochs.entries == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "x\n0\n",
        "0\n1\n",
        "0\n1\n1\n",
        "0\n2\n1 0\n1 5\n",
        "0\n2\n1 5\n2 5\n",
        "0\n2\n2 0\n1 5\n",
        "-1\n0\n",
    ],
)
def test_a_checkpoint_of_leader_epochs_that_does_not_hold_is_damage(text):
    with pytest.raises(DamageError):
        LeaderEpochs.decode(text.encode())


def test_a_later_form_of_leader_epochs_is_named():
    with pytest.raises(UnknownFormatError):
        LeaderEpochs.decode(b"1\n0\n")
    assert LeaderEpochs.decode(b"0\n1\n3 7\n").entries == [(3, 7)]
