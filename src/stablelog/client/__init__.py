"""The native client: `stablelog.connect` and `stablelog.aio.connect`, and the blocking Kafka client on which Spark's source
and sink and the commands stand.
"""
