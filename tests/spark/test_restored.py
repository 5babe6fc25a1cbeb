"""A stream that goes on from its checkpoint, at a broker that was restored without some of the records it has read."""

import json
import shutil

import pytest
from pyspark.errors import StreamingQueryException

from tests.broker.tiering.life import TOPIC, URL, alive, lived
from tests.broker.tiering.test_restored_broker import stablelog
from tests.spark.reading import settled
from tests.spark.test_source import stream, to_the_end
from tests.waiting import until

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("scan", ["auto", pytest.param("fetch", marks=pytest.mark.night)])
def test_a_stream_that_has_read_lost_records_gets_an_error_and_skips_no_new_record(
    spark, tmp_path, monkeypatch, scan
):
    kept = tmp_path / "checkpoint"

    def read_on(broker, checkpoint, **more):
        found = []
        frame = stream(spark, broker, TOPIC, scan=scan, **more).selectExpr("offset", "value")
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: found.extend((row.offset, bytes(row.value)) for row in batch.collect())
        )
        to_the_end(writer.option("checkpointLocation", str(checkpoint)))
        return sorted(found)

    def copied(name):
        return shutil.copytree(kept, tmp_path / name)

    with lived(tmp_path, monkeypatch) as life:
        life.create()
        life.write()
        life.wait_until_remote()
        life.writer.write(2)
        until(life.is_commit_log_copied, lambda: "the commit log is not copied")
        settled(life.broker.bootstrap, TOPIC)
        assert read_on(life.broker, kept) == life.writer.committed
        _, end = life.bounds()
        life.broker.kill()
        report = json.loads(stablelog("restore", URL, "--data", tmp_path / "new", "--allow-http", "--json"))
        (lost,) = [one for one in report["ranges"] if one["topic"] == TOPIC]
        assert lost["lost_from"] < end
        told = (
            f"t-0 cannot be read from offset {end}: all records from offset {lost['lost_from']} on are gone"
        )
        with alive(tmp_path / "new", life.s3, port=life.broker.port) as again:
            with pytest.raises(StreamingQueryException, match=told):
                read_on(again.broker, copied("before new records"))
            again.go_on(life.writer)
            again.writer.committed = []
            again.writer.write(2)
            settled(again.broker.bootstrap, TOPIC)
            for name, limit in (("after", {}), ("limited", {"maxOffsetsPerTrigger": "7"})):
                with pytest.raises(StreamingQueryException, match=told):
                    read_on(again.broker, copied(name), **limit)
                going_on = {"failOnDataLoss": "false", **limit}
                assert read_on(again.broker, copied(f"{name}, on"), **going_on) == again.writer.committed
