"""Tiered storage: the objects that a partition has in an object store, and the rules that let only one broker at a time
change them.

This package decides; `stablelog.broker.tiering` carries out what it decides in a broker. Only `prefix` sends requests
to an object store, and only requests that read. The generators of `chain` yield requests, and the caller sends the
answers into them. A read of `remote_log` raises NotLoadedError if the bytes of the read are not in memory. The caller
then loads these bytes and reads again.

| module | content |
|---|---|
| `names` | the keys of the objects |
| `records` | Kafka's records of remote segments |
| `manifest` | the list of the segments that a partition has in the store, and searches in it |
| `chain` | the chain of a partition's manifests |
| `prefix` | reads the cluster id, the partitions and their manifests from a store |
| `pins` | objects by which a reader keeps segments from deletion |
| `index_object` | the object with all files of a segment except its log file |
| `copy_rules` | which segments are copied, and how a manifest describes them |
| `cut_points` | the positions at which a log file can be divided, and the checksums of the parts |
| `manifest_parts` | divides the list of a long manifest into objects of their own |
| `deletion` | which objects are deleted, and when |
| `history` | whether the last manifest in the store is of the same history as the local log |
| `events` | which events of remote segments `__remote_log_metadata` lacks |
| `restored_files` | the files of a partition after a restore from the store |
| `segment_bytes` | the loaded bytes of remote segments |
| `remote_log` | reads from the remote tier |
| `local_state` | the files in which a partition's directory records its remote tier |

A *manifest* lists the segments that a partition has in the object store. The manifests of a partition form a *chain*:
each change creates a new object, and no object is overwritten. A *broker epoch* is a number that each start of a broker
takes; a later start takes a greater number.

Sources: KIP-405, KIP-1058.
"""
