"""librdkafka's consumer reads a partition up to its end, which it asks for first.

Who only reads until it is told of the end may be told too early: the end of a transaction is answered before its
marker is durable, and a fetch waits for that no longer than `fetch.wait.max.ms`. Who asks for the end of a committed
reader is answered when all can be seen that was decided before.

A fetch at the end waits for `fetch.wait.max.ms`, half a second by default, before the consumer is told of the end. The
consumers of the tests have a shorter one.
"""

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.waiting import PATIENCE_S, until

# What a client says while a broker that has just started opens its partitions, or while it finds its way there.
OPENING = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
}


def bounds(consumer, topic, partition=0):
    """The first offset, and the one after the last that this consumer sees."""
    refusals = []

    def ask():
        try:
            if refusals:  # what it has heard of the partition it takes for granted, and does not ask again
                consumer.list_topics(topic, timeout=PATIENCE_S)
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        except KafkaException as error:
            refusals[:] = [error]
            if error.args[0].code() not in OPENING:
                raise
            return None

    return until(ask, lambda: f"nobody says where {topic}-{partition} ends: {refusals}")


def read_to_end(consumer, topic, partition=0, *, start=0):
    """Every message from an offset up to where this consumer sees; it is told of ends (`enable.partition.eof`)."""
    end = bounds(consumer, topic, partition)[1]
    consumer.assign([TopicPartition(topic, partition, start)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, (
            f"nothing comes at {start} of {topic}-{partition}, after {len(found)} records"
        )
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            if message.offset() >= end:
                return found
