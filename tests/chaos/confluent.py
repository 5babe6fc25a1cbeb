"""librdkafka's producer, with patience: a broker that is killed again and again answers late, and then says to try again."""

from confluent_kafka import KafkaException, Producer

WAIT_S = 30  # for one answer


def patiently(call):
    """Call, with a time to wait, until it fails no more with an error after which it may be tried again.

    Raises:
        KafkaException: another one.
    """
    while True:
        try:
            return call(WAIT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def producer_of(address, transactional_id, *, timeout_ms, **settings):
    """A producer that has its id and may begin."""
    made = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _error: None,
            **settings,
        }
    )
    patiently(made.init_transactions)
    return made
