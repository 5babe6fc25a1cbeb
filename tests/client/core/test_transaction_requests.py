"""The requests of a transactional producer, in the versions of both transaction versions."""

from datetime import timedelta

import pytest

from stablelog.client.core.transaction_requests import (
    ProducerIdentity,
    add_partitions_request,
    end_request,
    init_producer_request,
)

PRODUCER = ProducerIdentity("x", 41, 2)


@pytest.mark.parametrize("transactional_id", ["x", None])
def test_a_producer_id_is_requested_with_the_timeout_of_the_transactions(transactional_id):
    request = init_producer_request(transactional_id, 1500)
    assert request.__version__ == 5
    assert request.transactional_id == transactional_id
    assert request.transaction_timeout == timedelta(seconds=1.5)


def test_partitions_are_added_by_topic_in_their_order():
    request = add_partitions_request(PRODUCER, {("u", 1), ("t", 2), ("t", 0)})
    assert (
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
    ) == PRODUCER
    found = [(one.name, one.partitions) for one in request.v3_and_below_topics]
    assert found == [("t", (0, 2)), ("u", (1,))]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("is_tv2", "version"), [(True, 5), (False, 4)])
def test_the_end_has_the_version_that_returns_an_epoch_only_if_the_coordinator_does(is_tv2, version, commit):
    request = end_request(PRODUCER, is_tv2=is_tv2, commit=commit)
    assert request.__version__ == version
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == PRODUCER
    assert request.committed is commit
