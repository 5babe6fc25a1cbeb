"""The files of a data directory as a whole: the list of topics, checkpoints, `meta.properties`, dynamic settings, ACLs,
users and quotas, and the files of Apache Kafka from which a directory is taken over.

The broker, `ops` and Spark read them with the same functions. `stablelog.log` has the files of one partition.
"""
