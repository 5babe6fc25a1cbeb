"""Kafka's own examples of its hash."""

import pytest

from stablelog.client.partitioning import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_kafka_s_java_producer_sends_them(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for(key, 7) == (signed & 0x7FFFFFFF) % 7
