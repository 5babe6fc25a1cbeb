"""The producer state of a partition, in memory and in snapshots: sequence numbers, producer epochs and open
transactions.
"""
