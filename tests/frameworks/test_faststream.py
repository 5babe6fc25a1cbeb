"""FastStream on the broker: what it promises is that each record is handled at least once.

Programs and the broker are killed with -9; STABLELOG_KILLS says how often.
"""

import os

import pytest

from peers.python_frameworks import FASTSTREAM
from tests.frameworks.scene import scene

pytestmark = [pytest.mark.night, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))


@pytest.mark.timeout(600 + 60 * KILLS)
@pytest.mark.parametrize("backend", ["confluent", "aiokafka"])
def test_each_record_is_handled_through_kills_of_programs_and_of_the_broker(tmp_path, backend):
    def arguments(broker, _number):
        return broker.bootstrap, backend

    # A program commits after each record, and handles some thirty a second.
    with scene(tmp_path, FASTSTREAM, "faststream_program", arguments, "out", pause_s=0.05) as running:
        running.kill(KILLS)
        follower, writer = running.follower, running.writer

        def copied():
            return {value for values in list(follower.partitions.values()) for value in values.copy()}

        total = running.finish(
            lambda: follower.count >= len(writer.values) and len(copied()) >= len(writer.values)
        )
    print(backend, KILLS, "kills", total, "records", follower.count - total, "twice", running.ends, "ends")
    assert copied() == set(writer.values)
