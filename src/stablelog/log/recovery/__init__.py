"""Recovery: the states in which a crash may leave a partition, and how the next open of the partition handles each.

Files that are written only after a sync record how much of the log was synced when the broker stopped: the summary of a
sealed segment (its sizes and checksums), the `.producers` snapshots, and the broker's
`recovery-point-offset-checkpoint`, which is at most a second old. All bytes up to the *synced end*, the greatest offset
that one of these files records, must be there unchanged. If the last broker closed the log, this holds for all bytes.
Bytes after the synced end may be lost, torn, or there with holes.

In this package, to *cut* the log is to truncate it at damage, and to keep the removed bytes in the file <base>.cut.

    what recovery finds                             what recovery does
    ----------------------------------------------  ---------------------------------------------------------
    a torn or damaged batch after the synced end    it cuts the log there, because no record from there on was
                                                    acknowledged
    the same damage, but the recovery point is      DamageError: a crash usually leaves no whole batches after a
    unknown and whole batches follow the damage     torn one, so this damage has another cause
    a damaged batch before the synced end; a        DamageError: no log file is changed, the partition stays offline
    missing segment; a log that ends before the
    synced end or before its own start
    a segment without a valid summary, or whose     it replays (reads) this and all later segments, batch by batch,
    file sizes or transaction index do not match    and rebuilds their indexes and summaries
    its summary
    a segment that is replayed, and whose batch     DamageError, as above: the summary has a CRC of all batch headers,
    headers do not match its summary                because the CRC of a batch does not cover its base offset and
                                                    leader epoch
    an abort marker without its index entry         the same as for a segment without a valid summary: the entries
                                                    are rebuilt from the markers
    an index entry without its abort marker         the same as for an abort marker without its index entry
    a damaged snapshot                              it uses an older snapshot
    no snapshot at the end of a sealed segment      it writes the snapshot together with the segment's summary
    a snapshot of an offset past the log's end      it removes the snapshot: other records will get this offset
    a snapshot within a segment that is replayed    it removes the snapshot, because no replay can begin at it
    from an earlier offset, and that does not
    describe the rebuilt indexes
    a snapshot at an offset within the last         it begins the replay at this offset, if the segment's indexes
    segment                                         have all entries up to it
    no snapshot                                     it replays the log from its start for the producer state
    leader epochs missing or damaged                it reads them from the headers of the batches
    segments before the log start offset            a crash has interrupted their deletion: it removes them if a later
                                                    snapshot has the producer state; if not, it replays them
    a gap between two segments, without a snapshot  the records in the gap are lost and were not acknowledged, so
    at the beginning of the second one              those after it were not either: it cuts the log at the gap
    such a gap, with a snapshot at the beginning    it keeps the log: Kafka's compaction has left the gap
    of the second segment
    segments after the place of a cut               it removes them, too
    index files of a segment without a log file     it removes them
    files .deleted, .cleaned, .swap, .tmp           it finishes or undoes the interrupted operation: see
                                                    `segments.interrupted`

`trust` decides which parts of the log are not read, and where replay begins. `plan` checks that no file is missing.
`replay` reads the log. `tail` decides whether the log may be cut at damage, and keeps the removed bytes. `examine` and
`repair` are for a log that a start of the broker refuses.
"""

from stablelog.log.recovery.plan import NEVER, Known
from stablelog.log.recovery.replay import Recovered, recover
from stablelog.log.recovery.tail import RemovedTail

__all__ = ["NEVER", "RemovedTail", "Known", "Recovered", "recover"]
