"""A read as Spark does it, without Spark: options to ranges, to tasks, to rows."""

import pickle

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits, plan_tasks
from stablelog.spark.schema import Columns, default_schema
from stablelog.spark.source.cuts import batch_ranges
from stablelog.spark.source.readable_ranges import batch_parts
from stablelog.spark.source.reader import TaskPartition, open_log, read_task
from tests.waiting import until

ROWS = default_schema(include_headers=True, include_commits=True)


def tasks(given, limits=None):
    options = read_options(given, BATCH)
    log = open_log(options)
    try:
        ranges, topic_ids = batch_ranges(options, log)
        return plan_tasks(
            log.spans(batch_parts(options, log, ranges, topic_ids), topic_ids), limits or TaskLimits()
        )
    finally:
        log.close()


def rows(given, *names, limits=None, planned=None):
    """The rows of a read, as tuples of these columns; one by one in the order of tasks."""
    options = read_options(given, BATCH)
    schema = StructType([field for name in names for field in ROWS.fields if field.name == name])
    found = []
    for pieces in planned if planned is not None else tasks(given, limits):
        task = pickle.loads(pickle.dumps(TaskPartition(pieces)))
        for batch in read_task(options, Columns(schema), task):
            found += zip(*(pa.array(column).to_pylist() for column in batch.columns), strict=True)
    return found


def settled(bootstrap, topic):
    """Wait until every transaction that was ended has its markers: the coordinator answers before it writes them."""
    with BlockingCluster(bootstrap) as cluster:
        places = {(topic, index): LATEST for index in cluster.metadata([topic])[topic].partitions}
        until(
            lambda: cluster.list_offsets(places) == cluster.list_offsets(places, "read_uncommitted"),
            "a transaction stays open",
        )


def make(bootstrap, topic, partitions, **configs):
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(30)
