"""Which of the batches that verification refused has to come first, against a list of all that were refused."""

import contextlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.log.producer_state import producers as producers_module
from stablelog.log.producer_state.producers import Producers


def header(epoch, sequence, producer_id=7):
    return SimpleNamespace(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.extended
@given(
    some.lists(some.tuples(some.integers(0, 2), some.integers(0, 6)), max_size=8),
    some.integers(0, 2),
    some.integers(0, 7),
)
def test_of_the_newest_epoch_no_sequence_behind_the_lowest_refused_one_is_taken(batches, epoch, sequence):
    producers, least = Producers(), {}
    for refused_epoch, refused_sequence in batches:
        producers.remember_refused(header(refused_epoch, refused_sequence))
        if refused_epoch >= max(least, default=0):
            least[refused_epoch] = min(refused_sequence, least.get(refused_epoch, refused_sequence))
    newest = max(least, default=-1)
    is_taken = epoch != newest or sequence <= least[newest]
    with contextlib.nullcontext() if is_taken else pytest.raises(RefusedError) as refused:
        producers.check_batch(header(epoch, sequence), require_first_sequence_zero=False)
    assert is_taken or refused.value.code is ErrorCode.out_of_order_sequence_number


def test_only_so_many_producers_with_a_refused_batch_are_remembered(monkeypatch):
    monkeypatch.setattr(producers_module, "REFUSED_KEPT", 3)
    producers = Producers()
    for producer_id in range(5):
        producers.remember_refused(header(0, 0, producer_id))
    for producer_id in range(5):
        late = header(0, 1, producer_id)
        if producer_id < 2:
            producers.check_batch(late, require_first_sequence_zero=False)
        else:
            with pytest.raises(RefusedError):
                producers.check_batch(late, require_first_sequence_zero=False)
