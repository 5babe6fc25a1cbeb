"""A reader of a consumer group over a broker in memory: what it hands out, what is committed, and when it goes back."""

import math

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core import group_reading
from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.client.core.cluster import LATEST, Cluster
from stablelog.client.core.group_reading import GRACE_S, WAIT_MIN_S, GroupReading
from stablelog.client.core.membership import NO_CHANGE, Change
from stablelog.client.core.record_reader import RecordReader
from stablelog.client.topics import ListedOffset
from stablelog.errors import DataLossError, RefusedError, TransactionAbortedError, UsageError
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell

T0, T1 = (TOPIC, 0), (TOPIC, 1)


class Member:
    """A member of a group whose coordinator answers at once.

    Attributes:
        changes: what the next heartbeats change; or an error that is raised.
        committed_offsets: the committed offsets.
        is_pending: whether the committed offsets are not known yet.
        refusal: the error of the next commits; None for none.
    """

    group_id, next_due_s, is_pending = "g", math.inf, False

    def __init__(self, *changes):
        self.changes, self.committed_offsets, self.refusal, self.has_left = list(changes), {}, None, False

    def follow_assignment(self):
        change = self.changes.pop(0) if self.changes else NO_CHANGE
        if isinstance(change, Exception):
            raise change
        return change
        yield

    def committed_offsets_once(self, targets):
        if self.is_pending:
            return None
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

    def __init__(self, *changes, assigned=None, start="earliest"):
        broker = ModelBroker()
        for partition in (0, 1):
            broker.commit({partition: [b"%d-%d" % (partition, number) for number in range(3)]})
        first = Change(assigned=dict.fromkeys((T0, T1), CommittedOffset(0)) if assigned is None else assigned)
        self.shell, self.member = ModelShell(broker), Member(first, *changes)
        self.member.committed_offsets = {one: CommittedOffset(0) for one in (T0, T1)}
        self.core = GroupReading(Cluster(ADDRESS, deadline_s=3), self.member, "read_committed", start)

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


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    ],
    ids=lambda code: code.name,
)
def test_a_member_that_was_replaced_loses_what_it_has_handed_out(code):
    reading = Reading()
    reading.read()
    reading.member.refusal = RefusedError(code, "replaced")
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


def test_records_that_are_here_are_not_handed_out_of_a_partition_that_is_paused():
    reading = Reading(assigned={T0: CommittedOffset(0)})
    reading.read(1)
    reading.core.pause(TOPIC, None)
    assert reading.core.take_ready_record(0) is None
    reading.core.resume(TOPIC, None)
    assert reading.read() == ["0-1", "0-2"]


def test_a_commit_of_a_reader_that_is_to_go_back_commits_nothing():
    reading = Reading()
    reading.read()
    reading.core.rewind_later()
    reading.commit()
    assert reading.committed() == {T0: 0, T1: 0}


def test_a_heartbeat_a_revoked_partition_or_a_rewind_comes_before_records_that_are_here():
    reading = Reading()
    reading.read(1)
    now = reading.shell.now
    reading.member.next_due_s = now
    assert reading.core.take_ready_record(now) is None
    reading.member.next_due_s = math.inf
    reading.core.leaving = {T1}
    assert reading.core.take_ready_record(now) is None
    reading.core.leaving = set()
    assert reading.core.take_ready_record(now).value == b"0-1"
    reading.core.rewind_later()
    assert reading.core.take_ready_record(now) is None


def test_a_fetch_waits_no_longer_than_until_the_next_heartbeat_but_not_without_end_for_nothing():
    reading, waits = Reading(), []
    reading.read()
    broker, wait_until = reading.shell.broker, reading.shell.broker.wait_until
    broker.wait_until = lambda condition, seconds: waits.append(seconds) or wait_until(condition, seconds)
    reading.member.next_due_s = reading.shell.now + 0.2
    reading.shell.run(reading.core.read_records(1, 0.4, 0))
    assert waits[:2] == [pytest.approx(0.2, abs=0.002), WAIT_MIN_S]


def test_records_that_come_a_moment_after_the_first_ones_are_collected():
    reading = Reading()
    reading.shell.planned = [(0.5, lambda: reading.shell.broker.commit({0: [b"later"]}))]
    assert sorted(reading.read()) == [*EVERY, "later"]


def test_a_revoked_partition_is_kept_for_a_moment_until_its_records_are_committed():
    reading = Reading()
    reading.read()
    reading.member.changes = [Change(revoked=(T1,)), Change(lost=(T0,))]
    reading.shell.run(reading.core.read_records(1, 0, 0))
    assert (reading.core.leaving, reading.core.assignment) == ({T1}, {T0})
    reading.shell.pass_time(GRACE_S - 0.1)
    reading.shell.run(reading.core.read_records(1, 0, 0))
    assert reading.core.assignment == {T0}, (
        "the coordinator learns that the partition is free with a heartbeat"
    )
    reading.commit()
    assert reading.committed() == {T0: 3, T1: 3}
    reading.shell.run(reading.core.read_records(1, 0, 0))
    assert (reading.core.leaving, reading.core.assignment) == (set(), set())


def test_a_revoked_partition_is_given_up_when_the_moment_has_passed():
    reading = Reading()
    reading.read()
    reading.member.changes = [Change(revoked=(T1,))]
    reading.shell.run(reading.core.read_records(1, 0, 0))
    reading.shell.pass_time(GRACE_S)
    reading.shell.run(reading.core.read_records(1, 0, 0))
    with pytest.raises(RefusedError, match=f"the offsets of {TOPIC}-1 are not committed"):
        reading.commit()
    assert reading.committed() == {T0: 3, T1: 0}


@pytest.fixture
def rounds(monkeypatch):
    """What happens to the result of each next round of fetches: functions of the reader and of the result."""
    changes, read_round = [], RecordReader.read_round

    def changed(self, wait_s):
        found = yield from read_round(self, wait_s)
        return changes.pop(0)(self, found) if changes else found

    monkeypatch.setattr(RecordReader, "read_round", changed)
    return changes


def test_markers_after_the_last_record_count_as_read_once_no_record_is_left(rounds):
    def with_marker(reader, found):
        reader.positions[T0] += 1
        return found

    reading = Reading(assigned={T0: CommittedOffset(0)})
    rounds.append(with_marker)
    reading.read(2)
    reading.commit()
    assert reading.committed()[T0] == 2
    assert reading.read(1) == ["0-2"]
    reading.commit()
    assert reading.committed()[T0] == 4


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_loss_is_told_once_after_the_records_before_it_unless_the_reader_goes_back(rounds, goes_back):
    reading = Reading()
    first = reading.read(1)
    rounds.append(lambda _, found: found._replace(moved={T1: 7}))
    got = first + reading.read()
    if goes_back:
        reading.core.rewind_later()
    else:
        with pytest.raises(DataLossError, match=f"{TOPIC}-1 has no record at offset 7, where group 'g' was"):
            got += reading.read()
    got += reading.read()
    assert sorted(set(got)) == EVERY
    assert reading.shell.run(reading.core.read_records(1, 0, 0)) == []


def test_while_the_committed_offsets_are_not_known_the_reader_does_not_go_back():
    reading = Reading()
    reading.read(2)
    reading.commit()
    later = reading.read()
    reading.core.rewind_later()
    reading.member.is_pending = True
    assert reading.shell.run(reading.core.read_records(100, 0.3, 0)) == []
    reading.member.is_pending = False
    assert reading.read() == later


def test_records_of_before_a_rewind_are_not_handed_out_after_an_error():
    reading = Reading()
    reading.read(1)
    reading.member.changes = [RefusedError(ErrorCode.group_authorization_failed, "no right")] * 2
    assert len(reading.read()) == 2, "without a rewind, the records come first"
    reading = Reading()
    reading.read(1)
    reading.core.rewind_later()
    reading.member.changes = [RefusedError(ErrorCode.group_authorization_failed, "no right")]
    with pytest.raises(RefusedError, match="no right"):
        reading.read()


# -- seeks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def offsets(monkeypatch):
    """The offset that each time or special timestamp finds in every partition; any offset of a seek exists."""
    found = {LATEST: 3}

    def listed(_cluster, specs, _isolation):
        return {target: ListedOffset(found[spec], 0, 0) for target, spec in specs.items()}
        yield

    def exist(_cluster, _offsets, _isolation):
        return
        yield

    monkeypatch.setattr(group_reading, "list_offsets", listed)
    monkeypatch.setattr(group_reading, "check_offsets", exist)
    return found


def test_a_seek_to_a_time_begins_at_its_first_record_or_at_the_end(offsets):
    offsets |= {1000: 0, 2000: 2, 3000: -1}
    reading = Reading()
    assert sorted(reading.read()) == EVERY
    for time_ms, again in ((1000, EVERY), (2000, ["0-2", "1-2"]), (3000, [])):
        reading.shell.run(reading.core.seek_to_spec(time_ms, None, None))
        assert sorted(reading.read()) == again
    reading.shell.run(reading.core.seek_to_spec(2000, TOPIC, 1))
    reading.commit()
    assert reading.committed() == {T0: 3, T1: 2}


def test_a_seek_drops_the_records_that_were_fetched_before(offsets):
    reading = Reading(assigned={T0: CommittedOffset(0)})
    reading.read(1)
    reading.shell.run(reading.core.seek(T0, 0))
    assert reading.read() == ["0-0", "0-1", "0-2"]


def test_a_commit_has_the_offset_of_a_seek_although_the_reader_goes_back_before(offsets):
    reading = Reading()
    reading.read()
    reading.shell.run(reading.core.seek(T0, 1))
    reading.core.rewind_later()
    reading.commit()
    assert reading.committed() == {T0: 1, T1: 0}


def test_before_a_seek_a_member_that_was_replaced_joins_again(offsets, monkeypatch):
    """Until then the coordinator does not tell the committed offsets."""
    reading = Reading()
    reading.read()
    reading.member.is_pending = True

    def joining():
        reading.member.is_pending = False
        return NO_CHANGE
        yield

    monkeypatch.setattr(reading.member, "follow_assignment", joining)
    reading.core.rewind_later()
    reading.shell.run(reading.core.seek(T0, 2))
    assert sorted(reading.read()) == ["0-2", "1-0", "1-1", "1-2"]


def test_a_reader_that_has_begun_at_the_end_goes_back_to_where_it_began(offsets):
    offsets[LATEST] = 1
    reading = Reading(assigned={T0: None}, start="latest")
    reading.member.committed_offsets = {}
    records = reading.read()
    assert records == ["0-1", "0-2"]
    offsets[LATEST] = 3
    reading.core.rewind_later()
    assert reading.read() == records


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
    with pytest.raises(UsageError, match="a transaction of this reader is open and commits the offsets"):
        reading.commit()
    with pytest.raises(
        UsageError, match="another transaction of this reader is open: end that transaction first"
    ):
        reading.core.check_free()


def test_a_transaction_whose_records_may_be_handed_out_again_is_aborted():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(writer)
    reading.read()
    reading.core.rewind_later()
    with pytest.raises(
        TransactionAbortedError,
        match="the reader goes back to the committed offsets, or is closed",
    ):
        reading.core.offsets_to_commit(writer)


def test_a_transaction_that_is_not_the_last_one_or_whose_reader_is_closed_commits_no_offsets():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(object())
    with pytest.raises(TransactionAbortedError):
        reading.core.offsets_to_commit(writer)
    reading.core.begin_transaction(writer)
    assert reading.core.offsets_to_commit(writer) == {}
    reading.shell.run(reading.core.close())
    with pytest.raises(TransactionAbortedError):
        reading.core.offsets_to_commit(writer)


def test_after_a_transaction_the_reader_is_free():
    reading, writer = Reading(), object()
    reading.core.begin_transaction(writer)
    reading.core.end_transaction(writer, {})
    reading.core.check_free()


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
    reading.shell.run(reading.core.close())
    for call in (reading.read, reading.commit, reading.core.check_free):
        with pytest.raises(UsageError, match="this reader is closed: subscribe again"):
            call()


def test_a_seek_needs_a_partition_that_the_reader_has():
    reading = Reading()
    reading.read()
    with pytest.raises(UsageError, match=f"the group has assigned not {TOPIC}-7 to this reader now"):
        reading.shell.run(reading.core.seek((TOPIC, 7), 0))


def test_a_reader_that_is_being_closed_refuses_each_call():
    reading = Reading()
    reading.core.is_closing = True
    with pytest.raises(UsageError, match="this reader is closed: subscribe again"):
        reading.read()


def test_a_reader_that_cannot_leave_its_group_is_closed_all_the_same(monkeypatch):
    def refused():
        raise RefusedError(ErrorCode.unknown_member_id, "replaced")
        yield

    reading = Reading()
    monkeypatch.setattr(reading.member, "leave_group", refused)
    reading.shell.run(reading.core.close())
    assert reading.core.is_closed
