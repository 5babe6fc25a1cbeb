"""What is missing is said once, and what needs it is skipped."""

import pytest

from peers import apache_kafka


@pytest.fixture(scope="session")
def kafka_jars():
    """The folder with Apache Kafka's jars."""
    try:
        apache_kafka.java()
        return apache_kafka.jars()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
