"""Which classes the messages of a version have, and when their modules are imported."""

import sys

import pytest

from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import (
    EXTENSION_MODULES,
    Messages,
    message_class,
    message_module,
    oldest_version,
)
from tests.declared_apis import APIS


def test_a_message_of_kafka_has_the_class_of_its_version():
    found = message_class(ApiKey.END_TXN, 3, "request")
    assert (found.__name__, found.__version__, found.__api_key__) == ("EndTxnRequest", 3, ApiKey.END_TXN)
    assert message_class(ApiKey.END_TXN, 4, "request").__version__ == 4
    assert message_class(ApiKey.END_TXN, 3, "response").__name__ == "EndTxnResponse"


@pytest.mark.parametrize("key", EXTENSION_MODULES, ids=lambda key: ApiKey(key).snake_name)
@pytest.mark.parametrize("kind", ["request", "response"])
def test_a_message_of_an_own_api_has_the_key_of_its_api(key, kind):
    found = message_class(key, 0, kind)
    assert found.__api_key__ == key
    assert found.__name__ == ApiKey(key).message_name + kind.capitalize()


def test_each_own_api_has_a_module_and_no_api_of_kafka_has_one():
    assert set(EXTENSION_MODULES) == {key for key in ApiKey if key > 10_000}


def test_an_api_or_a_version_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="999 is not a valid ApiKey"):
        message_class(999, 0, "request")
    with pytest.raises(ModuleNotFoundError, match=r"end_txn\.v99"):
        message_class(ApiKey.END_TXN, 99, "request")


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: ApiKey(key).snake_name)
def test_the_oldest_version_has_messages_and_the_version_before_it_has_none(key):
    oldest = oldest_version(key)
    assert message_class(key, oldest, "request").__version__ == oldest
    if key not in EXTENSION_MODULES and oldest > 0:
        with pytest.raises(ModuleNotFoundError):
            message_module(key, oldest - 1, "request")


def test_the_classes_of_a_version_are_imported_when_one_is_first_used():
    name = "kio.schema.end_txn.v1.request"
    message_module.cache_clear()
    sys.modules.pop(name, None)
    messages = Messages(ApiKey.END_TXN, 1)
    assert name not in sys.modules
    assert messages.EndTxnRequest.__version__ == 1
    assert name in sys.modules


def test_both_messages_and_their_parts_are_attributes():
    messages = Messages(ApiKey.DESCRIBE_CUT, 0)
    assert messages.DescribeCutRequest is message_class(ApiKey.DESCRIBE_CUT, 0, "request")
    assert messages.DescribeCutResponse is message_class(ApiKey.DESCRIBE_CUT, 0, "response")
    assert messages.CutPartition.__name__ == "CutPartition"


def test_a_name_that_the_messages_do_not_have_is_an_attribute_error_also_after_the_first_use():
    messages = Messages(ApiKey.END_TXN, 1)
    for _ in range(2):
        with pytest.raises(AttributeError, match="EndTxnRequets"):
            messages.EndTxnRequets  # noqa: B018


def test_of_two_classes_of_one_name_the_attribute_is_that_of_the_response():
    of_request, of_response = (
        message_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, kind).Cursor for kind in ("request", "response")
    )
    assert of_request is not of_response
    assert Messages(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0).Cursor is of_response
