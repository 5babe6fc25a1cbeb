"""How long a record of the coordinators' logs is only on the local disk, with the default settings and a simulated time."""

import asyncio

import pytest

from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import LinkKind, decode_link
from stablelog.tier.manifest import decode_manifest
from stablelog.tier.names import partition_of
from tests.broker.desk import opened
from tests.broker.tiering.desk import SIMULATED_URL, run_in_store_time, simulate_store
from tests.broker.tiering.test_coordinator_logs import Pipeline

pytestmark = pytest.mark.extended

AGE_S_MAX = 60
LOGS = ("__consumer_offsets", "__transaction_state")


class Observed:
    """When each end of a log was written, and when a manifest was published that reaches it.

    Attributes:
        request_s: the time of a request.
        written: (time, log, end offset) of each write.
    """

    def __init__(self, loop, objects, request_s):
        self._loop, self._objects = loop, objects
        self._created = {}  # the time at which a key was created
        self.request_s = request_s
        self.written = []
        objects.between = self._request

    def _request(self, call, key):
        self._objects.sleep(self.request_s)
        if call == "create":
            self._created.setdefault(key, self._loop.work_time())

    def oldest_s(self, until_s):
        """The greatest age, at its publication, of a record that was written by `until_s`."""
        published = {name: [] for name in LOGS}
        for key, time_s in self._created.items():
            directory, _, _ = key.partition("/manifest/")
            partition = partition_of(directory)
            if (
                partition is not None
                and (link := decode_link(self._objects.objects[key]))[0] is LinkKind.MANIFEST
            ):
                published[partition.topic].append((time_s, decode_manifest(link[1]).end_offset))
        return max(
            min(time_s for time_s, copied in published[log] if copied >= end) - written_s
            for written_s, log, end in self.written
            if written_s <= until_s
        )


@pytest.mark.parametrize(("first_s", "then_s"), [(0.03, 0.03), (0.7, 2.4)], ids=["fast", "slow"])
def test_no_record_of_a_coordinator_is_only_on_the_local_disk_for_more_than_a_minute(
    monkeypatch, first_s, then_s
):
    """A broker that has a transaction and a committed offset each second for 10 minutes.

    Args:
        first_s: the time of a request up to the first copy, which also takes over the manifests.
        then_s: the time of later requests. A copy of both logs is six of them, one after another.
    """
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def conversation():
        loop = asyncio.get_running_loop()
        observed = Observed(loop, objects, first_s)
        begun_s = loop.time()
        async with opened(topics=("t",), partitions=1, stablelog_remote_url=SIMULATED_URL) as desk:
            pipeline = Pipeline(desk)
            while loop.time() < begun_s + 600:
                await pipeline.transact()
                for name in LOGS:
                    end = desk.broker.partitions.require(name, 0).end_offset
                    observed.written.append((loop.time(), name, end))
                if loop.time() > begun_s + 60:
                    observed.request_s = then_s
                await asyncio.sleep(1)
                desk.broker.clock.advance(1_000)
            until_s = loop.time() - AGE_S_MAX
        return observed.oldest_s(until_s)

    oldest_s = run_in_store_time(objects, conversation())
    assert 30 < oldest_s <= AGE_S_MAX
