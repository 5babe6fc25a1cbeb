"""Tiered storage in the broker: copies sealed segments to the object store, and reads them from there.

| module | what it does |
|---|---|
| `tiering` | connects the parts with the broker |
| `remote_tiers` | gives each partition its remote tier |
| `copies` | passes over all partitions, and follows their settings |
| `remote_storage` | the object store of this cluster: takes a broker epoch, and runs the steps of manifest chains |
| `copier` | copies segments and publishes manifests |
| `plans` | what a copier copies: the segments of a topic, or of a coordinator's log |
| `coordinator_logs` | copies the logs of the coordinators in rounds |
| `metadata_topic` | appends the events of remote segments to `__remote_log_metadata` |
| `throttle` | limits the rate of the copies |
| `remote_reads` | loads byte ranges of objects that reads need |
| `range_cache` | keeps loaded ranges in memory and on the local disk, both bounded |

The rules are in `stablelog.tier`, and so are the files in which a partition's directory records its remote tier.
Requests to the store run in threads; the state of a partition changes only in the event loop.
"""
