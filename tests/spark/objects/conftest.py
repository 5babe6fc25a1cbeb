"""One broker with topics in a store, for the tests of this directory."""

import pytest
from confluent_kafka import Producer

from tests.spark.objects.stored import TIERED, Stored, serving
from tests.spark.reading import make

LARGE = 20 << 20


def write_large(stored):
    """Write segments of 20 MiB with batches of about 100 KB, so that each has a cut point."""
    make(stored.broker.bootstrap, "large", 1, **{**TIERED, "segment.bytes": str(LARGE)})
    producer = Producer(
        {"bootstrap.servers": stored.broker.bootstrap, "batch.size": 100_000, "linger.ms": 50}
    )
    for number in range(3 * LARGE // 10_000):
        producer.produce("large", b"%d" % number + bytes(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    stored.wait_for_copies("large")


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored")
    with serving(directory) as broker:
        found = Stored(broker, f"file://{directory}/store")
        found.write("plain", 11, **{"segment.bytes": "1100"})
        found.write("ordered", 12, **{"stablelog.order": "commit"})
        write_large(found)
        yield found
