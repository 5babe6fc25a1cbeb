"""The numbers and names of the APIs, and the versions that are served."""

import importlib
import pkgutil

import pytest

from stablelog.wire.api import API_KEYS, Api, ApiKey


def test_a_key_has_the_name_of_its_modules_and_of_its_messages():
    assert (ApiKey.END_TXN.snake_name, ApiKey.END_TXN.message_name) == ("end_txn", "EndTxn")
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.message_name == "OffsetForLeaderEpoch"


@pytest.mark.parametrize("key", [key for key in ApiKey if key < 10_000], ids=lambda key: key.snake_name)
def test_an_api_of_kafka_has_the_number_that_kio_has(key):
    package = importlib.import_module(f"kio.schema.{key.snake_name}")
    newest = max(
        (module.name for module in pkgutil.iter_modules(package.__path__)), key=lambda name: int(name[1:])
    )
    module = importlib.import_module(f"{package.__name__}.{newest}.request")
    assert getattr(module, f"{key.message_name}Request").__api_key__ == key


def test_the_own_apis_are_outside_the_range_that_kafka_numbers_its_apis_from():
    assert sorted(key for key in ApiKey if key >= 1000) == [10_001, 10_002, 10_003, 10_004, 10_005]


def test_a_number_that_is_no_key_is_told_apart():
    assert ApiKey.FETCH in API_KEYS
    assert 4 not in API_KEYS, "LeaderAndIsr is between controllers and brokers"
    assert -1 not in API_KEYS


def test_all_versions_are_served_from_the_first_to_the_last():
    assert Api(ApiKey.FETCH, 4, 6).served_versions == range(4, 7)


@pytest.mark.parametrize(("served_from", "served"), [(3, range(4, 7)), (5, range(5, 7)), (6, range(6, 7))])
def test_versions_that_are_only_named_are_not_served(served_from, served):
    assert Api(ApiKey.FETCH, 4, 6, served_from=served_from).served_versions == served
