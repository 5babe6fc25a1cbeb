"""Tiered storage: what a partition has in an object store, and the rules by which one broker at a time changes it.

This room decides. It names objects (`names`), reads and writes Kafka's records of remote segments (`records`) and keeps
the chain of a partition's manifests (`chain`). It makes no request itself: `chain` yields requests and takes answers.

A *manifest* is the truth about a partition's remote segments. Manifests form a *chain* of objects that are only ever
created. A *broker epoch* is a number that one start of one broker has; a later start has a greater one.

Sources: KIP-405, KIP-1058.
"""
