"""How a transaction ends whose commit was requested: what a refusal decides, and what a lost response leaves open."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.outcomes import Committed
from stablelog.errors import (
    AuthenticationError,
    OutcomeUnknownError,
    RefusedError,
)
from stablelog.wire.api import ApiKey
from tests.client.core.test_writing import Transaction
from tests.client.model_broker import ModelBroker, ModelShell


@pytest.mark.parametrize(
    "refused",
    [
        AuthenticationError(ErrorCode.sasl_authentication_failed, "the password has changed"),
        RefusedError(ErrorCode.transactional_id_authorization_failed, "the right was taken away"),
        RefusedError(ErrorCode.unsupported_version, "another broker is there"),
        RefusedError(ErrorCode.unknown_server_error, "the request has failed"),
    ],
    ids=lambda refused: refused.code.name,
)
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_refusal_that_does_not_look_at_the_transaction_decides_nothing(refused, is_lost, monkeypatch):
    """The first request for the commit was carried out, and its response lost."""
    fates = ["answer"] if is_lost else []
    shell = ModelShell(
        ModelBroker(), lambda key: fates.pop() if key == ApiKey.COMMIT_JOINT and fates else None
    )
    txn = Transaction(shell)
    txn.write(0, b"v")
    shell.run(txn.writing.flush())
    coordinator, asked = txn.writing.cluster.coordinator, []

    def refusing(transactional_id):
        asked.append(transactional_id)
        if len(asked) > is_lost:
            raise refused
        return (yield from coordinator(transactional_id))

    monkeypatch.setattr(txn.writing.cluster, "coordinator", refusing)
    with pytest.raises(OutcomeUnknownError if is_lost else RefusedError, match=str(refused)):
        shell.run(txn.writing.commit())
    assert txn.outcomes == ([] if is_lost else [refused])
    monkeypatch.undo()
    if is_lost:
        assert shell.run(txn.writing.commit()).commit_sequence == 1
    assert len(shell.broker.visible) == is_lost


def test_an_abort_that_finds_the_commit_returns_it(monkeypatch):
    """The commit was carried out, its response lost, and the repeated request was refused."""
    fates = ["answer"]
    shell = ModelShell(
        ModelBroker(), lambda key: fates.pop() if key == ApiKey.COMMIT_JOINT and fates else None
    )
    txn = Transaction(shell)
    txn.write(0, b"v")
    shell.run(txn.writing.flush())
    coordinator, asked = txn.writing.cluster.coordinator, []

    def refusing(transactional_id):
        asked.append(transactional_id)
        if len(asked) == 2:
            raise RefusedError(ErrorCode.producer_fenced, "fenced")
        return (yield from coordinator(transactional_id))

    monkeypatch.setattr(txn.writing.cluster, "coordinator", refusing)
    assert shell.run(txn.writing.commit()).commit_sequence == 1
    assert len(asked) == 4
    assert [type(outcome) for outcome in txn.outcomes] == [Committed]
