"""What a reader is told of bytes that have changed, and of records that no client can decode."""

import logging

import pytest

import stablelog
from stablelog.batch.header import HEADER, write_crc
from stablelog.client.core.cluster import Cluster as CoreCluster
from stablelog.client.core.transaction_reader import ReaderSelection
from stablelog.errors import DamageError
from stablelog.testing.faulty_broker import FaultyBroker
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell, reading
from tests.client.transactions import create, write_undecodable


def flipped(batch):
    """A bit of the last record has changed."""
    changed = bytearray(batch)
    changed[-2] ^= 1
    return bytes(changed)


def undecodable(batch):
    """Its producer wrote a length that is too great, and the CRC over it."""
    changed = bytearray(batch)
    changed[HEADER.size] = 0x7E
    write_crc(changed)
    return bytes(changed)


def garbled(batch):
    """What should be a header is none."""
    return batch[:16] + b"\x09" + batch[17:]


def given(change, *, is_cut=True, skips=False):
    """What a reader gives of three transactions, of which the second one's records in partition 1 were changed."""
    broker = ModelBroker()
    shell = ModelShell(broker)
    for number in range(3):
        values = [b"%d" % number] * 2
        broker.commit({0: values, 1: values})
    broker.change(1, 1, change)
    selection = ReaderSelection((TOPIC,), is_cut, 0, 0.0, None, skips)
    try:
        shell.run(reading(CoreCluster(ADDRESS), selection))
    finally:
        assert shell.now == 0, "nothing is repeated"
    return [one for _, one in shell.given]


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flipped, f"{TOPIC}-1, offset 2: the CRC of the batch is wrong"),
        (garbled, f"{TOPIC}-1, offset 2: "),
    ],
    ids=["a record", "a header"],
)
def test_bytes_that_have_changed_are_named_at_once_and_never_skipped(is_cut, skips, change, message):
    with pytest.raises(DamageError, match=message):
        given(change, is_cut=is_cut, skips=skips)


@pytest.mark.parametrize("is_cut", [True, False])
def test_records_that_cannot_be_decoded_are_named_with_the_way_past_them(is_cut, caplog):
    with pytest.raises(
        DamageError,
        match=rf"{TOPIC}-1, offset 2: the 2 records .* To leave such records out, set skip_unreadable=True",
    ):
        given(undecodable, is_cut=is_cut)
    with caplog.at_level(logging.WARNING, "stablelog.client"):
        found = given(undecodable, is_cut=is_cut, skips=True)
    assert f"{TOPIC}-1, offset 2: the 2 records of the batch cannot be decoded" in caplog.text
    assert sum(one.unreadable_count for one in found) == 2
    assert {one.commit_sequence for one in found if one.unreadable_count} == {2}
    assert sum(len(one.records) for one in found) == 10


@pytest.mark.extended
@pytest.mark.parametrize("cut", [True, False])
def test_a_byte_that_changes_on_the_disk_does_not_reach_the_program(face, cut):
    with stablelog.serve() as broker, face.connect(broker.bootstrap, 60) as client:
        topic = create(broker.bootstrap, partitions=1)
        for number in range(3):
            with client.transaction() as txn:
                txn.write(topic, b"value-%d" % number)
        (path,) = broker.data.glob(f"{topic}-0/*.log")
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(content.index(b"value-1"))
            file.write(b"w")
        seen = []
        with pytest.raises(DamageError, match=rf"{topic}-0, offset \d+: the CRC of the batch is wrong"):
            for one in client.read(topic, cut=cut, wait=0):
                seen.append(one.records[0].value)  # noqa: PERF401 - the reader raises after some
        assert seen == [b"value-0"]


@pytest.mark.extended
@pytest.mark.parametrize("count", [1, 1000])
def test_damage_that_the_broker_has_found_is_named_after_a_moment(face, count):
    """A partition that is closed for a moment is no damage."""
    with FaultyBroker() as broker, face.connect(broker.bootstrap, 600) as client:
        topic = create(broker.bootstrap, partitions=1)
        with client.transaction() as txn:
            txn.write(topic, b"v")
        broker.faults.fail("Fetch", "KAFKA_STORAGE_ERROR", count=count)
        reader = client.read(topic, cut=True, wait=0)
        if count == 1:
            assert len(list(reader)) == 1
            return
        with pytest.raises(DamageError, match=rf"{topic}-0, offset \d+: the broker cannot read the records"):
            list(reader)
        assert broker.faults.requests()["Fetch"] < 20


@pytest.mark.extended
def test_records_that_no_client_can_decode_are_passed_by_an_option(face):
    with stablelog.serve(settings={"stablelog.produce.proof": "header"}) as broker:
        topic = create(broker.bootstrap, partitions=1)
        with face.connect(broker.bootstrap, 60) as client:
            for number in range(3):
                if number == 1:
                    write_undecodable(broker.bootstrap, topic)
                else:
                    with client.transaction() as txn:
                        txn.write(topic, b"%d" % number)
            with pytest.raises(DamageError, match="cannot be decoded"):
                list(client.read(topic, wait=0))
            found = list(client.read(topic, wait=0, skip_unreadable=True))
    assert [(len(one.records), one.unreadable_count) for one in found] == [(1, 0), (0, 1), (1, 0)]
