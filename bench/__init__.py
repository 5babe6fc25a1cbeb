"""Figures of this machine: the log beside what the machine itself can do."""
