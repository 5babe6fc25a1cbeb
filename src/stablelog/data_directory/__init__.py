"""The files of a whole data directory: the list of topics, checkpoints, `meta.properties`, dynamic settings, ACLs,
users and quotas; and Apache Kafka's files, from which a directory can be taken over.

The broker, `ops` and Spark read them with the same functions. The code for the files inside a partition's directory is
in `stablelog.log`.
"""
