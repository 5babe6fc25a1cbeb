"""Durability of writes: the group flush (one fsync for many writes), the journals (the logs of the coordinators, with
what waits for them), and the disk reserve (space for the case that the disk is full).
"""
