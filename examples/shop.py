"""The log that the examples read: orders and customers of a small shop, written in transactions."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.spark import session

ORDER_COUNT = 600
CUSTOMERS = ("Ada", "Blaise", "Carl", "Emmy", "Grace")
FIRST_ORDER_S = 1_700_000_000
SECONDS_BETWEEN_ORDERS = 10
TARGETS = (
    "orders-copy",
    "orders-named",
    "orders-moved",
    "order-counts",
    "large-orders",
)  # the examples write them


def order(number: int) -> dict[str, Any]:
    """One order. They come every ten seconds."""
    return {
        "order": number,
        "customer": number % len(CUSTOMERS),
        "amount": number % 7 + 0.5,
        "at": FIRST_ORDER_S + SECONDS_BETWEEN_ORDERS * number,
    }


def write(bootstrap: str) -> None:
    """Write the topics `orders`, `customers` and `baskets`. Every tenth order is written once more, and aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    for number, name in enumerate(CUSTOMERS):
        value = json.dumps({"customer": number, "name": name})
        producer.produce("customers", value, key=str(number))
    producer.commit_transaction()
    for first in range(0, ORDER_COUNT, 50):
        producer.begin_transaction()
        for number in range(first, first + 50, 10):
            producer.produce("orders", json.dumps(order(number)), key=str(number))
        producer.abort_transaction()
        producer.begin_transaction()
        for number in range(first, first + 50):
            placed = order(number)
            producer.produce("orders", json.dumps(placed), key=str(number))
            # A change stream: the newest value of a key counts, and one without a value takes the key away.
            key = f"basket-{number % 40}"
            producer.produce("baskets", None if number % 4 == 3 else json.dumps(placed), key=key)
        producer.commit_transaction()


def create_targets(bootstrap: str) -> None:
    """Create the topics that the examples write. Spark writes no topic that is not there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in TARGETS]).values():
        created.result()


@contextmanager
def open_log() -> Iterator[str]:
    """A broker with the shop's topics, for as long as the example runs."""
    with stablelog.serve() as broker:
        write(broker.bootstrap)
        create_targets(broker.bootstrap)
        yield broker.bootstrap


def main(run: Callable[[Any, str, str], None]) -> None:
    """Run an example on a log of its own, in a directory that goes when it ends."""
    with open_log() as bootstrap, tempfile.TemporaryDirectory() as directory:
        spark = session("example", spark_sql_shuffle_partitions="2", spark_ui_enabled="false")
        run(spark, bootstrap, str(Path(directory)))
