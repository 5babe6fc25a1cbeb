"""Tools that work directly on the files of a running or stopped broker, not through its protocol: inspect, verify,
repair, restore.
"""
