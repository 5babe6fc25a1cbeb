"""Coordinators of transactions, joint commits and consumer groups. Each method takes an event and returns a decision;
the broker carries the decision out. The coordinators read and write no log and no socket.
"""
