"""Fetch sessions step by step beside a model that remembers everything plainly."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.broker.fetch import sessions as session_module
from stablelog.broker.fetch.sessions import EPOCH_MAX, NO_SESSION, FetchSessions, SessionPartition
from stablelog.errors import RefusedError
from stablelog.security.principal import Principal
from tests.scale import examples

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
CODES = (ErrorCode.invalid_fetch_session_epoch, ErrorCode.fetch_session_id_not_found)


def wanted(*keys, offset=0):
    return OrderedDict((key, SessionPartition(offset, 100)) for key in keys)


def code_of(call, *arguments):
    with pytest.raises(RefusedError) as caught:
        call(*arguments)
    return caught.value.code


def test_a_client_that_wants_no_session_gets_none():
    sessions = FetchSessions(10)
    assert sessions.begin_session(wanted(("t", 0)), ALICE, keep=False).session_id == NO_SESSION
    assert len(sessions) == 0


def test_where_no_sessions_are_kept_every_fetch_is_a_full_one():
    assert FetchSessions(0).begin_session(wanted(("t", 0)), ALICE, keep=True).session_id == NO_SESSION


def test_what_a_client_was_told_stays_when_it_changes_where_it_reads():
    sessions = FetchSessions(1)
    session = sessions.begin_session(wanted(("t", 0)), ALICE, keep=True)
    session.partitions["t", 0].last_sent = (5, 5, 0)
    again = sessions.resume_session(session.session_id, 1, ALICE, wanted(("t", 0), offset=7), [])
    assert (again.partitions["t", 0].fetch_offset, again.partitions["t", 0].last_sent) == (7, (5, 5, 0))
    sessions.resume_session(session.session_id, 2, ALICE, OrderedDict(), [("t", 0)])
    back = sessions.resume_session(session.session_id, 3, ALICE, wanted(("t", 0)), [])
    assert back.partitions["t", 0].last_sent is None, "forgotten and wanted again, it has been told nothing"


def test_the_epoch_begins_again_after_the_last():
    sessions = FetchSessions(1)
    session = sessions.begin_session(wanted(("t", 0)), ALICE, keep=True)
    session.epoch = EPOCH_MAX
    assert sessions.resume_session(session.session_id, EPOCH_MAX, ALICE, OrderedDict(), []).epoch == 1


class Model:
    """Every session as (epoch, partitions), the one used longest ago first, and its owner."""

    def __init__(self, count_max):
        self.count_max = count_max
        self.sessions = OrderedDict()
        self.owners = {}

    def begin(self, session_id, keys, owner):
        while len(self.sessions) >= self.count_max:
            self.sessions.popitem(last=False)
        self.sessions[session_id] = (1, dict.fromkeys(keys, 0))
        self.owners[session_id] = owner

    def end(self, session_id, owner):
        if self.owners[session_id] == owner:
            self.sessions.pop(session_id, None)

    def resume(self, session_id, epoch, owner, changed, forgotten, offset):
        if session_id not in self.sessions or self.owners[session_id] != owner:
            return ErrorCode.fetch_session_id_not_found
        known, partitions = self.sessions[session_id]
        if known != epoch:
            return ErrorCode.invalid_fetch_session_epoch
        self.sessions.move_to_end(session_id)
        partitions |= dict.fromkeys(changed, offset)
        for key in forgotten:
            partitions.pop(key, None)
        self.sessions[session_id] = (epoch + 1, partitions)
        return partitions


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(50))
@given(st.data())
def test_sessions_agree_with_the_model(data):
    sessions, model = FetchSessions(3), Model(3)
    ids = []
    some = st.lists(st.sampled_from(PARTITIONS), unique=True)
    for offset in range(data.draw(st.integers(1, 30))):
        owner = data.draw(st.sampled_from([ALICE, ALICE, BOB]))
        match data.draw(st.sampled_from(["begin", "resume", "resume", "end"])):
            case "begin":
                keys = data.draw(some)
                made = sessions.begin_session(wanted(*keys), owner, keep=True)
                assert made.session_id not in model.sessions
                model.begin(made.session_id, keys, owner)
                ids.append(made.session_id)
            case _ if not ids:
                pass
            case "end":
                gone = ids[data.draw(st.integers(0, len(ids) - 1))]
                sessions.end_session(gone, owner)
                model.end(gone, owner)
            case "resume":
                chosen = ids[data.draw(st.integers(0, len(ids) - 1))]
                epoch = model.sessions.get(chosen, (1, None))[0] - data.draw(st.sampled_from([0, 0, 0, 1]))
                changed, forgotten = data.draw(some), data.draw(some)
                expected = model.resume(chosen, epoch, owner, changed, forgotten, offset)
                arguments = (chosen, epoch, owner, wanted(*changed, offset=offset), forgotten)
                if expected in CODES:
                    assert code_of(sessions.resume_session, *arguments) is expected
                else:
                    found = sessions.resume_session(*arguments).partitions
                    assert {key: each.fetch_offset for key, each in found.items()} == expected
                    assert list(found) == list(expected), "new partitions come behind those that are there"
        assert len(sessions) == len(model.sessions)


def test_of_too_many_sessions_the_one_used_longest_ago_goes():
    sessions = FetchSessions(2)
    first, second = (sessions.begin_session(wanted(("t", 0)), ALICE, keep=True).session_id for _ in range(2))
    sessions.resume_session(first, 1, ALICE, OrderedDict(), [])
    sessions.begin_session(wanted(("t", 0)), ALICE, keep=True)
    assert (
        code_of(sessions.resume_session, second, 1, ALICE, OrderedDict(), [])
        is ErrorCode.fetch_session_id_not_found
    )
    assert sessions.resume_session(first, 2, ALICE, OrderedDict(), []).epoch == 3


def test_what_is_remembered_is_bounded_for_a_session_and_for_all(monkeypatch):
    monkeypatch.setattr(session_module, "SESSION_PARTITIONS_MAX", 5)
    monkeypatch.setattr(session_module, "PARTITIONS_MAX", 12)
    sessions = FetchSessions(10)

    def of(count, first=0):
        return wanted(*(("t", index) for index in range(first, first + count)))

    assert sessions.begin_session(of(6), ALICE, keep=True).session_id == NO_SESSION, (
        "it is answered, and not remembered"
    )
    ids = [sessions.begin_session(of(4), ALICE, keep=True).session_id for _ in range(4)]
    assert len(sessions) == 3
    assert (
        code_of(sessions.resume_session, ids[0], 1, ALICE, OrderedDict(), [])
        is ErrorCode.fetch_session_id_not_found
    )
    sessions.resume_session(ids[1], 1, ALICE, OrderedDict(), [("t", 0), ("t", 1)])
    sessions.resume_session(ids[2], 1, ALICE, of(1, first=4), [])
    assert (
        code_of(sessions.resume_session, ids[2], 2, ALICE, of(1, first=5), [])
        is ErrorCode.fetch_session_id_not_found
    )
    sessions.end_session(ids[1], ALICE)
    sessions.end_session(ids[3], ALICE)
    assert len(sessions) == 0
    assert all(sessions.begin_session(of(4), ALICE, keep=True).session_id for _ in range(3))
    assert len(sessions) == 3, "what has ended takes no room"


def test_a_request_that_changes_more_than_a_session_may_store_ends_the_session_and_changes_nothing(
    monkeypatch,
):
    monkeypatch.setattr(session_module, "SESSION_PARTITIONS_MAX", 5)
    sessions = FetchSessions(10)
    session = sessions.begin_session(wanted(("t", 0)), ALICE, keep=True)
    many = wanted(*(("t", index) for index in range(6)))
    forgotten = [("t", index) for index in range(6)]
    code = code_of(sessions.resume_session, session.session_id, 1, ALICE, many, forgotten)
    assert code is ErrorCode.fetch_session_id_not_found
    assert list(session.partitions) == [("t", 0)]
    assert len(sessions) == 0


def test_names_that_no_topic_can_have_are_not_remembered():
    """The names of unknown topics are up to 32 KB long."""
    sessions = FetchSessions(10)
    session = sessions.begin_session(wanted(("t" * 249, 0)), ALICE, keep=True)
    assert session.session_id != NO_SESSION
    for name in ("t" * 250, "\N{GRINNING FACE}"):
        assert sessions.begin_session(wanted(("t", 0), (name, 0)), ALICE, keep=True).session_id == NO_SESSION
    arguments = (session.session_id, 1, ALICE, wanted(("t" * 250, 0)), [])
    assert code_of(sessions.resume_session, *arguments) is ErrorCode.fetch_session_id_not_found
    assert len(sessions) == 0


def test_a_fetch_session_remembers_and_is_in_step():
    sessions = FetchSessions(2)
    session = sessions.begin_session(wanted(("t", 0), ("t", 1)), ALICE, keep=True)
    again = sessions.resume_session(session.session_id, 1, ALICE, wanted(("t", 2)), [("t", 0)])
    assert list(again.partitions) == [("t", 1), ("t", 2)]
    with pytest.raises(RefusedError) as caught:
        sessions.resume_session(session.session_id, 1, ALICE, wanted(), [])
    assert caught.value.code is ErrorCode.invalid_fetch_session_epoch
    for _ in range(3):
        sessions.begin_session(wanted(("t", 0)), ALICE, keep=True)
    assert len(sessions) == 2
    with pytest.raises(RefusedError) as caught:
        sessions.resume_session(session.session_id, 2, ALICE, wanted(), [])
    assert caught.value.code is ErrorCode.fetch_session_id_not_found
