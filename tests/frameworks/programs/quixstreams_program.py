"""Quix Streams: counts the records of `in` exactly once, by the last character of their keys, and writes each count to
`totals`. The new key makes it send the records through a repartition topic, and the counts are in a store with a changelog
topic. Arguments: broker, folder for the store.
"""

import sys

from quixstreams import Application

bootstrap, state_dir = sys.argv[1:]
application = Application(
    bootstrap,
    consumer_group="totals",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    state_dir=state_dir,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
    producer_extra_config={"transaction.timeout.ms": 6000},
    consumer_poll_timeout=0.1,
    loglevel="INFO",
)


def count(_value, state):
    total = state.get("total", 0) + 1
    state.set("total", total)
    return total


records = application.dataframe(application.topic("in", value_deserializer="str"))
records = records.group_by(
    lambda value: f"group-{value[-1]}", name="by-group", value_serializer="str", value_deserializer="str"
)
records.apply(count, stateful=True).to_topic(application.topic("totals", value_serializer="json"))
application.run()
