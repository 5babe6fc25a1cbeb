"""Coordinators of transactions, joint commits and consumer groups: events in, decisions out, no input or output."""
