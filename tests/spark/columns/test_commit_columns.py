"""The columns of commits, of records that retention removes while a task reads them."""

from functools import partial

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import describe_commits
from stablelog.errors import UnavailableError
from stablelog.spark.columns.commit_columns import CommitColumns
from stablelog.spark.planning import Piece
from tests.spark.at_cuts import ordered


def test_the_commits_of_records_that_were_removed_meanwhile_are_refused_by_name(stablelog_broker):
    bootstrap = stablelog_broker.bootstrap
    topic = ordered(bootstrap)[0]
    with stablelog.connect(bootstrap) as client:
        positions = []
        for _ in range(2):
            with client.transaction() as txn:
                written = txn.write(topic, value=b"x", partition=0)
            positions.append(written.result().offset)
    first, second = positions
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with BlockingCluster(bootstrap) as cluster:
        commits = partial(describe_commits, cluster, topic, 0)
        piece = Piece(topic, 0, 0, second + 1, 0)
        columns = CommitColumns(
            lambda offset: commits(offset=offset), "", piece, ("offset", "commitSequence")
        )
        before = TopicPartition(topic, 0, second)
        admin.delete_records([before])[before].result(60)
        batch = pa.RecordBatch.from_pydict({"offset": pa.array([first, second], pa.int64())})
        removed = f"{topic}-0 begins at offset {second} now: offsets {first} to {second - 1} were removed"
        with pytest.raises(
            UnavailableError, match=f"{removed} while .* commits of their records are unknown"
        ):
            columns.with_commits(batch)
        assert columns.with_commits(batch.slice(1)).column("commitSequence").to_pylist() != [None]
