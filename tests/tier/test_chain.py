"""The chain of manifests: no acknowledged manifest is lost, whoever else writes at the same time."""

import os

import pytest

from stablelog.errors import DamageError, FencedError, UnknownFormatError
from stablelog.tier.chain import (
    LINK,
    MANIFESTS_KEPT,
    Chain,
    LinkKind,
    claim_epoch,
    decode_link,
    encode_link,
    last_manifest,
    same_payload,
)
from stablelog.tier.names import ChainName
from tests.tier.chain_world import PARTITION, World, lost_rows

SEEDS = int(os.environ.get("STABLELOG_CHAIN_SEEDS", "150"))  # those behind the first block by night
BLOCK = 20
NONCES = [bytes([number]) * 16 for number in range(10)]


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.night) for block in range(1, SEEDS // BLOCK))]
)
def test_no_acknowledged_manifest_is_lost(block):
    acknowledged = fenced = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        lost, world = lost_rows(seed)
        assert not lost, f"seed {seed}: {len(lost)} of {len(world.acknowledged)} rows are lost"
        acknowledged += len(world.acknowledged)
        fenced += world.fenced_count
    assert acknowledged > 100 * BLOCK
    assert fenced > BLOCK


class Store:
    """A store that answers at once."""

    def __init__(self):
        self.world = World(0)

    def __call__(self, steps):
        answer = None
        while True:
            try:
                answer = self.world.apply(steps.send(answer))
            except StopIteration as end:
                return end.value

    def names(self):
        return [key.rpartition("/")[2] for key in sorted(self.world.objects) if "manifest" in key]


def test_epochs_are_taken_one_after_the_other():
    store = Store()
    assert [store(claim_epoch(nonce)) for nonce in NONCES[:3]] == [1, 2, 3]


def test_a_take_over_gets_the_last_manifest_and_fences_the_one_before():
    store = Store()
    first, second = Chain(PARTITION, 1, NONCES[1]), Chain(PARTITION, 2, NONCES[2])
    assert store(first.take_over(same_payload)) is None
    assert store(last_manifest(PARTITION)) is None
    store(first.publish(b"one"))
    store(first.publish(b"two"))
    assert store(second.take_over(same_payload)) == b"two"
    assert store.names() == [f"{1:010}-{number:012}" for number in range(4)] + [f"{2:010}-{0:012}"]
    with pytest.raises(FencedError, match="another broker has taken over"):
        store(first.publish(b"three"))
    with pytest.raises(FencedError, match="a broker of epoch 2 has taken over"):
        store(Chain(PARTITION, 1, NONCES[1]).take_over(same_payload))
    assert store(last_manifest(PARTITION)) == b"two"
    store(second.publish(b"four"))
    assert store(last_manifest(PARTITION)) == b"four"


def test_a_broker_that_never_published_is_fenced_too():
    store = Store()
    first, second, third = (Chain(PARTITION, epoch, NONCES[epoch]) for epoch in (1, 2, 3))
    store(first.take_over(same_payload))
    store(first.publish(b"one"))
    store(second.take_over(same_payload))
    assert store(third.take_over(same_payload)) == b"one"
    with pytest.raises(FencedError):
        store(second.publish(b"two"))


def test_old_manifests_may_go_and_never_the_last_of_an_epoch_its_claim_or_its_fence():
    store = Store()
    first = Chain(PARTITION, 1, NONCES[1])
    store(first.take_over(same_payload))
    for number in range(20):
        store(first.publish(b"%d" % number))
    old = store(first.removable_manifests())
    assert old == [PARTITION.chain_key(ChainName(1, number)) for number in range(1, 21 - MANIFESTS_KEPT)]
    second = Chain(PARTITION, 2, NONCES[2])
    store(second.take_over(same_payload))
    all_but_last = [PARTITION.chain_key(ChainName(1, number)) for number in range(1, 20)]
    assert store(second.removable_manifests()) == all_but_last, "a lower epoch keeps its last manifest"
    store(second.publish(b"x"))
    assert store(second.removable_manifests(0)) == all_but_last
    store(Chain(PARTITION, 3, NONCES[3]).take_over(same_payload))
    with pytest.raises(FencedError, match="a broker of epoch 3"):
        store(second.removable_manifests())


def test_who_has_not_taken_over_publishes_nothing():
    store = Store()
    store(Chain(PARTITION, 3, NONCES[3]).take_over(same_payload))
    late = Chain(PARTITION, 2, NONCES[2])
    with pytest.raises(FencedError):
        store(late.take_over(same_payload))
    for steps in (lambda: late.publish(b"evil"), late.removable_manifests):
        with pytest.raises(AssertionError, match="take over first"):
            store(steps())


@pytest.mark.parametrize("kind", [LinkKind.MANIFEST, LinkKind.FENCE], ids=lambda kind: kind.name.lower())
def test_an_object_that_lost_bytes_is_damage_and_no_fence(kind):
    """The kind is known by the size: a manifest that was truncated must not be taken for a fence."""
    for size in (0, 5, LINK.size - 1, LINK.size):
        store = Store()
        first = Chain(PARTITION, 1, NONCES[1])
        store(first.take_over(same_payload))
        store(first.publish(b"one"))
        store(first.publish(b"two"))
        if kind is LinkKind.FENCE:
            store(Chain(PARTITION, 2, NONCES[2]).take_over(same_payload))
        key = PARTITION.chain_key(ChainName(1, 2 if kind is LinkKind.MANIFEST else 3))
        store.world.objects[key] = bytes(LINK.size)[:size]
        with pytest.raises(DamageError, match=key):
            store(Chain(PARTITION, 3, NONCES[3]).take_over(same_payload))


def test_a_reader_whose_manifest_is_deleted_meanwhile_reads_the_next_one():
    store = Store()
    chain = Chain(PARTITION, 1, NONCES[1])
    store(chain.take_over(same_payload))
    store(chain.publish(b"one"))
    steps = last_manifest(PARTITION)
    get = steps.send(store.world.apply(next(steps)))
    store(chain.publish(b"two"))
    del store.world.objects[get.key]
    answer = None
    with pytest.raises(StopIteration) as end:
        while True:
            answer = store.world.apply(steps.send(answer))
    assert end.value.value == b"two"


def test_keys_of_another_place_are_no_objects_of_the_chain():
    store = Store()
    chain = Chain(PARTITION, 1, NONCES[1])
    for name in ("sub/0000000009-000000000000", "0000000009-00000000000", "\u0660" * 10 + "-" + "0" * 12):
        store.world.objects[f"{PARTITION.chain}/{name}"] = b""
    assert store(chain.take_over(same_payload)) is None


def test_a_publication_of_unknown_result_is_repeated_before_the_next():
    """It may have been created: the next manifest must not take its number as another's."""
    store = Store()
    chain = Chain(PARTITION, 1, NONCES[1])
    store(chain.take_over(same_payload))
    steps = chain.publish(b"one")
    request = next(steps)
    store.world.apply(request)
    with pytest.raises(ZeroDivisionError):
        steps.throw(ZeroDivisionError)
    store(chain.publish(b"two"))
    assert store(last_manifest(PARTITION)) == b"two"
    assert store.names()[-1] == f"{1:010}-{2:012}"


def test_damage_of_the_last_manifest_is_told_by_its_key():
    store = Store()
    chain = Chain(PARTITION, 1, NONCES[1])
    store(chain.take_over(same_payload))
    store(chain.publish(b"content"))
    key = PARTITION.chain_key(ChainName(1, 1))
    whole = store.world.objects[key]
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        store.world.objects[key] = bytes(damaged)
        with pytest.raises((DamageError, UnknownFormatError)) as caught:
            store(last_manifest(PARTITION))
        assert at < 2 or key in str(caught.value)
    store.world.objects[key] = encode_link(LinkKind.MANIFEST, 1, NONCES[1], b"another")
    assert store(last_manifest(PARTITION)) == b"another"


def test_an_object_of_the_chain_is_read_or_refused():
    content = encode_link(LinkKind.MANIFEST, 5, NONCES[3], b"payload")
    assert decode_link(content) == (LinkKind.MANIFEST, b"payload")
    assert len(encode_link(LinkKind.FENCE, 5, NONCES[3])) == LINK.size
    for size in range(len(content)):
        with pytest.raises(DamageError):
            decode_link(content[:size])
    with pytest.raises(UnknownFormatError, match="of version 2"):
        decode_link(b"\0\2" + content[2:])


def test_a_reader_asks_for_one_list_and_one_object():
    store = Store()
    chain = Chain(PARTITION, 1, NONCES[1])
    store(chain.take_over(same_payload))
    store(chain.publish(b"one"))
    steps, answer, requests = last_manifest(PARTITION), None, []
    with pytest.raises(StopIteration):
        while True:
            requests.append(steps.send(answer))
            answer = store.world.apply(requests[-1])
    assert [type(request).__name__ for request in requests] == ["List", "Get"]
