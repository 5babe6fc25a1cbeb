"""Quix Streams on the broker, exactly once, with a repartition topic and a changelog topic.

Programs and the broker are killed with -9; STABLELOG_KILLS says how often.
"""

import os

import pytest

from peers.python_frameworks import QUIX_STREAMS
from tests.clients.keyed_writer import totals_by_last_digit
from tests.frameworks.scene import scene

pytestmark = [pytest.mark.night, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))


@pytest.mark.timeout(600 + 60 * KILLS)
def test_each_record_is_counted_once_through_kills_of_programs_and_of_the_broker(tmp_path):
    def arguments(broker, number):
        return broker.bootstrap, tmp_path / f"state-{number}"

    with scene(tmp_path, QUIX_STREAMS, "quixstreams_program", arguments, "totals") as running:
        running.kill(KILLS)
        total = running.finish(lambda: running.follower.count >= len(running.writer.values))
    print(KILLS, "kills", total, "records", running.ends, "ends")
    assert running.follower.values == totals_by_last_digit(running.writer.truth)
