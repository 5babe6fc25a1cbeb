"""The files of a data directory as a whole: its lock, the list of topics, checkpoints, dynamic settings, and files of
Kafka.
"""
