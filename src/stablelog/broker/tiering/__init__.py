"""Tiered storage in the broker: copies sealed segments to the object store, and reads them from there.

This package carries out what `stablelog.tier` decides: it runs the threads, the timers and the requests to the store. A
*manifest* is the list of a partition's segments in the store. Each change creates a new one, and the manifests of a
partition form a *chain*. A *broker epoch* is a number that each start of a broker takes in the store.

| module | what it does | decided by |
|---|---|---|
| `tiering` | connects the parts with the broker | |
| `remote_tiers` | creates the remote tier of each partition | `tier.remote_log` |
| `copy_passes` | passes over all partitions at intervals, and follows their settings | |
| `partition_copier` | copies the segments of partitions, publishes their manifests, deletes old objects | `tier.copy_rules`, `tier.manifest`, `tier.deletion` |
| `published_state` | the state of a partition and its topic that a manifest publishes | `tier.published` |
| `copy_plans` | says which segments a copier copies: of a topic, or of a coordinator's log | `tier.copy_rules` |
| `segment_uploads` | uploads the objects of one segment | `tier.cut_points`, `tier.index_object` |
| `copy_throttle` | limits the rate of the uploads | |
| `coordinator_logs` | copies the logs of the coordinators in rounds | |
| `chain_takeover` | takes over the chain of a partition's manifests | `tier.chain`, `tier.history` |
| `remote_storage` | the object store of this cluster: takes a broker epoch, and runs the generators of `tier.chain` | `tier.chain` |
| `deleted_partitions` | deletes the objects of deleted topics | `tier.deletion` |
| `metadata_topic` | appends the events of remote segments to `__remote_log_metadata` | `tier.events` |
| `remote_reads` | loads byte ranges of objects that reads need | `tier.segment_bytes` |
| `range_cache` | keeps loaded ranges in memory and on the local disk, both bounded | |

Requests to the store run in threads; the state of a partition changes only in the event loop.
"""
