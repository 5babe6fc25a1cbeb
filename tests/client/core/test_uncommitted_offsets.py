"""The offsets that a group's reader has to commit: after records, after seeks, and after partitions were taken away."""

from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.client.core.uncommitted_offsets import UncommittedOffsets

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)


def handed_out(**ends):
    uncommitted = UncommittedOffsets()
    uncommitted.hand_out({("t", int(name[1:])): end for name, end in ends.items()})
    return uncommitted


def test_a_commit_leaves_what_was_handed_out_after_it():
    uncommitted = handed_out(t0=5, t1=7)
    uncommitted.hand_out({T1: 9})
    uncommitted.mark_committed({T0: 5, T1: 7, T2: 1})
    assert uncommitted.offsets == {T1: 9}
    uncommitted.mark_committed({T1: 9})
    assert uncommitted.offsets == {}


def test_what_the_program_did_not_get_is_as_before():
    uncommitted = handed_out(t0=5)
    before = uncommitted.offsets_of([T0, T1])
    uncommitted.hand_out({T0: 8, T1: 3})
    uncommitted.undo_hand_out(before)
    assert uncommitted.offsets == {T0: 5}


def test_partitions_without_uncommitted_offsets_are_not_given_up():
    uncommitted = handed_out(t0=5, t1=7)
    uncommitted.give_up([T1, T2])
    assert uncommitted.offsets == {T0: 5}
    assert uncommitted.given_up == {T1}


def test_given_up_partitions_are_told_once_in_their_order():
    uncommitted = handed_out(t2=1, t0=1, t1=1)
    uncommitted.give_up([T2, T0, T1])
    assert uncommitted.take_given_up() == [T0, T1, T2]
    assert uncommitted.take_given_up() == []


def test_the_offset_of_a_seek_is_committed_with_a_token_of_its_own():
    uncommitted = handed_out(t0=5)
    for number, offset in enumerate((2, 3)):
        uncommitted.seek(T0, offset)
        uncommitted.seek(T1, offset)
        assert uncommitted.offsets == {T0: offset, T1: offset}
        assert len({one.token for one in uncommitted.seeks.values()}) == 2, number
    uncommitted.mark_committed({T0: 3})
    assert uncommitted.seeks.keys() == {T1}


def test_a_reader_that_goes_back_has_handed_out_nothing():
    uncommitted = handed_out(t0=5, t1=7)
    uncommitted.give_up([T1])
    assert uncommitted.rewind([T0, T1], {T0: CommittedOffset(3)}) == {}
    assert uncommitted.offsets == {}
    assert uncommitted.given_up == set()


def test_a_seek_stays_until_an_offset_is_committed_after_it():
    """Even if the response to that commit was lost: the coordinator then returns the token of the seek."""
    uncommitted = UncommittedOffsets()
    for target in (T0, T1, T2):
        uncommitted.seek(target, 4)
    uncommitted.hand_out({T0: 6})
    token = uncommitted.seeks[T1].token
    committed = {T0: CommittedOffset(9, metadata="seek:of-before"), T1: CommittedOffset(5, metadata=token)}
    assert uncommitted.rewind([T0, T1], committed) == {T0: 4}
    assert uncommitted.offsets == {T0: 4}
    assert uncommitted.seeks.keys() == {T0, T2}, "a partition that the reader does not have is left as it is"
