"""Reading records from the command line, where the broker does not answer."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from stablelog.cli import consume
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.errors import Unavailable


class GoneConsumer:
    """A consumer whose broker went away: it waits for it, as librdkafka does."""

    def poll(self, _timeout_s):
        return None

    def assignment(self):
        return []

    def list_topics(self, timeout):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize("group", [None, "g"])
def test_a_reader_whose_broker_goes_away_ends(monkeypatch, group):
    monkeypatch.setattr(consume, "TIMEOUT_S", 0.0)
    with pytest.raises(Unavailable, match="no broker responds at here:1"):
        watch = PartitionWatch("here:1", "t", [0], {}, "read_committed")
        reader = consume.Reader(GoneConsumer(), group, watch, follow=False, as_json=False)
        reader.print_records(1, None)
