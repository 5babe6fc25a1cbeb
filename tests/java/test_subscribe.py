"""Readers of consumer groups of our own client, at Apache Kafka."""

import re

import pytest

import stablelog
from tests.client.blocking.test_producer import made
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


def test_a_reader_seeks_and_pauses(shared_kafka):
    topic = made(shared_kafka.bootstrap, unique("t"), 2)
    with stablelog.connect(shared_kafka.bootstrap) as client:
        with client.transaction() as txn:
            for number in range(4):
                txn.write(topic, value=b"%d" % number, partition=number % 2)
        with client.subscribe(topic, group=unique("g"), wait=60) as reader:
            first = [next(reader) for _ in range(4)]
            reader.commit()
            reader.pause(topic, 1)
            reader.seek_to_beginning()
            assert [next(reader).value for _ in range(2)] == [b"0", b"2"]
            reader.resume(topic, 1)
            assert [next(reader).value for _ in range(2)] == [b"1", b"3"]
            reader.seek_to_time(max(record.timestamp_ms for record in first) + 1)
            reader.seek(topic, 1, 1)
            with pytest.raises(ZeroDivisionError), client.transaction(offsets_of=reader):
                assert next(reader).value == b"3"
                _ = 1 / 0
            assert next(reader).value == b"3", "the reader goes back to the offset of the seek"


def test_a_reader_of_an_expression_sees_new_topics(shared_kafka):
    prefix = unique("re")
    with stablelog.connect(shared_kafka.bootstrap) as client:

        def write(name):
            made(shared_kafka.bootstrap, name)
            with client.transaction() as txn:
                txn.write(name, value=name)

        write(f"{prefix}-orders")
        write(f"{prefix}-other")
        with client.subscribe(re.compile(f"{prefix}-or.*"), group=unique("g"), wait=90) as reader:
            assert next(reader).topic == f"{prefix}-orders"
            write(f"{prefix}-orders-new")
            assert next(reader).topic == f"{prefix}-orders-new"
