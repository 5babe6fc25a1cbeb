"""Transactions at a broker without joint commits: our own, which does not tell that it has them."""

import pytest
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.client.core import endings, writing
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.keys import WriterKey
from stablelog.errors import OutcomeUnknownError, RefusedError
from stablelog.wire.api import ApiKey
from tests.client.plain_transactions import ALWAYS, WITH_FATES, WITH_GROUPS, Case, group, name_of
from tests.client.transactions import create, flush, writing_of


@pytest.fixture(params=["first dialect", "second dialect"])
def case(request, monkeypatch, face, stablelog_broker):
    speaks = BrokerConnection.supports_api
    monkeypatch.setattr(
        BrokerConnection,
        "supports_api",
        lambda self, api, *more: api != ApiKey.COMMIT_JOINT and speaks(self, api, *more),
    )
    if request.param == "first dialect":
        monkeypatch.setattr(BrokerConnection, "features", {})

    def made(_name, partitions):
        return create(stablelog_broker.bootstrap, "offset", partitions)

    return Case(face, stablelog_broker, made)


@pytest.mark.parametrize("scenario", ALWAYS, ids=name_of)
def test_a_transaction(case, scenario):
    scenario(case)


@pytest.mark.parametrize("scenario", WITH_GROUPS, ids=name_of)
def test_a_transaction_with_offsets(case, scenario):
    scenario(case, group())


@pytest.mark.sampled(11)
@pytest.mark.parametrize("fate", ["request", "answer"])
@pytest.mark.parametrize("scenario", WITH_FATES, ids=name_of)
def test_a_transaction_in_doubt(case, scenario, fate):
    scenario(case, fate)


def test_without_records_the_log_cannot_be_asked(case):
    """A program whose transaction commits only offsets asks the group."""
    with case.client() as client:
        with client.transaction() as txn:
            txn.write(case.source, value=b"a")
        with client.subscribe(case.source, group=group(), wait=30) as reader:
            next(reader)
            txn, _ = case.in_doubt(client, "answer", offsets_of=reader)
            case.fence(txn)
            with pytest.raises(OutcomeUnknownError, match="Another call of commit"):
                txn.commit()


def test_records_that_were_removed_leave_the_outcome_unknown(case):
    with case.client() as client:
        txn, _ = case.in_doubt(client, "answer", b"v")
        case.fence(txn)
        with case.face.connect(case.broker.bootstrap, 30) as other:
            with other.transaction() as later:
                later.write(case.topic, value=b"w", partition=0)
            delete_records(case.broker.bootstrap, case.topic, later.commit().last.offset)
        with pytest.raises(OutcomeUnknownError, match="are removed"):
            txn.commit()


@pytest.mark.sampled(29)
@pytest.mark.parametrize(
    "answers",
    [
        [ErrorCode.unknown_server_error],
        [ErrorCode.invalid_request],
        [ErrorCode.not_coordinator, ErrorCode.unknown_server_error],
        *(
            [None, code]
            for code in (
                ErrorCode.unknown_server_error,
                ErrorCode.producer_fenced,
                ErrorCode.transaction_abortable,
                ErrorCode.transactional_id_authorization_failed,
            )
        ),
    ],
    ids=lambda answers: "-".join("lost" if code is None else code.name for code in answers),
)
@pytest.mark.parametrize("call", ["commit", "abort"])
def test_no_code_reports_a_commit_as_aborted(case, answers, call):
    """The broker carries out the first request for the commit, and the client gets these answers."""
    with case.client() as client:
        txn, futures = case.begin(client, b"v")
        case.answers = list(answers)
        try:
            txn.commit()
        except OutcomeUnknownError:
            assert not any(future.done() for future in futures)
            if call == "abort":
                with pytest.raises(RefusedError, match="is committed"):
                    txn.abort()
        assert txn.commit().first == futures[0].result()
        assert not case.answers
    case.sees(b"v")


def test_a_read_of_the_log_that_fails_leaves_the_commit_in_doubt(case, monkeypatch):
    with case.client() as client:
        txn, futures = case.in_doubt(client, "answer", b"v")
        case.fence(txn)
        with monkeypatch.context() as patch:

            def failing(*_, **__):
                raise RefusedError(ErrorCode.unknown_server_error, "the disk")
                yield

            patch.setattr(endings, "list_offsets", failing)
            with pytest.raises(OutcomeUnknownError, match="the disk"):
                txn.commit()
        assert txn.commit().first == futures[0].result()


def test_a_topic_that_was_deleted_leaves_the_outcome_unknown(case):
    with case.client() as client:
        txn, _ = case.in_doubt(client, "answer", b"v")
        case.fence(txn)
        with stablelog.connect(case.broker.bootstrap) as other:
            other.admin.topics.delete(case.topic)
        for call in (txn.commit, txn.abort):
            with pytest.raises(OutcomeUnknownError, match="Another call of commit"):
                call()


def delete_records(bootstrap, topic, offset):
    with stablelog.connect(bootstrap) as client:
        client.admin.topics.delete_records({(topic, 0): offset})


def test_an_id_is_dropped_before_its_producer_gets_another_number(case, monkeypatch):
    monkeypatch.setattr(writing, "EPOCH_MAX", 3)
    with case.client() as client:
        ids = []
        for _ in range(6):
            txn, _ = case.begin(client, b"v")
            ids.append(writing_of(txn).transactional_id)
            txn.commit()
        assert 1 < len(set(ids)) < 6


def test_a_key_makes_ids_of_this_client(case):
    assert WriterKey("").transactional_id.startswith("joint:")
    with case.client() as client:
        txn, _ = case.begin(client, b"v")
        flush(txn)
        assert writing_of(txn).transactional_id == f"stablelog-{writing_of(txn).key.name}"
        txn.abort()


def test_a_commit_without_a_number_shows_none(case):
    with case.client() as client:
        txn, _ = case.begin(client, b"v")
        txn.commit()
        assert writing_of(txn).status == "committed"
