"""A broker that deletes from the store leaves what a planned read may still need."""

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from stablelog.ops.stored_partitions import measure_partition
from tests.spark.objects.stored import Stored, serving
from tests.spark.reading import rows, tasks
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.extended]


def delete_all(stored, topic):
    """Let retention delete all sealed segments of a topic."""
    admin = AdminClient({"bootstrap.servers": stored.broker.bootstrap})
    entry = ConfigEntry("retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def described(stored, topic):
    (partition,) = stored.prefix.partitions(topic)
    return measure_partition(stored.prefix, partition)


def is_deleted(stored, topic):
    found = described(stored, topic)
    return found.log_start > 0 and (found.marked, found.unnamed) == (0, 0)


def test_a_planned_read_finds_its_objects_although_retention_has_deleted_their_records(tmp_path):
    with serving(tmp_path) as broker:
        stored = Stored(broker, f"file://{tmp_path}/store")
        for number, topic in enumerate(("pinned", "control", "second")):
            stored.write(topic, number, **{"segment.bytes": "1100"})
        given = {"path": stored.url, "subscribe": "pinned"}
        whole = rows(given, "offset", "value")
        planned = tasks(given)
        for topic in ("pinned", "control"):
            delete_all(stored, topic)
        until(lambda: described(stored, "pinned").marked > 0, "nothing is marked")
        until(lambda: is_deleted(stored, "control"), "nothing is deleted")
        # What is marked after the pinned topic is deleted: the broker has looked at the pinned topic, too.
        delete_all(stored, "second")
        until(lambda: is_deleted(stored, "second"), "nothing is deleted")
        assert described(stored, "pinned").marked > 0
        assert rows(given, "offset", "value", planned=planned) == whole
        assert rows(given, "offset") != [row[:1] for row in whole], "a new read begins at the log start"
