"""Durability of writes: the group flush, the coordinators' journals, and the reserve of disk space."""
