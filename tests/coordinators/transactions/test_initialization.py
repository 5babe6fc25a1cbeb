"""InitProducerId: which id and epoch a producer gets, and who is fenced by it."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision, InitAnswer
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    decode_transaction,
    encode_transaction,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from tests.coordinators.transactions.test_coordinator import T0, add, coordinator, end, in_state, init, marked


def test_a_late_copy_of_an_init_is_answered_only_while_nothing_has_begun_since() -> None:
    """With the open transaction if it was kept, and asked for again."""
    for keeps in (True, False):
        for keeps_again in (True, False):
            c = coordinator()
            who = init(c, enable_two_phase=True)
            shown = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
            if keeps:
                add(c, who, T0)
            asked = {"enable_two_phase": True, **shown}
            answer = init(c, keep_prepared=keeps, **asked)
            assert (answer.error, answer.producer_epoch) == (ErrorCode.none, 1)
            assert (answer.ongoing_producer_epoch == 0) == keeps
            if not keeps:
                assert init(c, keep_prepared=keeps_again, **asked) == answer
                add(c, answer, T0)
            before = c.table.checkpoint()
            again = init(c, keep_prepared=keeps_again, **asked)
            expected = answer if keeps and keeps_again else InitAnswer(ErrorCode.producer_fenced)
            assert again == expected
            assert c.table.checkpoint() == before


def test_behind_the_last_epoch_comes_a_new_producer_id() -> None:
    """Epoch 32767 is for markers only, so that whoever has the last one can still be fenced."""
    for epoch, following, marker_epoch in ((32764, (0, 32765), 32765), (32766, (1, 0), 32767)):
        for is_open in (False, True):
            c, restarted = (
                TransactionCoordinator(TransactionConfig(), producer_ids=ProducerIds(1)) for _ in range(2)
            )
            who = init(c)
            if is_open:
                add(c, who, T0)
            for key, value in c.table.checkpoint():
                assert value is not None
                if key == transaction_key("a"):
                    value = encode_transaction(decode_transaction(value)._replace(producer_epoch=epoch))
                restarted.table.replay(key, value)
            restarted.finish_replay(0)
            if is_open:
                (order,) = restarted.force_abort("a", now_ms=0).markers
                assert (order.producer_id, order.producer_epoch) == (0, marker_epoch)
                described = restarted.table.get("a")
                assert described is not None
                found = tuple(described.client)
            else:
                answer = init(restarted)
                found = answer.producer_id, answer.producer_epoch
            assert found == following


def test_a_producer_without_a_transactional_id_gets_a_new_id_each_time() -> None:
    c = coordinator()
    answers = [c.producers.init_producer_id(None, 0, api_version=5, now_ms=0).answer for _ in range(2)]
    assert answers == [InitAnswer(ErrorCode.none, 0, 0), InitAnswer(ErrorCode.none, 1, 0)]
    assert len(c.table) == 0


def test_a_new_producer_fences_the_one_before_and_waits_for_the_end_of_its_transaction() -> None:
    c, old = in_state(TransactionState.ONGOING)
    decision = c.producers.init_producer_id("a", 60_000, api_version=6, now_ms=0)
    assert decision.answer == InitAnswer(ErrorCode.concurrent_transactions)
    (order,) = decision.markers
    assert (order.producer_id, order.producer_epoch) == (old.producer_id, old.producer_epoch + 1)
    marked(c, decision)
    assert init(c) == InitAnswer(ErrorCode.none, old.producer_id, old.producer_epoch + 1), (
        "no producer had this epoch"
    )
    assert end(c, old, commit=True).answer.error is ErrorCode.producer_fenced


def test_a_producer_that_continues_after_an_error_gets_the_next_epoch() -> None:
    c, who = in_state(TransactionState.EMPTY)
    shown = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    assert init(c, **shown) == InitAnswer(ErrorCode.none, who.producer_id, who.producer_epoch + 1)
    assert init(c, **shown) == InitAnswer(ErrorCode.none, who.producer_id, who.producer_epoch + 1), (
        "a repetition"
    )
    assert init(c, producer_id=who.producer_id, producer_epoch=7).error is ErrorCode.producer_fenced


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.invalid_producer_epoch), (4, ErrorCode.producer_fenced)]
)
def test_a_fenced_producer_gets_the_code_that_its_version_knows(version: int, code: ErrorCode) -> None:
    c, who = in_state(TransactionState.EMPTY)
    assert init(c, producer_id=who.producer_id, producer_epoch=7, api_version=version).error is code


@pytest.mark.parametrize(
    ("settings", "given", "code"),
    [
        ({}, {"timeout_ms": 0}, ErrorCode.invalid_transaction_timeout),
        ({}, {"timeout_ms": 900_001}, ErrorCode.invalid_transaction_timeout),
        ({}, {"timeout_ms": 900_000}, ErrorCode.none),
        ({}, {"timeout_ms": -1, "enable_two_phase": True}, ErrorCode.transactional_id_authorization_failed),
        ({}, {"keep_prepared": True}, ErrorCode.transactional_id_authorization_failed),
        ({"two_phase_commit_enable": True}, {"timeout_ms": -1, "enable_two_phase": True}, ErrorCode.none),
        ({"strict": True}, {"api_version": 4}, ErrorCode.policy_violation),
        ({"strict": True}, {"api_version": 5}, ErrorCode.none),
    ],
    ids=str,
)
def test_what_the_settings_do_not_allow_is_refused(settings: dict, given: dict, code: ErrorCode) -> None:
    c = TransactionCoordinator(TransactionConfig(**settings))
    assert init(c, **given).error is code
    assert len(c.table) == (code is ErrorCode.none)


def test_a_group_takes_over_an_id_with_its_producer_and_the_default_group_forgets_it() -> None:
    default, _ = in_state(TransactionState.COMPLETE_COMMIT)
    held = default.table.require_state("a")
    group = TransactionCoordinator(TransactionConfig(), group="g")
    decision = group.producers.import_id("a", held, now_ms=5)
    ((key, value),) = decision.records
    taken = group.table.require_state("a")
    assert (key, value) == (transaction_key("a"), encode_transaction(taken))
    assert (taken.state, taken.client, taken.predecessor) == (
        TransactionState.EMPTY,
        held.client,
        held.predecessor,
    )
    assert (taken.timeout_ms, taken.transaction_version, taken.update_ms) == (held.timeout_ms, 2, 5)
    assert default.producers.forget_id("a", now_ms=5) == Decision(None, [(transaction_key("a"), None)])
    assert "a" not in default.table
    assert end(group, InitAnswer(ErrorCode.none, *held.client), commit=False).answer.error is ErrorCode.none
