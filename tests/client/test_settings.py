"""Settings of the native client by Kafka's names: each has its effect, and a wrong one is refused by name."""

import re

import pytest

import stablelog
from stablelog.batch.header import Codec, headers_in
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import UnavailableError, UsageError
from stablelog.testing.faulty_broker import FaultyBroker
from tests import documented
from tests.client.transactions import create

PAGE = documented.page("client.md")
OWN = (
    "client.id",
    "compression.type",
    "default.api.timeout.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client.idd": "x"}, "the setting client.idd is unknown; did you mean client.id?"),
        (
            {"compression.type": "rar"},
            "compression.type='rar' is not valid: one of none, gzip, snappy, lz4, zstd",
        ),
        ({"request.timeout.ms": 0}, "request.timeout.ms=0 is not valid"),
        ({"retry.backoff.ms": "soon"}, "retry.backoff.ms='soon' is not valid"),
        ({"default.api.timeout.ms": True}, "default.api.timeout.ms=True is not valid"),
        ({"client.id": 7}, "client.id=7 is not valid"),
        ({"ssl.truststore.location": "x"}, "ssl.truststore.location"),
    ],
)
@pytest.mark.parametrize("connect", [stablelog.connect, stablelog.aio.connect])
def test_a_wrong_setting_is_refused_by_name(connect, given, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        connect("localhost:9092", settings=given)


def test_the_deadline_is_given_once():
    with pytest.raises(UsageError, match="given twice"):
        stablelog.connect("localhost:9092", deadline=3, settings={"default.api.timeout.ms": 3000})


@pytest.mark.extended
def test_batches_are_compressed_and_the_broker_sees_the_client_id():
    with FaultyBroker() as broker:
        topic = create(broker.bootstrap)
        fault = broker.faults.delay("Produce", 0, client_id="shop")
        settings = {"client.id": "shop", "compression.type": "zstd"}
        with stablelog.connect(broker.bootstrap, settings=settings) as client:
            with client.transaction() as txn:
                txn.write(topic, bytes(1000), key="k", partition=0)
            fault.wait()
            (read,) = client.read(topic, wait=0)
        assert read.records[0].value == bytes(1000)
        with BlockingCluster(broker.bootstrap) as cluster:
            records = cluster.fetch(topic, 0, 0).records
        assert [header.codec for _, header in headers_in(records) if not header.is_control] == [Codec.ZSTD]
        fault = broker.faults.delay("Metadata", count=1000)
        with (
            stablelog.connect(
                broker.bootstrap, settings={"request.timeout.ms": 50, "default.api.timeout.ms": 100}
            ) as client,
            pytest.raises(UnavailableError, match="timed out"),
        ):
            client.transaction().write(topic, "v", key="k")
        broker.faults.clear()


def test_the_page_has_a_row_for_each_setting():
    table = PAGE.partition("| setting | default | meaning |\n")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `([\w.]+)`", table, re.M)) == OWN
