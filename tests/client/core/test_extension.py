"""Requests of stablelog's own APIs: retried as long as that can help, and refused where the broker has another reason."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.extension import call_extension, request_about_topics
from stablelog.client.responses import RETRIABLE_CODES, UnknownTopicOrPartitionError
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.cut import DescribeCutRequest
from tests.client.core.scripted import NONE, Brokers, reply

REQUEST = DescribeCutRequest(group=None, commit_sequence=-1, topics=("t",))


def answer(code=NONE, message=None):
    return lambda request: reply(request, error_code=code, error_message=message, commit_sequence=5)


def brokers(*answers, **options):
    return Brokers({"DescribeCut": list(answers)}, {"t": 1}, **options)


def ask(script, steps=request_about_topics, *arguments, **options):
    cluster = script.cluster()
    return script.run(steps(cluster, cluster.any_connection, REQUEST, "asking", *arguments, **options))


def test_the_response_is_returned():
    assert ask(brokers(answer())).commit_sequence == 5


def test_a_broker_that_does_not_know_the_api_is_named():
    script = brokers(answer(), last_versions={ApiKey.DESCRIBE_CUT: -1})
    with pytest.raises(
        RefusedError,
        match=r"^the broker at one:9092 does not know this request, which only a stablelog broker supports: asking",
    ) as refused:
        ask(script)
    assert refused.value.code is ErrorCode.unsupported_version
    assert script.asked == []


def test_a_retriable_error_is_repeated():
    script = brokers(answer(ErrorCode.coordinator_load_in_progress), answer())
    assert ask(script).commit_sequence == 5
    assert len(script.asked) == 2


def test_a_topic_that_does_not_exist_is_refused_at_once():
    """Only the broker's list of topics tells it here, and no leader that is behind."""
    script = brokers(answer(ErrorCode.unknown_topic_or_partition, "there is no topic t"))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"^there is no topic t$"):
        ask(script)
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    ("message", "told"), [("in the broker's words", "in the broker's words"), (None, "invalid_request")]
)
def test_another_error_is_refused_with_the_brokers_words_or_its_name(message, told):
    with pytest.raises(RefusedError, match=told):
        ask(brokers(answer(ErrorCode.invalid_request, message)))


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        ([answer()], 0),
        ([answer(ErrorCode.invalid_request)], 0),
        ([answer(ErrorCode.coordinator_load_in_progress), answer()], 1),
        ([UnavailableError("lost"), answer()], 1),
        ([answer(ErrorCode.unknown_server_error)], 1),
    ],
    ids=["done", "refused", "retriable", "lost", "broken off"],
)
def test_requests_that_the_broker_may_have_carried_out_without_saying_so_are_counted(answers, count):
    unanswered = []
    script = brokers(*answers)
    ask(script, call_extension, RETRIABLE_CODES, lambda: unanswered.append(1))
    assert len(unanswered) == count


def test_without_an_answer_the_call_ends_at_its_deadline_with_the_last_failure():
    script = brokers(UnavailableError("lost"))
    with pytest.raises(
        UnavailableError, match=r"^asking did not succeed within 5 s\. The last failure: lost"
    ):
        ask(script)
