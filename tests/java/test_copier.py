"""Copiers and an Apache Kafka broker are killed, frozen and joined by others; the copy has each record once, in order.

STABLELOG_KILLS says how often.
"""

import pytest

from peers import apache_kafka
from tests.client.test_copier import SESSION_S, Copiers, copies_once
from tests.java.dump import SHORT_LIVED
from tests.scale import randomness

pytestmark = [pytest.mark.java, pytest.mark.night, pytest.mark.filterwarnings("ignore")]
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": str(int(1000 * SESSION_S)),
    "group.consumer.session.timeout.ms": str(int(1000 * SESSION_S)),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture
def copiers(tmp_path):
    try:
        broker = apache_kafka.KafkaBroker(tmp_path / "data", SETTINGS, SHORT_LIVED)
        broker.start()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
    copiers = Copiers(tmp_path, broker.bootstrap)
    yield broker, copiers
    copiers.close()
    broker.stop()


def test_a_copy_has_each_record_once_whoever_is_killed(copiers):
    copies_once(*copiers, randomness("copier"))
