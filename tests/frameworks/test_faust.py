"""Faust on the broker, with transactions and a changelog topic: no record is lost.

Programs and the broker are killed with -9; STABLELOG_KILLS says how often. Faust counts some records twice after a kill:
docs/reference/protocol.md says why.
"""

import os

import pytest

from peers.apache_kafka import reserve_ports
from peers.python_frameworks import FAUST
from tests.frameworks.scene import scene

pytestmark = [pytest.mark.night, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))


@pytest.mark.timeout(600 + 60 * KILLS)
def test_no_record_is_lost_through_kills_of_the_program_and_of_the_broker(tmp_path):
    def arguments(broker, number):
        return broker.bootstrap, tmp_path / f"data-{number}", *reserve_ports(broker, 1)

    with scene(tmp_path, FAUST, "faust_program", arguments, "totals", program_count=1) as running:
        counted, truth = running.follower.values, running.writer.truth

        def missing():
            wanted = {(key.encode(), b"%d" % n) for key, count in truth.items() for n in range(1, count + 1)}
            return wanted - {
                (key, value) for key, values in counted.copy().items() for value in values.copy()
            }

        running.kill(KILLS)
        total = running.finish(lambda: running.follower.count >= len(running.writer.values) and not missing())
    print(KILLS, "kills", total, "records", running.follower.count - total, "twice", running.ends, "ends")
    assert not missing()
