"""Durability of writes: the group flush, the coordinators' journals, and the disk reserve."""
