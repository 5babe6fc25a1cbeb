"""The reader of single records over several leaders: what it asks about one partition leaves the responses of others alone."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.walk import walk_fields
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.record_reader import RecordReader
from stablelog.errors import DamageError
from stablelog.wire.fetch import FetchedPartition
from tests.client.model_broker import TOPIC, ModelBroker, ModelShell


@pytest.mark.parametrize("bootstrap", ["broker:9092", "broker1:9092"])
@pytest.mark.parametrize("failing", [0, 1])
def test_metadata_is_asked_for_when_no_response_to_a_fetch_is_awaited(bootstrap, failing):
    """Each of the two leaders may be the broker that is asked for metadata."""
    broker = ModelBroker(leader_count=2)
    broker.commit({0: [b"a"], 1: [b"b"]})
    fetched = broker.fetched

    def refuse_one(wanted):
        if wanted.partition == failing:
            return FetchedPartition(wanted.partition, error=ErrorCode.unknown_topic_or_partition)
        return fetched(wanted)

    broker.fetched = refuse_one
    shell = ModelShell(broker)
    reader = RecordReader(Cluster(bootstrap), {(TOPIC, 0): 0, (TOPIC, 1): 0}, "read_committed")
    found = shell.run(reader.read_round(0.5))
    assert found.failures == {(TOPIC, failing): "UNKNOWN_TOPIC_OR_PARTITION"}
    broker.fetched = fetched
    batches = [*found.batches, *shell.run(reader.read_round(0.5)).batches]
    values = {
        (batch.target[1], value)
        for batch in batches
        for _, _, _, value, _ in walk_fields(batch.records, batch.header.record_count)
    }
    assert values == {(0, b"a"), (1, b"b")}


def test_after_damage_no_partition_has_moved():
    broker = ModelBroker()
    broker.commit({0: [b"a"], 1: [b"b"]})
    fetched = broker.fetched

    def flip_one(wanted):
        found = fetched(wanted)
        if wanted.partition == 1:
            (batch,) = found.records
            found.records = [batch[:-1] + bytes([batch[-1] ^ 1])]
        return found

    broker.fetched = flip_one
    shell = ModelShell(broker)
    reader = RecordReader(Cluster("broker:9092"), {(TOPIC, 0): 0, (TOPIC, 1): 0}, "read_committed")
    with pytest.raises(DamageError, match=f"{TOPIC}-1: the batch at offset 0 is damaged"):
        shell.run(reader.read_round(0.5))
    assert reader.positions == {(TOPIC, 0): 0, (TOPIC, 1): 0}
