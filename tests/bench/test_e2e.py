"""Kafka's own measurement of end to end, against a broker and against one that does nothing."""

import pytest

from bench import least_broker, loads
from bench.contestants import why_no_kafka

pytestmark = [pytest.mark.java, pytest.mark.extended]


@pytest.fixture(scope="module", autouse=True)
def _kafkas_jars():
    missing = why_no_kafka()
    if missing is not None:
        pytest.skip(missing)


def test_the_tool_measures_a_broker(stablelog_broker):
    assert loads.kafka_e2e_latency(stablelog_broker.bootstrap, 20) > 0


def test_the_tool_measures_a_broker_that_does_nothing():
    with least_broker.serve() as address:
        assert (
            loads.kafka_e2e_latency(address, 20) > 0
        )  # the tool ends with an error if a record is not the one sent
