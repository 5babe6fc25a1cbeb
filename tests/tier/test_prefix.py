"""What readers find in a prefix of a store."""

import uuid

import pytest

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, StoreError, UnknownFormatError, UsageError
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import LinkKind, encode_link
from stablelog.tier.manifest import Manifest, encode_manifest, encode_part
from stablelog.tier.names import ChainName, RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.tier.published import Published
from tests.tier.test_manifest import segment

NONCE = bytes(16)
IDS = [uuid.UUID(int=number) for number in (2**127, 1)]


def prefix(faults=None):
    requests = SimObjects(faults=faults or StoreFaults())
    return requests, Prefix(ObjectStore(requests, now_s=requests.now_s, sleep=requests.sleep))


def publish(requests, partition, manifest, number=1, epoch=1):
    published = Published(0, 0, 1, {}, partition.topic_id, partition.partition)
    put(requests, partition, manifest._replace(published=published), number, epoch)


def put(requests, partition, manifest, number=1, epoch=1):
    content = encode_link(LinkKind.MANIFEST, epoch, NONCE, encode_manifest(manifest, 0))
    requests.objects[partition.chain_key(ChainName(epoch, number))] = content


def test_partitions_are_found_by_their_objects():
    requests, found = prefix()
    assert found.topics() == []
    for topic, topic_id, number in (
        ("b", IDS[0], 0),
        ("a.x", IDS[0], 10),
        ("a.x", IDS[0], 2),
        ("a.x", IDS[1], 0),
    ):
        publish(requests, RemotePartition(topic, topic_id, number), Manifest("c"))
    requests.objects |= {
        "cluster": b"",
        "epoch/0000000001": NONCE,
        "t.a.x/other/0/x": b"",
        "foreign/1/2": b"",
    }
    assert found.topics() == ["a.x", "b"]
    assert found.partitions("a.x") == [
        RemotePartition("a.x", IDS[1], 0),
        RemotePartition("a.x", IDS[0], 2),
        RemotePartition("a.x", IDS[0], 10),
    ]
    assert found.partitions("c") == []


def test_the_last_manifest_is_read_with_its_parts():
    requests, found = prefix()
    partition = RemotePartition("t", IDS[0], 0)
    assert found.last_manifest(partition) is None
    segments = tuple(segment(number) for number in range(6))
    part, content = encode_part(IDS[1], segments[:4], 0)
    publish(requests, partition, Manifest("c", 0, segments[:1]))
    publish(requests, partition, Manifest("c", 0, segments, (part,)), number=2)
    with pytest.raises(DamageError, match=r"part/.* is missing, although the manifest .* names it"):
        found.last_manifest(partition)
    requests.objects[partition.part_key(part.base_offset, part.part_id)] = content
    before = found.store.counts.copy()
    manifest = found.last_manifest(partition)
    assert manifest is not None
    assert manifest.segments == segments
    assert found.store.counts - before == {"list_after": 1, "get": 2}


def test_a_manifest_without_the_state_of_its_topic_is_refused():
    requests, found = prefix()
    partition = RemotePartition("t", IDS[0], 0)
    put(requests, partition, Manifest("c"))
    with pytest.raises(
        UnknownFormatError, match=r"^the manifest of t.* without the state of its topic; no release"
    ):
        found.last_manifest(partition)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version": "x", "cluster": "c"}'])
def test_a_prefix_of_another_program_is_refused_by_its_key(content):
    requests, found = prefix()
    requests.objects["cluster"] = content
    with pytest.raises(
        UsageError, match="the object sim://store/cluster was not written by a cluster of stablelog"
    ):
        found.cluster_id()


def test_the_cluster_is_read_and_a_later_layout_refused():
    requests, found = prefix()
    with pytest.raises(ObjectMissingError):
        found.cluster_id()
    requests.objects["cluster"] = b'{"version": 1, "cluster": "here"}'
    assert found.cluster_id() == "here"
    requests.objects["cluster"] = b'{"version": 2, "cluster": "here"}'
    with pytest.raises(UnknownFormatError, match="the layout of sim://store"):
        found.cluster_id()


def test_a_store_that_does_not_answer_is_an_error_and_no_empty_prefix():
    requests, found = prefix(StoreFaults(refused=1.0))
    requests.objects["t.t/x/y/z"] = b""
    for read in (found.topics, lambda: found.partitions("t"), found.cluster_id):
        with pytest.raises(StoreError, match="no clear answer"):
            read()
