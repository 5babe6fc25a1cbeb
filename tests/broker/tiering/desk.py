"""A broker without a socket whose topic `t` has a remote tier in a directory."""

import asyncio
import contextlib
from functools import partial

from stablelog.env.objects.retrying_store import ObjectStore
from tests.broker.desk import batch, opened
from tests.broker.jump import JumpLoop

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


class StoreLoop(JumpLoop):
    """Runs the work of threads in place. The work takes the simulated time of its requests to the store."""

    def __init__(self, objects):
        super().__init__()
        self.objects = objects
        self._begun_s = None

    def run_in_executor(self, _executor, call, *arguments):
        done, begun_s = self.create_future(), self.objects.now_s()
        self._begun_s = begun_s
        try:
            settle = partial(done.set_result, call(*arguments))
        except Exception as error:
            settle = partial(done.set_exception, error)
        self.call_later(self.objects.now_s() - begun_s, lambda: done.cancelled() or settle())
        return done

    def work_time(self):
        """The time at which the store applies the present request."""
        return self.time() + self.objects.now_s() - self._begun_s


def run_in_store_time(objects, conversation):
    """Run a conversation on a `StoreLoop` of this store. Return its result."""
    with asyncio.Runner(loop_factory=partial(StoreLoop, objects)) as runner:
        return runner.run(conversation)


@contextlib.asynccontextmanager
async def tiered(url, disk=None, *, configs=LOCAL_NOTHING, **settings):
    """A broker with an empty topic `t` of one partition. Copies run only when a test says so."""
    settings = {"remote_log_manager_task_interval_ms": HOURS_MS, **settings}
    async with opened(disk, topics=(), stablelog_remote_url=url, **settings) as desk:
        if desk.broker.topics.get("t") is None:
            desk.broker.topic_files.create("t", 1, configs)
        yield desk


def log_of(desk, topic="t"):
    return desk.broker.partitions.require(topic, 0)


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
    for partition in desk.broker.partitions:
        partition.deletion.apply_retention(desk.broker.now_ms() + 1)
