"""The brokers of a cluster: connections, retries, leaders and coordinators."""

import re

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import FRESH_S, Cluster
from stablelog.client.core.coordinators import GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from stablelog.client.core.steps import Pause
from stablelog.client.responses import RetriableError
from stablelog.errors import RefusedError, UnavailableError
from tests.client.core.scripted import Brokers
from tests.client.model_broker import ADDRESS, ModelBroker, ModelShell


@pytest.fixture
def brokers():
    return Brokers({}, {"t": 4, "u": 1, "__internal": 1})


@pytest.fixture
def cluster(brokers):
    return brokers.cluster()


def attempts(*outcomes):
    """Steps of an attempt that has these outcomes in turn, and the number of attempts so far."""
    left = list(outcomes)

    def attempt():
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
        yield

    return attempt


def test_an_attempt_is_repeated_until_it_succeeds(brokers, cluster):
    attempt = attempts(RetriableError("not yet"), UnavailableError("away"), 5)
    assert brokers.run(cluster.retrying("trying", attempt)) == 5
    assert brokers.pauses == [0.02, 0.04]


def test_an_error_that_no_retry_can_resolve_ends_the_call(brokers, cluster):
    refused = RefusedError(ErrorCode.topic_authorization_failed, "no right")
    with pytest.raises(RefusedError, match="no right"):
        brokers.run(cluster.retrying("trying", attempts(refused)))
    assert brokers.pauses == []


def test_a_call_that_was_cancelled_is_not_tried_again(brokers, cluster):
    cluster.cancel_retries()
    with pytest.raises(
        UnavailableError, match=r"^trying did not succeed: the call was cancelled. The last failure: not yet$"
    ):
        brokers.run(cluster.retrying("trying", attempts(RetriableError("not yet"))))
    with pytest.raises(UnavailableError, match=r"^waiting did not succeed: the call was cancelled$"):
        cluster.check_cancelled("waiting")
    cluster.allow_retries()
    assert brokers.run(cluster.retrying("trying", attempts(RetriableError("not yet"), 5))) == 5


def test_a_call_within_another_has_the_rest_of_its_time(brokers, cluster):
    def outer():
        brokers.now += 3
        return (yield from cluster.retrying("inner", attempts(RetriableError("not yet"))))

    with pytest.raises(UnavailableError, match="inner did not succeed within 5 s"):
        brokers.run(cluster.run_until_deadline(outer()))
    assert brokers.now <= 5


def test_any_broker_that_answers_is_enough(brokers):
    from stablelog.client.core.cluster import Cluster

    cluster = Cluster("one:9092,two:9092", deadline_s=5)
    brokers.away = {"one"}
    assert brokers.run(cluster.any_connection()).host == "two"
    brokers.away = {"one", "two"}
    cluster.close()
    with pytest.raises(UnavailableError, match=r"^one:9092 is away; two:9092 is away$"):
        brokers.run(cluster.any_connection())


def test_one_connection_to_a_broker_is_used_until_it_breaks(brokers, cluster):
    first = brokers.run(cluster.leader_connection("t", 1))
    assert brokers.run(cluster.leader_connection("t", 1)) is first
    first.close()
    assert brokers.run(cluster.leader_connection("t", 1)) is not first


def test_leaders_are_asked_for_once_until_the_metadata_is_forgotten(brokers, cluster):
    assert [brokers.run(cluster.leader("t", index)) for index in range(4)] == [1, 2, 3, 1]
    assert len(brokers.requests("Metadata")) == 1
    cluster.forget_metadata()
    brokers.run(cluster.leader("t", 0))
    assert len(brokers.requests("Metadata")) == 2


def test_partitions_are_grouped_by_their_leader(brokers, cluster):
    found = brokers.run(cluster.group_by_leader([("t", 0), ("t", 1), ("t", 3), ("u", 0)]))
    assert found == {1: [("t", 0), ("t", 3), ("u", 0)], 2: [("t", 1)]}


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do(brokers, cluster):
    with pytest.raises(RefusedError, match=r"^topic 't' has no partition 4, only 0 to 3$"):
        brokers.run(cluster.leader("t", 4))


def test_a_pattern_selects_topics_by_their_whole_names_without_internal_ones(brokers, cluster):
    assert list(brokers.run(cluster.metadata(re.compile("t|.*internal")))) == ["t"]
    assert list(brokers.run(cluster.metadata(re.compile("[a-z]")))) == ["t", "u"]


def test_the_number_of_partitions_is_asked_for_again_when_it_is_a_second_old(brokers, cluster):
    for now, asked in ((0, 1), (FRESH_S - 0.1, 1), (FRESH_S, 2)):
        brokers.now = now
        assert brokers.run(cluster.partition_counts(["t", "u"])) == {"t": 4, "u": 1}
        assert len(brokers.requests("Metadata")) == asked


def test_an_internal_topic_cannot_be_written(brokers, cluster):
    with pytest.raises(
        RefusedError, match=r"^__internal is an internal topic of the brokers, which clients cannot write"
    ):
        brokers.run(cluster.partition_counts(["__internal"]))


def test_the_coordinators_of_several_keys_are_asked_for_in_one_request_and_once(brokers, cluster):
    assert brokers.run(cluster.coordinator_ids(["a", "b", "c", "a"], GROUP_COORDINATOR)) == {
        "a": 1,
        "b": 2,
        "c": 3,
    }
    assert brokers.run(cluster.coordinator_ids(["c", "d"], GROUP_COORDINATOR)) == {"c": 3, "d": 1}
    keys = [request.coordinator_keys for _, request in brokers.requests("FindCoordinator")]
    assert keys == [("a", "b", "c"), ("d",)]


def test_the_coordinator_of_a_transactional_id_is_asked_for_once(brokers, cluster):
    """Not before each request, if there are several brokers."""
    brokers.run(cluster.metadata(()))
    for _ in range(3):
        attempt = cluster.retrying("working", lambda: cluster.coordinator("x", TRANSACTION_COORDINATOR))
        assert brokers.run(attempt).host == "one"
    assert len(brokers.requests("FindCoordinator")) == 1
    cluster.forget_metadata()  # as after an error
    brokers.run(cluster.coordinator("x", TRANSACTION_COORDINATOR))
    assert len(brokers.requests("FindCoordinator")) == 2


def test_a_lent_connection_is_lent_again_unless_it_broke_or_waits(brokers, cluster):
    first = brokers.run(cluster.lend_connection("one:9092"))
    cluster.return_connection(first)
    assert brokers.run(cluster.lend_connection("one:9092")) is first
    first.is_awaiting = True
    cluster.return_connection(first)
    assert first.is_closed
    assert brokers.run(cluster.lend_connection("one:9092")) is not first


def test_in_a_forked_process_the_parents_connections_are_dropped_and_not_closed(brokers, cluster):
    of_parent = brokers.run(cluster.any_connection())
    cluster.cancel_retries()
    cluster.forget_connections()
    assert not of_parent.is_closed
    assert not cluster.are_retries_cancelled
    assert brokers.run(cluster.any_connection()) is not of_parent


def test_pauses_between_retries_grow_and_end_at_the_deadline():
    shell, pauses = ModelShell(ModelBroker()), []
    cluster = Cluster(ADDRESS, deadline_s=5)

    def failing():
        raise RetriableError("not yet")
        yield

    def noted(steps):
        answer = None
        while True:
            effect = steps.send(answer)
            if isinstance(effect, Pause):
                pauses.append(effect.seconds)
                shell.now += effect.seconds
            answer = shell.now

    with pytest.raises(
        UnavailableError, match=r"trying did not succeed within 5 s\. The last failure: not yet"
    ):
        noted(cluster.retrying("trying", failing))
    assert pauses[:4] == [0.02, 0.04, 0.08, 0.16]
    assert max(pauses) == 1.0
    assert 4 < sum(pauses) <= 5
