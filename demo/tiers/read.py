"""A read-committed Kafka consumer, which reads the topic from its first record on."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from demo.busy import LateError
from demo.flights import AIRPORTS
from demo.tiers import TOPIC
from demo.tiers.proof import Place, Reading, Source

POLL_S = 0.05
SILENCE_MAX_S = 60.0
MESSAGES_MAX = 2000


class Reader:
    """An unmodified consumer without a group, so that its reads cause no writes."""

    def __init__(self, bootstrap: str, source: Source) -> None:
        self.reading = Reading()
        self._source = source
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "not used",
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
                "error_cb": lambda _error: None,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, place, 0) for place in range(len(AIRPORTS))])

    def read_to_end(self, tell: Callable[[int], object]) -> Reading:
        """Read up to the end of each partition as it is now. A further call continues there.

        Args:
            tell: is called with the number of records of each poll.

        Raises:
            LateError: no record has come for SILENCE_MAX_S.
            SystemExit: the broker reports an error.
        """
        ends = {place: self._end(place) for place in range(len(AIRPORTS))}
        heard_s = time.monotonic()
        while ends:
            messages = self._consumer.consume(MESSAGES_MAX, timeout=POLL_S)
            heard_s = time.monotonic() if messages else heard_s
            if time.monotonic() - heard_s > SILENCE_MAX_S:
                raise LateError(f"the consumer got no record for {SILENCE_MAX_S:g} s, before the ends {ends}")
            for message in messages:
                error = message.error()
                if error is None:
                    place = Place(message.partition(), message.offset())
                    self._source.check(self.reading, place, message.value())
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
                    raise SystemExit(f"the consumer got an error: {KafkaException(error)}")
                elif message.offset() >= ends.get(message.partition(), message.offset() + 1):
                    del ends[message.partition()]
            tell(sum(message.error() is None for message in messages))
        return self.reading

    def _end(self, partition: int) -> int:
        return int(self._consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), SILENCE_MAX_S)[1])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
