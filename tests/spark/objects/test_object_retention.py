"""Spark's reads of a commit-ordered topic with retention, from the broker and from the store: every later commit, or an error."""

import json
import os
import random

import pytest

import stablelog
from stablelog.errors import DataLossError
from tests.clients.test_retention import Clients, write
from tests.scale import seeds
from tests.spark.objects.stored import OFTEN, TIERED, Stored
from tests.spark.reading import rows
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.extended]
COUNT = int(os.environ.get("STABLELOG_RETENTION_READS", "1"))
POSITIONS = 5


@pytest.fixture(scope="module")
def retained(module_path):
    """A store, and the clients of its broker."""
    url = (module_path / "store").as_uri()
    settings = {**OFTEN, "log_retention_check_interval_ms": 20, "stablelog_remote_url": url}
    with stablelog.serve(module_path / "data", **settings) as broker:
        yield Stored(broker, url), Clients(broker)


@pytest.mark.parametrize("seed", seeds(COUNT))
def test_from_any_position_spark_gets_every_later_commit_or_an_error(retained, seed):
    stored, clients = retained
    chance = random.Random(seed)
    topic = clients.create(**TIERED)
    write(clients, topic, chance)
    clients.retain(topic, chance.choice((1_500, 3_000)))
    start, end = clients.bounds(topic)

    def known():
        manifest = stored.manifest(topic)
        return manifest and max(manifest.log_start, manifest.published.view_start) == start and manifest

    stored.wait_until_copied(topic)
    manifest = until(known, f"the store does not know that {topic}-0 begins at {start}")
    read, _ = clients.read(topic, start)
    places = {"bootstrap": stored.broker.bootstrap}, {"path": stored.url}
    for where in places:
        reached = end if "bootstrap" in where else max(manifest.end_offset, start)
        given = {**where, "subscribe": topic}
        whole = [row for row in read if row[0] < reached]
        assert rows(given, "offset", "value") == whole
        for position in sorted(chance.sample(range(start, reached + 1), min(POSITIONS, reached + 1 - start))):
            given["startingOffsets"] = json.dumps({topic: {"0": position}})
            assert rows(given, "offset", "value") == [row for row in whole if row[0] >= position]
        if start:
            given["startingOffsets"] = json.dumps({topic: {"0": start - 1}})
            with pytest.raises(DataLossError, match=f"{topic}-0"):
                rows(given, "offset")
    given = {"bootstrap": stored.broker.bootstrap, "subscribe": topic, "isolation": "read_uncommitted"}
    by_fetch = rows({**given, "scan": "fetch"}, "offset", "value")
    assert rows({**given, "scan": "files"}, "offset", "value") == by_fetch
    assert {value for _, value in read} <= {value for _, value in by_fetch}
