"""Recovery: what a crash may leave of a partition, and what is done about it.

What was synced when the broker stopped is recorded by files that are written only after the sync: the summary of a
segment, our snapshots (`.producers`), and the broker's `recovery-point-offset-checkpoint`, which is at most a second
behind. Everything up to the greatest offset that one of them names must be there as it was, and everything if the
last owner closed the log. What lies behind may be lost, torn, or there with holes.

    what is found                                   what is done
    ----------------------------------------------  ---------------------------------------------------------
    a torn or damaged batch behind the synced end   the log is cut there, because nothing from there on was
                                                    acknowledged; the bytes are kept as <base>.cut
    the same where no recovery point is known, and  Corrupt: a crash leaves no whole batches behind damage that
    whole batches follow                            is not its own, as far as can be told
    a damaged batch before the synced end, a        Corrupt: no log file is changed, the partition stays closed
    segment that is gone, the first one included,
    an end before it, a log start past the end
    a segment without a good summary, or whose      it and all later ones are replayed, batch by batch; their
    files are not those of its summary              indexes and summaries are rebuilt
    a segment that is replayed, whose batch         Corrupt, as above: no CRC of a batch covers its base offset and its
    headers are not those of its summary            leader epoch, but the CRC in the summary does
    a marker without its index entry                the same: entries come from markers
    an index entry without its marker               the same
    a snapshot that is damaged                      an older one is used
    no snapshot behind a sealed segment             it is made with the segment's summary
    a snapshot of an offset past the log's end      it is removed: the offset will be that of another record
    a snapshot in the middle of the last segment    replay begins there, if the indexes that it describes are whole
    no snapshot                                     producer state is replayed from the log's start
    leader epochs missing or damaged                they are read from the headers of the batches
    segments before the log's start                 they were being deleted: they are removed if there is a snapshot
                                                    behind them; if not, they are replayed for it
    a gap between two segments, the one behind it   what was in it is gone and was not acknowledged, hence
    without a snapshot at its beginning             nothing behind it was: it is cut
    such a gap, with a snapshot                     compaction has left it (Kafka's; ours leaves none)
    segments behind a cut                           they are cut: their beginning is gone
    indexes of a segment that has no log file       they are removed
    files .deleted, .cleaned, .swap, .tmp           what a crash interrupted: see `interrupted`

`trust` decides by the small files what is not read, and where replay begins. `plan` checks that no file is missing.
`replay` reads the log. `tail` decides about damage and keeps what is cut. `examine` and `repair` are for a log that a
start refuses.
"""

from stablelog.log.recovery.plan import NEVER, Known
from stablelog.log.recovery.replay import Recovered, recover
from stablelog.log.recovery.tail import Cut

__all__ = ["NEVER", "Cut", "Known", "Recovered", "recover"]
