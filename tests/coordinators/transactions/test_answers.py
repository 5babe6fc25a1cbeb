"""Decisions and the answers of the transaction coordinator."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision, Draft, EndAnswer, InitAnswer
from tests.coordinators.transactions.test_marker_orders import RAISING


def test_a_decision_has_what_was_put_into_its_draft():
    draft = Draft(now_ms=5)
    assert draft.decision("answer") == Decision("answer", [], [])
    draft.records.append((b"key", b"value"))
    draft.markers.append(RAISING)
    assert draft.decision("answer") == Decision("answer", [(b"key", b"value")], [RAISING])


def test_two_drafts_share_nothing():
    draft = Draft(now_ms=5)
    draft.records.append((b"key", None))
    assert Draft(now_ms=5).records == []
    assert Decision(None).records == []


def test_an_answer_without_more_has_no_error_and_no_producer():
    assert InitAnswer() == (ErrorCode.none, -1, -1, -1, -1)
    assert EndAnswer() == (ErrorCode.none, -1, -1)
