"""A broker whose partitions open late after a start: when a test says so.

with slow_opening.serve(directory, monkeypatch) as (broker, opening):
    opening.hold()
    broker.kill()
    broker.start()  # its own logs are open, and no other partition
    until(lambda: opening.refused_count() > 0, "no client has asked")
    opening.release()
"""

import contextlib

import stablelog
from stablelog import embedded

# The broker's process. What it tells the test, and the other way round, are files beside its data directory.
PROCESS = """
import os, sys, time
sys.modules.setdefault("hypothesis", None)
from kio.schema.errors import ErrorCode
from stablelog.broker.apis import fetch
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.fetch.long_polls import LongPolls
from stablelog.cli.serve import run_process

held, asked, refused = (f"{sys.argv[2]}.{name}" for name in ("held", "asked", "refused"))
recover, state_of, topics_of = TopicFiles.recover_partition, OpenPartitions.state_in, fetch._topics_of
wait_for_more = LongPolls.wait_for_more

def note(path, count):
    with open(path, "ab") as file:
        file.write(b"." * count)

def recover_partition(self, topic, index, progress=None):
    while os.path.exists(held) and not topic.is_internal:
        time.sleep(0.01)
    return recover(self, topic, index, progress)

def answered(session, answers, **more):
    if os.path.exists(held):
        note(refused, sum(answer.error is not ErrorCode.none for answer in answers.values()))
    return topics_of(session, answers, **more)

def state(self, topic, index):
    found = state_of(self, topic, index)
    if found is PartitionState.OPENING:
        note(asked, 1)
    return found

async def wait_briefly(self, poll, seen, isolation, timeout_s):
    # However long the client would wait for records, it is told soon what is not open.
    return await wait_for_more(self, poll, seen, isolation, min(timeout_s, 0.1) if poll.names else timeout_s)

TopicFiles.recover_partition, fetch._topics_of, OpenPartitions.state_in = recover_partition, answered, state
LongPolls.wait_for_more = wait_briefly
run_process(sys.argv[1:])
"""


class Opening:
    """When the partitions of a broker are opened, and what clients asked for before."""

    def __init__(self, data):
        self._held, self._asked, self._refused = (
            data.with_name(f"{data.name}.{name}") for name in ("held", "asked", "refused")
        )

    def hold(self):
        """Open no partition after the next start until `release`, but the broker's own logs."""
        self._held.touch()

    def release(self):
        """Open them."""
        self._held.unlink()

    def refused_count(self):
        """How often a fetch was told that a partition is not open."""
        return _size(self._refused)

    def asked_count(self):
        """How often a request came to a partition that was opening, Metadata too."""
        return _size(self._asked)


def _size(path):
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def serve(data, monkeypatch, **settings):
    """A broker on a data directory, and its `Opening`."""
    monkeypatch.setattr(embedded, "PROCESS", PROCESS)
    opening = Opening(data)
    with stablelog.serve(data, **settings) as broker:
        yield broker, opening
