"""Tiered storage: what a partition has in an object store, and the rules by which one broker at a time changes it.

This package names the objects (`names`), reads and writes Kafka's records of remote segments (`records`) and keeps the
chain of a partition's manifests (`chain`). The package sends no request to the object store: the generators of `chain`
yield requests, and the caller sends the answers into them.

A *manifest* lists the segments that a partition has in the object store. The manifests of a partition form a *chain*:
each change creates a new object, and no object is overwritten. A *broker epoch* is a number that each start of a broker
takes; a later start takes a greater number.

Sources: KIP-405, KIP-1058.
"""
