"""A local segment that is damaged is never uploaded, and the segments before it are published once."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import stablelog
from stablelog.batch.header import headers_in
from stablelog.env.objects.opening import open_store
from stablelog.tier.prefix import Prefix
from tests.waiting import until

pytestmark = pytest.mark.extended

TIERED = {"remote.storage.enable": "true", "segment.bytes": "4000", "remote.log.copy.disable": "true"}
TIMEOUT_S = 30


def written(broker):
    """Write segments, and return the paths of their log files."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config=TIERED)])["t"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    for number in range(60):
        producer.produce("t", b"%d " % number + bytes(500), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return sorted(Path(broker.data, "t-0").glob("*.log"))


def copy(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry("remote.log.copy.disable", "false", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


@pytest.mark.parametrize("damaged", [0, 2])
def test_a_damaged_segment_is_not_uploaded_and_those_before_it_are_published_once(tmp_path, damaged):
    url = f"file://{tmp_path}/store"
    with stablelog.serve(
        tmp_path / "data", stablelog_remote_url=url, remote_log_manager_task_interval_ms=20
    ) as broker:
        logs = written(broker)
        content = bytearray(logs[damaged].read_bytes())
        second = [position for position, _ in headers_in(content)][1]
        content[second + 7] ^= 1  # The CRC of a batch does not cover its base offset.
        with logs[damaged].open("r+b") as file:
            file.write(content)
        copy(broker)
        told = f"{logs[damaged].name} is damaged: the batch headers of the log file"
        until(lambda: told in broker.log_tail(1000), "the damage is not reported")
        prefix = Prefix(open_store(url))

        def stored():
            return sorted((tmp_path / "store").rglob("*.log"))

        first = stored()
        assert len(first) == damaged
        (partition,) = prefix.partitions("t") if damaged else (None,)
        segments = prefix.last_manifest(partition).segments if damaged else ()
        assert [segment.base_offset for segment in segments] == [int(log.stem) for log in logs[:damaged]]
        # The damage is reported again by a broker that was started again, which has tried again by then.
        broker.stop()
        broker.start()
        until(lambda: broker.log_tail(10_000).count(told) >= 2, "the broker does not try again")
        assert stored() == first, "nothing is uploaded again"
