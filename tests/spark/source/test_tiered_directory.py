"""A directory whose first records are only in the object store: readers of files say so, and a broker has them."""

import json
import os
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.errors import UnavailableError
from stablelog.spark import count
from stablelog.spark.options import BATCH, read_options
from stablelog.spark.source.directory_log import DirectoryLog

TIMEOUT_S = 60
TIERED = {"remote.storage.enable": "true", "segment.bytes": "4096", "local.retention.bytes": "1"}
OFTEN = {
    "remote_log_manager_task_interval_ms": 50,
    "log_retention_check_interval_ms": 50,
    "log_segment_delete_delay_ms": 0,
}


@pytest.fixture(scope="module")
def tiered(module_path):
    """A stopped broker's directory: of 20 records the first are only in the store. Yields it and what a broker counted."""
    data = module_path / "data"
    with stablelog.serve(data, stablelog_remote_url=f"file://{module_path}/store", **OFTEN) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=TIERED)])["t"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
        for _ in range(20):
            producer.produce("t", bytes(2000), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        deadline = time.monotonic() + TIMEOUT_S
        while len([name for name in os.listdir(data / "t-0") if name.endswith(".log")]) > 1:
            assert time.monotonic() < deadline, "the segments are not deleted"
            time.sleep(0.02)
        counted = count({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"})
    return data, counted


def options(data, **more):
    return {"path": str(data), "subscribe": "t", **more}


@pytest.mark.extended
def test_a_broker_reads_both_tiers_for_spark(tiered):
    assert tiered[1] == 20


@pytest.mark.extended
def test_a_read_of_the_files_is_refused_where_records_are_only_in_the_store(tiered):
    data, _ = tiered
    log = DirectoryLog(read_options(options(data), BATCH))
    assert log.earliest([("t", 0)]) == {("t", 0): 0}
    with pytest.raises(UnavailableError, match="only in the object store: give "):
        list(log.spans([(("t", 0), 0, 20)], {}))
    with pytest.raises(UnavailableError, match="only in the object store"):
        log.at_times({("t", 0): 1})
    with pytest.raises(UnavailableError):
        count(options(data))


def test_records_on_the_disk_are_read_from_the_files(tiered):
    data, _ = tiered
    local_start = min(int(name[:20]) for name in os.listdir(data / "t-0") if name.endswith(".log"))
    starting = json.dumps({"t": {"0": local_start}})
    assert count(options(data, startingOffsets=starting)) == 20 - local_start
