"""A reader of a consumer group over a broker in memory: what it hands out, what is committed, and when it goes back."""

import math

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.core.membership import NO_CHANGE, Change
from stablelog.errors import RefusedError, TransactionAbortedError, UsageError
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell

T0, T1 = (TOPIC, 0), (TOPIC, 1)


class Member:
    """A member of a group whose coordinator answers at once.

    Attributes:
        changes: what the next heartbeats change.
        committed_offsets: the committed offsets.
        refusal: the error of the next commits; None for none.
    """

    group_id, next_due_s = "g", math.inf

    def __init__(self, *changes):
        self.changes, self.committed_offsets, self.refusal, self.has_left = list(changes), {}, None, False

    def follow_assignment(self):
        return self.changes.pop(0) if self.changes else NO_CHANGE
        yield

    def committed_offsets_once(self, targets):
        return {one: self.committed_offsets[one] for one in targets if one in self.committed_offsets}
        yield

    def commit_offsets(self, offsets, tokens):
        if self.refusal is not None:
            raise self.refusal
        self.committed_offsets |= {
            one: CommittedOffset(offset, metadata=tokens.get(one, "")) for one, offset in offsets.items()
        }
        return
        yield

    def leave_group(self):
        self.has_left = True
        return
        yield


class Reading:
    """A reader that has both partitions of a topic with three records in each."""

    def __init__(self, *changes, assigned=None):
        broker = ModelBroker()
        for partition in (0, 1):
            broker.commit({partition: [b"%d-%d" % (partition, number) for number in range(3)]})
        first = Change(assigned=dict.fromkeys((T0, T1), CommittedOffset(0)) if assigned is None else assigned)
        self.shell, self.member = ModelShell(broker), Member(first, *changes)
        self.member.committed_offsets = {one: CommittedOffset(0) for one in (T0, T1)}
        self.core = GroupReading(Cluster(ADDRESS, deadline_s=3), self.member, "read_committed", "earliest")

    def read(self, count=100):
        records = self.shell.run(self.core.read_records(count, 5, 1))
        return [one.value.decode() for one in records]

    def commit(self):
        self.shell.run(self.core.commit())

    def committed(self):
        return {one: at.offset for one, at in self.member.committed_offsets.items()}


EVERY = ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def test_records_are_handed_out_once_and_committed_as_far_as_they_were_handed_out():
    reading = Reading()
    first = reading.read(2)
    reading.commit()
    assert sum(reading.committed().values()) == len(first) == 2
    assert sorted(first + reading.read()) == EVERY
    reading.commit()
    assert reading.committed() == {T0: 3, T1: 3}


def test_a_partition_is_read_from_the_offset_that_the_group_has_committed():
    assert Reading(assigned={T0: CommittedOffset(2), T1: CommittedOffset(0)}).read() == [
        "0-2",
        "1-0",
        "1-1",
        "1-2",
    ]


def test_records_that_are_here_are_handed_out_without_a_request():
    reading = Reading()
    first = reading.read(1)
    asked = len(reading.shell.broker.asked)
    reading.core.read_records(1, 0, 0)
    record = reading.core.take_ready_record(0)
    assert (record is None) or record.value.decode() not in first
    assert len(reading.shell.broker.asked) == asked


def test_what_the_program_did_not_get_is_handed_out_again_and_not_committed():
    reading = Reading()
    first = reading.read(2)
    reading.core.undo_last_read()
    reading.commit()
    assert reading.committed() == {T0: 0, T1: 0}
    assert reading.read(2) == first


def test_a_reader_goes_back_to_the_committed_offsets():
    reading = Reading()
    first = reading.read(2)
    reading.commit()
    later = reading.read()
    reading.core.rewind_later()
    assert reading.read() == later
    assert sorted(first + later) == EVERY


def test_a_partition_that_another_member_may_have_is_not_read_any_more():
    reading = Reading(Change(lost=(T1,)))
    reading.read(1)
    reading.read(1)
    assert reading.core.assignment == {T0}


def test_records_that_another_member_reads_again_are_not_committed_and_their_partition_is_named():
    reading = Reading()
    reading.read(6)
    reading.member.changes.append(Change(lost=(T0, T1)))
    reading.shell.run(reading.core.read_records(1, 0, 0))
    with pytest.raises(
        RefusedError, match=rf"the offsets of {TOPIC}-0, {TOPIC}-1 are not committed: group 'g' has given"
    ):
        reading.commit()
    reading.commit()
    assert reading.committed() == {T0: 0, T1: 0}


def test_a_member_that_was_replaced_loses_what_it_has_handed_out():
    reading = Reading()
    reading.read()
    reading.member.refusal = RefusedError(ErrorCode.unknown_member_id, "replaced")
    with pytest.raises(RefusedError) as refused:
        reading.commit()
    assert refused.value.code is ErrorCode.illegal_generation


def test_another_refusal_of_a_commit_is_that_of_the_coordinator():
    reading = Reading()
    reading.read()
    reading.member.refusal = RefusedError(ErrorCode.group_authorization_failed, "no right")
    with pytest.raises(RefusedError, match="no right"):
        reading.commit()


def test_paused_partitions_are_not_handed_out_until_they_are_resumed():
    reading = Reading()
    reading.read(0)
    reading.core.pause(TOPIC, 0)
    assert reading.read() == ["1-0", "1-1", "1-2"]
    reading.core.resume(TOPIC, 0)
    assert reading.read() == ["0-0", "0-1", "0-2"]


# -- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_commits_what_was_handed_out():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(writer)
    reading.read()
    assert reading.core.offsets_to_commit(writer) == {T0: 3, T1: 3}
    reading.core.end_transaction(writer, {T0: 3, T1: 3})
    assert reading.core.offsets_to_commit(writer) == {}
    assert reading.read() == []


def test_after_a_transaction_that_failed_its_records_are_handed_out_again():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(writer)
    records = reading.read()
    reading.core.end_transaction(writer, None)
    assert reading.read() == records


def test_while_a_transaction_is_open_it_alone_commits():
    reading = Reading()
    reading.core.begin_transaction(object())
    with pytest.raises(UsageError, match="a transaction of this reader is open: it commits the offsets"):
        reading.commit()
    with pytest.raises(UsageError, match="another transaction of this reader is open: end it first"):
        reading.core.check_free()


def test_a_transaction_whose_records_may_be_handed_out_again_is_aborted():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(writer)
    reading.read()
    reading.core.rewind_later()
    with pytest.raises(
        TransactionAbortedError, match="its reader goes back to the committed offsets, or is closed"
    ):
        reading.core.offsets_to_commit(writer)


def test_an_earlier_transaction_changes_nothing():
    reading, earlier, writer = Reading(), object(), object()
    reading.core.begin_transaction(earlier)
    reading.core.end_transaction(earlier, {})
    reading.core.begin_transaction(writer)
    reading.read()
    reading.core.end_transaction(earlier, None)
    assert reading.core.offsets_to_commit(writer) == {T0: 3, T1: 3}


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_closed_reader_has_left_and_refuses_each_call():
    reading = Reading()
    reading.read()
    reading.shell.run(reading.core.close())
    assert reading.member.has_left
    for call in (reading.read, reading.commit, reading.core.check_free):
        with pytest.raises(UsageError, match="this reader is closed: subscribe again"):
            call()


def test_a_seek_needs_a_partition_that_the_reader_has():
    reading = Reading()
    reading.read()
    with pytest.raises(UsageError, match=f"the group has assigned not {TOPIC}-7 to this reader now"):
        reading.shell.run(reading.core.seek((TOPIC, 7), 0))
