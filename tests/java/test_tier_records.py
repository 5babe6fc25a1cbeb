"""The fixtures of tests/tier/test_records.py are the bytes of Apache Kafka's own serializer."""

import pytest

from peers import apache_kafka
from tests.java.tier_records import WITHOUT_THE_FIELD, written_by
from tests.tier import test_records

pytestmark = pytest.mark.java


@pytest.mark.night
def test_a_kafka_without_the_field_writes_the_fixtures():
    try:
        written = written_by(WITHOUT_THE_FIELD)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
    assert written == test_records.WITHOUT_THE_FIELD
