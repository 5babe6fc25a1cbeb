"""One airport's producer: a process of its own, a transaction for each hour of departures.

It prints what it does, a line each, so that whoever started it can follow and choose the moment to kill it. Where
it begins is told by the log itself: behind the last hour that was committed.
"""

import argparse
import json
import sys
import time
from typing import NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from demo.busy import LateError, is_late, run_child
from demo.crashes import TOPIC
from demo.flights import AIRPORTS, Flight, by_hour, read_flights

TIMEOUT_S = 60
ABORT_EVERY = 20
LOOK_BACK = 2000  # offsets in which the last committed record is looked for at first
FENCED_EXIT = 3


def _say(word: str, number: int) -> None:
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


def committed_hours(bootstrap: str, partition: int) -> int:
    """How many hours of this partition are committed. To be asked once the predecessor is fenced."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"resume-{partition}",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    start, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=TIMEOUT_S)
    look_back = LOOK_BACK
    hours = 0
    while hours == 0 and end > start:
        begin = max(start, end - look_back)
        consumer.assign([TopicPartition(TOPIC, partition, begin)])
        while (message := consumer.poll(TIMEOUT_S)) is not None:
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
                    break
                raise KafkaException(message.error())
            hours = int(dict(message.headers())["hour"]) + 1
        if begin == start:
            break
        look_back *= 10
    consumer.close()
    return hours


def _write(producer: Producer, partition: int, hour: int, flights: list[Flight], *, doomed: bool) -> None:
    headers = [("hour", str(hour).encode())]
    for flight in flights:
        value = flight.encode(doomed=doomed)
        producer.produce(TOPIC, value, key=flight.carrier.encode(), partition=partition, headers=headers)
    producer.poll(0)


def _commit(producer: Producer) -> bool:
    """Commit. Returns False if the transaction has to be written again."""
    while True:
        try:
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            cause = error.args[0]
            if cause.retriable():
                continue
            if cause.txn_requires_abort():
                producer.abort_transaction(TIMEOUT_S)
                return False
            _give_up(error)
        else:
            return True


def _give_up(error: KafkaException) -> NoReturn:
    if is_late(error):
        raise LateError(str(error)) from error
    sys.stderr.write(f"{json.dumps(str(error))}\n")
    sys.exit(FENCED_EXIT)


def run(bootstrap: str, airport: str, row_count_max: int | None, hang_at: int) -> None:
    """Write every hour that is not committed yet. At the hour `hang_at`, hang in the middle of the transaction."""
    partition = AIRPORTS.index(airport)
    hours = by_hour(read_flights(row_count_max), airport)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"airport-{airport}",
            "linger.ms": 0,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    begin = committed_hours(bootstrap, partition)
    _say("resumes", begin)
    for hour in range(begin, len(hours)):
        try:
            if hour % ABORT_EVERY == ABORT_EVERY - 1:
                producer.begin_transaction()
                _write(producer, partition, hour, hours[hour], doomed=True)
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                _say("aborted", hour)
            written = False
            while not written:
                producer.begin_transaction()
                doomed = hour == hang_at
                _write(producer, partition, hour, hours[hour], doomed=doomed)
                if doomed:
                    producer.flush(TIMEOUT_S)
                    _say("hangs", hour)
                    time.sleep(3600)
                written = _commit(producer)
        except KafkaException as error:
            _give_up(error)
        _say("committed", len(hours[hour]))
    _say("done", len(hours))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("airport", choices=AIRPORTS)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--hang-at", type=int, default=-1)
    arguments = parser.parse_args()
    sys.exit(
        run_child(lambda: run(arguments.bootstrap, arguments.airport, arguments.rows, arguments.hang_at))
    )
