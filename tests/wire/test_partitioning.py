"""Kafka's own examples of its hash."""

import pytest

from stablelog.wire.partitioning import murmur2, partition_for
from tests.client.hashes import MURMUR2


@pytest.mark.parametrize(("key", "signed"), MURMUR2)
def test_keys_go_where_kafka_s_java_producer_sends_them(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for(key, 7) == (signed & 0x7FFFFFFF) % 7
