"""What Apache Kafka's dump tool says of a joint commit: the children's decisions are Kafka's, in one batch; the key is passed over."""

import json

import pytest

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from tests.client.blocking.test_joint import Child, create
from tests.java.dump import dump, files_of

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

PREPARE_COMMIT = 2


def test_kafka_reads_the_decision_of_a_joint_commit(kafka_jars, tmp_path):
    data = tmp_path / "data"
    with stablelog.serve(data) as broker, BlockingCluster(broker.bootstrap) as cluster:
        topic = create(broker.bootstrap)
        joint.begin(cluster, "q", 0, "r1")
        children = [
            Child(broker.bootstrap, "q", 0, part).write(topic, b"x", partition=part).shown for part in (0, 1)
        ]
        joint.commit(cluster, "q", 0, children, run="r1", group_offsets={("g", topic, 0): 1})
        broker.stop()
    found = dump(*files_of(data / "__transaction_state-0"), options=("--transaction-log-decoder",))
    assert found.complaints == []
    (lines,) = (lines for path, lines in found.lines.items() if path.suffix == ".log")
    batches = [[]]
    for line in lines:
        if line.startswith("baseOffset"):
            batches.append([])
        batches[-1].append(line)
    (decision,) = (batch for batch in batches if sum('"transactionStatus":2' in line for line in batch) > 0)
    assert "count: 4 " in decision[0]
    assert "Unknown record type 10001" in decision[1], "the key's record, which Kafka passes over"
    told = [json.loads(line.split(" payload: ")[1])["data"] for line in decision[2:]]
    assert [data["transactionStatus"] for data in told] == [PREPARE_COMMIT] * 3
    assert [part["topic"] for data in told for part in data["transactionPartitions"]] == [
        topic,
        topic,
        "__consumer_offsets",
    ]
    for partition in (0, 1):
        dumped = dump(*files_of(data / f"{topic}-{partition}"))
        assert dumped.complaints == []
        assert [row["endTxnMarker"] for row in dumped.records() if "endTxnMarker" in row] == ["COMMIT"]
