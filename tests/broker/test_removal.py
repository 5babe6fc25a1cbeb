"""The files of deleted segments go without holding the event loop: a thread waits until the disk has taken them back."""

import asyncio
import threading

from stablelog.broker.upkeep import maintenance
from stablelog.log.retention import HELD_MAX, close_all
from tests.broker.desk import DATA, batch, opened

SETTINGS = {"segment.bytes": "2000", "retention.bytes": "4000", "file.delete.delay.ms": "0"}


def test_requests_are_served_while_the_disk_takes_deleted_files_back(monkeypatch):
    served, threads = threading.Event(), []

    def late(files):
        threads.append(threading.current_thread())
        assert served.wait(60), "nobody is served meanwhile"
        close_all(files)

    monkeypatch.setattr(maintenance, "close_all", late)

    async def conversation():
        async with opened(topics=()) as desk:
            await desk.broker.topic_changes.create_topic("z", 1, SETTINGS)
            for _ in range(10):
                await desk.produce(batch(bytes(1500)), topic="z")
            await desk.durable()
            await desk.broker.maintenance.apply_retention()
            removing = asyncio.create_task(desk.broker.maintenance.remove_deleted())
            while not threads:  # noqa: ASYNC110 - a thread says so
                await asyncio.sleep(0)
            assert not [n for n in desk.broker.disk.list_dir(DATA / "z-0") if n.endswith(".deleted")]
            assert (await desk.produce(batch(b"x"), topic="z")).base_offset == 10
            served.set()
            await removing
        assert threading.main_thread() not in threads

    asyncio.run(conversation())


def test_few_deleted_files_are_open_at_a_time(monkeypatch):
    counts = []
    monkeypatch.setattr(maintenance, "close_all", lambda files: (counts.append(len(files)), close_all(files)))

    async def conversation():
        async with opened(topics=()) as desk:
            await desk.broker.topic_changes.create_topic("z", 1, SETTINGS)
            for _ in range(3 * HELD_MAX):
                await desk.produce(batch(bytes(1500)), topic="z")
            await desk.durable()
            await desk.broker.maintenance.apply_retention()
            await desk.broker.maintenance.remove_deleted()
            assert not [n for n in desk.broker.disk.list_dir(DATA / "z-0") if n.endswith(".deleted")]

    asyncio.run(conversation())
    assert max(counts) == HELD_MAX
    assert sum(counts) > 2 * HELD_MAX
