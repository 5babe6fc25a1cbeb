"""The keys of tiered storage: every legal topic has some, and a key is read only where it was written."""

import uuid

import pytest

from stablelog.env.objects.attempts import check_key
from stablelog.tier.names import (
    INDEXES,
    LOG,
    ChainName,
    RemotePartition,
    chain_name_of,
    epoch_key,
    epoch_of,
    partition_of,
)

ID = uuid.UUID(int=2**128 - 2)
SEGMENT = uuid.UUID(int=5)
NO_PARTITIONS = [
    "",
    "t.t",
    "t.t/=AAA/0",
    "x/=AAAAAAAAAAAAAAAAAAAAAA/0",
    "t./=AAAAAAAAAAAAAAAAAAAAAA/0",
    "t.t/=!!AAAAAAAAAAAAAAAAAAAAAA/0",
    "t.t/=AAAAAAAAAAAAAAAAAAAAAA/\u0663",
    "t.t/=AAAAAAAAAAAAAAAAAAAAAA/0/1",
]


@pytest.mark.parametrize("topic", ["t", ".hidden", "-", "a-=b", "x" * 249, "manifest", "epoch", "a.b_c-D"])
def test_every_legal_topic_has_keys_that_every_store_takes(topic):
    partition = RemotePartition(topic, ID, 12)
    for key in (
        partition.segment_key(2**62, SEGMENT, LOG),
        partition.segment_key(0, SEGMENT, INDEXES),
        partition.chain_key(ChainName(7, 3)),
        partition.pin_key(SEGMENT),
    ):
        assert key.startswith(f"{partition.directory}/")
        if "=" not in topic:  # No topic has it; it is tried here because ids have it.
            check_key(key)
    assert partition_of(partition.directory) == partition


@pytest.mark.parametrize("directory", NO_PARTITIONS)
def test_another_directory_is_no_partition(directory):
    assert partition_of(directory) is None


def test_keys_have_the_order_of_numbers():
    partition = RemotePartition("t", ID, 0)
    names = [ChainName(1, 9), ChainName(1, 10), ChainName(2, 0), ChainName(10, 0)]
    keys = [partition.chain_key(name) for name in names]
    assert keys == sorted(keys)
    assert [chain_name_of(key) for key in keys] == names
    bases = [partition.segment_key(base, SEGMENT, LOG) for base in (9, 10, 100)]
    assert bases == sorted(bases)


def test_an_epoch_is_read_from_its_own_key_only():
    assert epoch_of(epoch_key(12)) == 12
    for key in (
        "epoch/12",
        "epoch/000000001x",
        "epoch/" + "\u0660" * 10,
        "other/0000000012",
        "epoch/00000000120",
    ):
        assert epoch_of(key) is None
