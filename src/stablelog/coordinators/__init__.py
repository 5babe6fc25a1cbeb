"""Coordinators of transactions, joint commits and consumer groups: they take events and return decisions, without input
or output.
"""
