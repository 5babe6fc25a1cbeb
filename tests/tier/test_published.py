"""The state of a partition and its topic in a manifest."""

import pytest

from stablelog.errors import DamageError
from stablelog.log.files.restored import Restored
from stablelog.tier.manifest import Manifest, decode_manifest, encode_manifest
from stablelog.tier.published import Published, published_of

RESTORED = Restored(((5, 9), (12, 15)), 3_000, -1, 7, 1_000)
PUBLISHED = Published(17, 1_700_000_000_000, 3, {"remote.storage.enable": "true"}, RESTORED, view_start=9)


def test_a_manifest_says_what_the_broker_knew_of_the_partition_and_its_topic():
    manifest = Manifest("cluster", 5, published=PUBLISHED)
    assert decode_manifest(encode_manifest(manifest, 0)) == manifest


def test_a_manifest_of_an_early_release_says_nothing_of_its_topic():
    assert decode_manifest(encode_manifest(Manifest("cluster"), 0)).published is None


@pytest.mark.parametrize(
    "change",
    [
        {"log_end": -1},
        {"log_end": "17"},
        {"time_ms": None},
        {"partition_count": True},
        {"configs": []},
        {"configs": {"retention.ms": 5}},
        {"restored": {"ranges": [[5]]}},
        {"view_start": "9"},
    ],
)
def test_other_values_are_refused(change):
    with pytest.raises(DamageError, match="describes its topic"):
        published_of({"published": PUBLISHED.fields() | change})
    with pytest.raises(DamageError, match="describes its topic"):
        published_of({"published": {"log_end": 17}})
