"""Records that a producer wrote so that they cannot be decoded: a read names them, or continues after them."""

import logging
import socket

import pytest

import stablelog
from stablelog.batch.header import HEADER, assemble, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError
from tests.broker.desk import frame, produce_fields, read_answer
from tests.spark.reading import make, rows

pytestmark = pytest.mark.extended

GOOD = encode_batch([Record(0, 1_700_000_000_000, None, b"good")] * 3)
POISON = assemble(
    read_header(GOOD)._replace(attributes=4), GOOD[HEADER.size :]
)  # zstd by its header, and not so


def produced(bootstrap, topic, batch):
    """The error code of a Produce request with this batch."""
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        asked = frame(0, 9, **produce_fields(9, topic, 0, batch))
        connection.sendall(len(asked).to_bytes(4, "big") + asked)
        with connection.makefile("rb") as file:
            answer, _ = read_answer(0, 9, file.read(int.from_bytes(file.read(4), "big")))
    return answer.responses[0].partition_responses[0].error_code.name


@pytest.mark.parametrize("scan", ["fetch", "files"])
def test_a_read_continues_after_records_that_no_client_can_decode(scan, caplog):
    with stablelog.serve(settings={"stablelog.produce.proof": "header"}) as broker:
        make(broker.bootstrap, "poisoned", 1)
        for batch in (GOOD, POISON, GOOD):
            assert produced(broker.bootstrap, "poisoned", batch) == "none"
        given = {"bootstrap": broker.bootstrap, "subscribe": "poisoned", "scan": scan}
        with pytest.raises(
            DamageError,
            match=r"the batch at offset 3.*the producer wrote the batch in this form. Set failOnDataLoss to false",
        ):
            rows(given, "offset", "value")
        with caplog.at_level(logging.WARNING):
            found = rows({**given, "failOnDataLoss": "false"}, "offset", "value")
        assert found == [(offset, b"good") for offset in (0, 1, 2, 6, 7, 8)]
        assert "poisoned-0: the batch at offset 3" in caplog.text
        assert (
            "3 of its 3 records are skipped, up to offset 5; the read continues without them" in caplog.text
        )


def test_a_broker_refuses_such_records_unless_it_trusts_its_producers():
    with stablelog.serve() as broker:
        make(broker.bootstrap, "healthy", 1)
        assert produced(broker.bootstrap, "healthy", POISON) == "invalid_record"
