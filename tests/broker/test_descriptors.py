"""How many descriptors partitions take while nobody uses them."""

import os
import sys

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from tests.waiting import until

pytestmark = pytest.mark.extended

COUNT = 60
# The log file; in commit order, also the two files of the growing commit index. What was read is few bytes, without a map.
IDLE_MAX = {"offset": 1, "commit": 3}
ENDS = {"offset": ("kill", "stop", "kill"), "commit": ("stop",)}
OWN_LOGS = 2  # of the broker, which have a map once they were read


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the descriptors of a process")
@pytest.mark.parametrize("order", ["offset", "commit"])
def test_an_idle_partition_takes_few_descriptors(tmp_path, order):
    with stablelog.serve(tmp_path / "data") as broker:

        def descriptor_count():
            return len(os.listdir(f"/proc/{broker.pid}/fd"))

        def use():
            """Write to each partition, read it, and leave; clients have closed their connections then."""
            settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
            producer = Producer({**settings, "transactional.id": "one"})
            producer.init_transactions(60)
            producer.begin_transaction()
            for index in range(COUNT):
                producer.produce("wide", b"value", partition=index)
            producer.abort_transaction(60)
            producer.begin_transaction()
            for index in range(COUNT):
                producer.produce("wide", b"value", partition=index)
            producer.commit_transaction(60)
            del producer
            consumer = Consumer({**settings, "group.id": "g", "isolation.level": "read_committed"})
            consumer.assign([TopicPartition("wide", index, 0) for index in range(COUNT)])
            seen = set()
            while len(seen) < COUNT:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None, message.error()
                seen.add(message.partition())
            consumer.close()

        before = descriptor_count()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("wide", COUNT, 1, config={"stablelog.order": order})])["wide"].result(
            60
        )
        del admin
        for end in (getattr(broker, name) for name in ENDS[order]):
            use()
            end()
            broker.start()
            until(lambda: "opened 60 of 60 partitions" in broker.log_tail(), "the partitions are not opened")
            use()  # with an abort in each partition since the start
            until(
                lambda: descriptor_count() - before <= IDLE_MAX[order] * COUNT + OWN_LOGS,
                lambda: f"{descriptor_count() - before} descriptors of {COUNT} partitions that were read",
            )
            end()
            broker.start()
            until(
                lambda: descriptor_count() - before <= IDLE_MAX[order] * COUNT,
                lambda: f"{descriptor_count() - before} descriptors of {COUNT} partitions",
            )
