"""Readers of consumer groups of our own client, at Apache Kafka."""

import pytest

import stablelog
from tests.client.test_producer import made
from tests.clients.drivers import Confluent, unique

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]


def test_a_reader_goes_on_after_the_last_commit(shared_kafka):
    topic, group = made(shared_kafka.bootstrap, unique("t"), 2), unique("g")
    with Confluent(shared_kafka.bootstrap).transactions(unique("p")) as run:
        run(topic, [b"a"], commit=False)
        run(topic, [b"b", b"c"], commit=True)
    with stablelog.connect(shared_kafka.bootstrap) as client:
        with client.subscribe(topic, group=group, wait=60) as reader:
            assert next(reader).value == b"b"
            reader.commit()
        with client.subscribe(topic, group=group, wait=60) as reader:
            assert next(reader).value == b"c"
            reader.commit()
        with client.subscribe(topic, group=group, wait=60) as reader:
            with Confluent(shared_kafka.bootstrap).transactions(unique("p")) as run:
                run(topic, [b"d"], commit=True)
            assert next(reader).value == b"d"
