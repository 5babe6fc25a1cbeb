"""A broker without a socket whose topic `t` has a remote tier in a directory."""

import contextlib

from stablelog.env.objects.store import ObjectStore
from tests.broker.desk import batch, opened

LOCAL_NOTHING = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.ms": "0",
    "local.retention.bytes": "0",
}
HOURS_MS = 3_600_000
SIMULATED_URL = "file:///simulated"


def simulate_store(monkeypatch, objects):
    """Let brokers use a simulated store, whatever `stablelog.remote.url` says."""

    def open_store(_url, **_options):
        return ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep)

    monkeypatch.setattr("stablelog.env.objects.opening.open_store", open_store)


@contextlib.asynccontextmanager
async def tiered(url, disk=None, *, configs=LOCAL_NOTHING, **settings):
    """A broker with an empty topic `t` of one partition. Copies run only when a test says so."""
    settings = {"remote_log_manager_task_interval_ms": HOURS_MS, **settings}
    async with opened(disk, topics=(), stablelog_remote_url=url, **settings) as desk:
        if desk.broker.topics.get("t") is None:
            desk.broker.topics.create("t", 1, configs)
        yield desk


def log_of(desk, topic="t"):
    return desk.broker.topics.partition(topic, 0)


async def write_segments(desk, count, *, topic="t", records=2, size=100):
    """Write full segments of one record in each batch. Each value tells its offset."""
    log = log_of(desk, topic)
    for _ in range(count):
        for _ in range(records):
            value = b"%d " % log.end_offset
            await desk.produce(batch(value.ljust(size)), topic=topic)
        log.roll(desk.broker.now_ms())
        await desk.produce(batch(b"%d " % log.end_offset), topic=topic)  # a sync completes the sealed segment


async def copy(desk):
    """Copy what can be copied, and delete it from the local disk."""
    await desk.broker.tiering.copy_all()
    for partition in desk.broker.topics.open_partitions():
        partition.apply_retention(desk.broker.now_ms() + 1)
