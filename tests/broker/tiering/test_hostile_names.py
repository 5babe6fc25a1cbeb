"""Topics whose names disturb libraries and stores: copied, read, restored, deleted."""

import asyncio

import pytest

from stablelog.env.objects.opening import open_store
from stablelog.ops.restore import restore
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, delete_topic
from tests.broker.tiering.desk import LOCAL_NOTHING, copy, log_of, tiered, write_segments
from tests.broker.tiering.life import reach
from tests.log.timeline import NOW_MS

pytestmark = pytest.mark.extended

# obstore searches these names in the answers of S3, which contain keys.
NAMES = ["InternalError", "SlowDown-1", "NoSuchBucket", "a..b", "InternalErrorSlowDown".ljust(249, ".")]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_topic_of_any_name_is_copied_read_restored_and_deleted(name, monkeypatch):
    # Each object is uploaded in several parts, as a large segment is.
    monkeypatch.setattr("stablelog.env.objects.retrying_store.PART_SIZE", 50)
    monkeypatch.setattr("stablelog.tier.deletion.LATE_S", 0)
    with serve_s3() as s3:
        reach(s3, monkeypatch)
        asyncio.run(asyncio.wait_for(life(s3, name), 60))


async def life(s3, name):
    url = "s3://bucket/SlowDown"
    settings = {"stablelog_remote_allow_http": True, "stablelog_remote_delete_delay_ms": 0}
    async with tiered(url, **settings) as desk:
        desk.broker.topic_files.create(name, 1, LOCAL_NOTHING)
        await write_segments(desk, 2, topic=name)
        await copy(desk)
        assert len([key for key in s3.objects if f"/t.{name}/" in key and key.endswith(".log")]) == 2
        log = log_of(desk, name)
        assert log.start_offset == log.remote.end_offset > 0
        found = await desk.broker.tiering.reads.call_when_loaded(lambda: log.read(0, 1 << 20, 0))
        assert found.start_offset == 0
        assert found.end_offset > 0
        assert not s3.unfinished_uploads
        with serve_s3() as drill:  # A restore takes over the store, so it gets a copy.
            drill.objects.update(s3.objects)
            store = open_store(url, allow_http=True, options=drill.options)
            report = await asyncio.to_thread(restore, store, SimDisk(), DATA, NOW_MS)
            assert name in str(report)
        delete_topic(desk.broker.topic_files, name)
        await copy(desk)
        assert [key.rpartition("/")[2] for key in s3.objects if f"/t.{name}/" in key and ".log" in key] == []
