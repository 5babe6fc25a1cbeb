"""A broker that is killed with -9 while it copies. Afterwards a consumer reads every committed record, once.

STABLELOG_KILLS tells how often.
"""

import os

import pytest

from tests.broker.tiering.kills import (
    DELETING,
    DROPPING,
    KILLS,
    TIERED,
    committed_in,
    copied_count,
    kill,
    log_start,
    stop,
    unneeded,
    written,
)
from tests.scale import randomness
from tests.waiting import until

COPIED_MIN = 8  # more segments than stay on the local disk


@pytest.mark.timeout(200 + 10 * KILLS)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TIERED, id="whole"),
        pytest.param(DROPPING, id="without-aborted-data", marks=pytest.mark.night),
    ],
)
def test_no_committed_record_is_lost_when_the_broker_is_killed_while_it_copies(config, tmp_path):
    chance = randomness("tiered kills", KILLS)
    store = tmp_path / "store"
    with written(tmp_path, config, log_cleaner_backoff_ms=10) as (broker, writer):
        for _ in range(KILLS):
            copied = copied_count(store)
            until(lambda copied=copied: copied_count(store) > copied, "nothing is copied")
            kill(broker, chance)
        copied = max(copied_count(store), COPIED_MIN)
        until(lambda: copied_count(store) > copied, "nothing is copied")
        stop(writer)
        start, read = committed_in(broker)
    assert start == 0
    assert read == writer.committed
    logs = [name for name in os.listdir(tmp_path / "data" / "t-0") if name.endswith(".log")]
    assert len(logs) < copied_count(store), "most segments are only in the store"


@pytest.mark.extended
@pytest.mark.timeout(200 + 10 * KILLS)
def test_a_store_keeps_only_what_is_needed_when_the_broker_is_killed_while_it_deletes(tmp_path):
    chance = randomness("kills and deletions", KILLS)
    store = tmp_path / "store"
    with written(tmp_path, DELETING, stablelog_remote_delete_delay_ms=50) as (broker, writer):
        starts = []
        for _ in range(KILLS):
            start = log_start(store)
            until(lambda start=start: log_start(store) > start, "nothing is deleted")
            starts.append(log_start(store))
            kill(broker, chance)
        stop(writer)
        until(lambda: unneeded(store) == (0, 0), lambda: f"marked and unnamed: {unneeded(store)}")
        _, read = committed_in(broker)
    assert starts == sorted(starts)
    assert 0 < len(read) < len(writer.committed)
    assert read == writer.committed[-len(read) :]
