"""FindCoordinator: the brokers that coordinate groups and transactional ids."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.coordinators import (
    GROUP_COORDINATOR,
    SEVERAL_COORDINATORS,
    TRANSACTION_COORDINATOR,
    Coordinator,
    find_coordinators,
)
from stablelog.client.responses import RetriableError
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey
from tests.client.core.scripted import NONE, Brokers, Link, part, reply


def find(brokers, *keys, kind=GROUP_COORDINATOR):
    return brokers.run(find_coordinators(Link("one", brokers), kind, keys))


def test_coordinators_of_several_keys_are_named_in_one_response():
    brokers = Brokers()
    assert find(brokers, "a", "b") == {"a": Coordinator(1, "one", 9092), "b": Coordinator(2, "two", 9092)}
    request = brokers.request("FindCoordinator")
    assert (request.key_type, request.coordinator_keys) == (0, ("a", "b"))


def test_transactional_ids_are_of_kafkas_type_1():
    brokers = Brokers()
    find(brokers, "x", kind=TRANSACTION_COORDINATOR)
    assert brokers.request("FindCoordinator").key_type == 1


def test_an_earlier_broker_is_asked_for_one_key_after_the_other():
    def answer(request):
        return reply(
            request, error_code=NONE, error_message=None, node_id=3, host=f"host-of-{request.key}", port=9092
        )

    last_versions = {ApiKey.FIND_COORDINATOR: SEVERAL_COORDINATORS - 1}
    brokers = Brokers({"FindCoordinator": answer}, last_versions=last_versions)
    found = find(brokers, "a", "b")
    assert found == {key: Coordinator(3, f"host-of-{key}", 9092) for key in ("a", "b")}
    assert [request.key for _, request in brokers.asked] == ["a", "b"]


def refused(code, message):
    def answer(request):
        one = part(
            request,
            "Coordinator",
            key="a",
            node_id=-1,
            host="",
            port=-1,
            error_code=code,
            error_message=message,
        )
        return reply(request, coordinators=(one,))

    return Brokers({"FindCoordinator": answer})


def test_a_refusal_names_the_key_and_has_the_brokers_words():
    with pytest.raises(RefusedError, match="the coordinator of 'a': loading") as error:
        find(refused(ErrorCode.coordinator_not_available, "loading"), "a")
    assert error.value.code is ErrorCode.coordinator_not_available


def test_a_key_that_the_response_lacks_is_asked_for_again():
    with pytest.raises(RetriableError, match="one:9092 did not name a coordinator for 'b'"):
        find(refused(NONE, None), "a", "b")
