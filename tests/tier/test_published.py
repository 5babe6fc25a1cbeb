"""The state of a partition and its topic in a manifest."""

import uuid

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.restored import Restored
from stablelog.tier.manifest import HEAD_KEY, Manifest, decode_manifest, encode_manifest
from stablelog.tier.published import PARTITION_COUNT_MAX, Published, published_of

RESTORED = Restored(((5, 9), (12, 15)), 3_000, -1, 7, 1_000)
TOPIC_ID = uuid.UUID(int=7)
PUBLISHED = Published(17, 1_700_000_000_000, 3, {"remote.storage.enable": "true"}, TOPIC_ID, 2, RESTORED, 9)


def test_a_manifest_says_what_the_broker_knew_of_the_partition_and_its_topic():
    manifest = Manifest("cluster", 5, published=PUBLISHED)
    assert decode_manifest(encode_manifest(manifest, 0)) == manifest


def test_a_manifest_that_was_never_published_says_nothing_of_its_topic():
    assert decode_manifest(encode_manifest(Manifest("cluster"), 0)).published is None


def test_a_manifest_that_does_not_name_its_partition_is_refused():
    fields = PUBLISHED.to_json()
    del fields["topic_id"], fields["partition"]
    with pytest.raises(
        UnknownFormatError, match=r"^a manifest that does not name its partition; no release has"
    ):
        published_of({"version": 1, "published": fields})


@pytest.mark.parametrize(
    "change",
    [
        {"log_end": -1},
        {"log_end": "17"},
        {"time_ms": None},
        {"partition_count": True},
        {"partition_count": 1e400},
        {"configs": []},
        {"configs": {"retention.ms": 5}},
        {"restored": {"ranges": [[5]]}},
        {"view_start": "9"},
        {"topic_id": 7},
        {"topic_id": "no id"},
        {"partition": "2"},
        {"partition": -1},
    ],
)
def test_other_values_are_refused(change):
    with pytest.raises(DamageError, match="its field `published`"):
        published_of({"published": PUBLISHED.to_json() | change})
    with pytest.raises(DamageError, match="its field `published`"):
        published_of({"published": {"topic_id": str(TOPIC_ID), "log_end": 17}})


def test_more_partitions_than_a_topic_may_have_are_refused():
    """A restore and a Spark read would go through all of them."""
    assert published_of({"published": PUBLISHED.to_json() | {"partition_count": PARTITION_COUNT_MAX}})
    with pytest.raises(DamageError, match=r"has 1000000000000 partitions; at most 100000 are possible"):
        published_of({"published": PUBLISHED.to_json() | {"partition_count": 10**12}})


def test_a_manifest_whose_head_is_nested_deeply_is_damaged():
    head = b'{"version":1,"cluster":"x","log_start":0,"count":0,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    content = encode_batch([Record(0, 0, HEAD_KEY, head)], base_offset=0, leader_epoch=0)
    with pytest.raises(DamageError, match="nested too deeply"):
        decode_manifest(content)


def test_a_manifest_of_another_partition_is_refused():
    """Manifests without segments may be swapped in the store: nothing else in them says whose they are."""
    PUBLISHED.check_partition(TOPIC_ID, 2)
    for topic_id, partition in ((TOPIC_ID, 1), (uuid.UUID(int=8), 2)):
        with pytest.raises(
            DamageError, match=f"is that of partition 2 .* stored as that of partition {partition} of"
        ):
            PUBLISHED.check_partition(topic_id, partition)
