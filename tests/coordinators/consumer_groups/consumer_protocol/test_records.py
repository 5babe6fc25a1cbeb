"""Records of consumer groups: they read back, and are the bytes of Kafka's schemas."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups.consumer_protocol import records
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    CurrentAssignment,
    MemberState,
    Subscription,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.records import ConsumerKey, GroupEpochs
from stablelog.coordinators.consumer_groups.records import read_key
from stablelog.errors import DamageError, UnknownFormatError

I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=5)
PARTITIONS = st.frozensets(st.tuples(st.uuids(), st.integers(0, 2**31 - 1)), max_size=5)
SUBSCRIPTIONS = st.builds(
    Subscription,
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    topics=st.lists(TEXT, max_size=3).map(tuple),
    pattern=st.none() | TEXT,
    rebalance_timeout_ms=I32,
    assignor=st.none() | TEXT,
)
CURRENTS = st.builds(CurrentAssignment, I32, I32, st.sampled_from(MemberState), PARTITIONS, PARTITIONS)
TOPIC = uuid.UUID(int=7)


@pytest.mark.extended
@given(SUBSCRIPTIONS, CURRENTS, PARTITIONS, I32, st.integers(-(2**63), 2**63 - 1))
def test_values_read_back_as_they_were_written(subscription, current, target, epoch, topics_hash):
    assert records.read_subscription(records.encode_subscription(subscription)) == subscription
    assert records.read_current(records.encode_current(current)) == current
    assert records.read_target(records.encode_target(target)) == target
    assert records.read_target_epoch(records.encode_target_epoch(epoch)) == epoch
    epochs = GroupEpochs(epoch, topics_hash)
    assert records.read_group_epochs(records.encode_group_epochs(epochs)) == epochs


@pytest.mark.parametrize("kind", records.CONSUMER_KEY_VERSIONS)
def test_keys_read_back_as_they_were_written(kind):
    key = ConsumerKey(kind, "g", "m" if kind in records.MEMBER_KEY_VERSIONS else "")
    assert read_key(records.encode_consumer_key(key)) == key


def test_the_bytes_are_kafkas():
    assert records.encode_group_epochs(GroupEpochs(5, 0)).hex() == "00000000000500"
    assert records.encode_group_epochs(GroupEpochs(5, 1)).hex() == "000000000005010008" + "00" * 7 + "01"
    current = CurrentAssignment(3, 2, MemberState.UNREVOKED, frozenset({(TOPIC, 1), (TOPIC, 0)}), frozenset())
    assert records.encode_current(current).hex() == (
        "000000000003000000020102" + TOPIC.hex + "030000000000000001000100"
    )
    subscription = Subscription(
        instance_id=None,
        rack_id="r",
        client_id="c",
        client_host="h",
        topics=("t",),
        pattern=None,
        rebalance_timeout_ms=9,
        assignor="range",
    )
    told = "000000027202630268020274000000000906" + b"range".hex() + "00"
    assert records.encode_subscription(subscription).hex() == told


def test_what_cannot_be_read_is_refused():
    with pytest.raises(UnknownFormatError):
        records.read_target_epoch(b"\0\1" + bytes(5))
    with pytest.raises(DamageError, match="a member's current assignment"):
        records.read_current(records.encode_current(CurrentAssignment())[:-1])
    with pytest.raises(DamageError, match="state 9"):
        records.read_current(b"\0\0" + bytes(8) + b"\x09\1\1\0")


def test_the_kinds_of_keys_are_kafkas():
    assert (
        records.GROUP_EPOCH_KEY_VERSION,
        records.MEMBER_KEY_VERSION,
        records.TARGET_EPOCH_KEY_VERSION,
        records.TARGET_KEY_VERSION,
        records.CURRENT_KEY_VERSION,
    ) == (3, 5, 6, 7, 8)
    assert records.encode_consumer_key(ConsumerKey(8, "g", "m")) == b"\0\x08\0\1g\0\1m"
    assert records.encode_consumer_key(ConsumerKey(3, "g", "")) == b"\0\x03\0\1g"
