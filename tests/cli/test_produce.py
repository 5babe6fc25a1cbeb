"""Writing records from the command line, where the broker does not answer."""

import pytest
from confluent_kafka import KafkaError

from stablelog.cli.produce import Lines
from stablelog.errors import Unavailable


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
        Lines(GoneProducer(), "here:1", "t", None, lambda: None).send(lines, as_json=True)
