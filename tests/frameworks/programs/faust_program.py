"""Faust: counts the records of `in` in transactions, by key, and writes each count to `totals`. The counts are in a table with a
changelog topic. Arguments: broker, folder for its data, port of its web server.

Faust has one transaction for each partition number, which contains what is read from and written to partitions of this
number.
"""

import sys

import faust

bootstrap, data, port = sys.argv[1:]
app = faust.App(
    "counting",
    broker=f"kafka://{bootstrap}",
    store="memory://",
    processing_guarantee="exactly_once",
    datadir=data,
    web_port=int(port),
    topic_partitions=2,
    topic_replication_factor=1,
    topic_disable_leader=True,
    broker_commit_interval=0.2,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    consumer_auto_offset_reset="earliest",
    key_serializer="raw",
    value_serializer="raw",
)
records = app.topic("in")
totals = app.topic("totals")
counts = app.Table("counts", default=int, partitions=2, key_type=str, value_type=int)


@app.agent(records)
async def count(stream):
    async for event in stream.events():
        key = event.key.decode()
        counts[key] += 1
        await totals.send(key=event.key, value=b"%d" % counts[key], partition=event.message.partition)


@app.agent(totals)
async def ignore(stream):
    """Faust writes to a topic in a transaction only if it also reads the topic."""
    async for _ in stream:
        pass


sys.argv[1:] = ["worker", "--loglevel=info"]  # Faust reads the command line itself
app.main()
