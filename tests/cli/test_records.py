"""Reading and writing records from the command line, where the broker does not answer."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from stablelog.cli import records
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
    monkeypatch.setattr(records, "TIMEOUT_S", 0.0)
    with pytest.raises(Unavailable, match="no broker answers at here:1"):
        records._print_records(
            GoneConsumer(),
            "here:1",
            "t",
            1,
            None,
            watch=PartitionWatch("here:1", "t", [0], {}, "read_committed"),
            group=group,
            follow=False,
            as_json=False,
        )


class GoneProducer:
    """A producer whose records are given up one after the other."""

    def __init__(self):
        self._told = []

    def produce(self, _topic, on_delivery, **_record):
        self._told.append(on_delivery)

    def poll(self, _timeout_s):
        while self._told:
            self._told.pop()(KafkaError(KafkaError._MSG_TIMED_OUT), None)

    def flush(self, _timeout_s):
        return 0


def test_lines_are_read_no_further_than_to_the_first_that_is_given_up(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("x\n" * 1000)
    with pytest.raises(Unavailable, match="1 of 1 records were not written to t"):
        records._send_lines(GoneProducer(), "here:1", "t", lines, None, lambda: None, as_json=True)
