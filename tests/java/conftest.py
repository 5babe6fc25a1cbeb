"""What is missing is said once, and what needs it is skipped."""

import pytest

import stablelog
from peers import apache_kafka
from tests.java.client import Java


@pytest.fixture(scope="session")
def kafka_jars():
    """The folder with Apache Kafka's jars."""
    try:
        apache_kafka.java()
        return apache_kafka.jars()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def broker(kafka_jars):
    with stablelog.serve(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def java(broker):
    """Kafka's Java client and commands, which reach the broker."""
    try:
        return Java(broker.bootstrap)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
