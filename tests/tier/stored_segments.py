"""A log whose sealed segments are only in the object store, and log files that take the place of the right ones."""

from stablelog.batch.header import headers_in
from stablelog.tier.names import LOG
from tests.log.timeline import NOW_MS
from tests.tier.tiered_log import PARTITION, TieredLog

LOCAL_NOTHING = {"local_retention_ms": 0, "local_retention_bytes": 0}
SEGMENT_COUNT, BATCH_COUNT = 3, 6


def written(chunk_size, *, aborting=(), now_ms=NOW_MS, **config):
    """A log of sealed segments of equal size, all of them only in the store."""
    tiered = TieredLog(chunk_size=chunk_size, index_interval_bytes=0, **LOCAL_NOTHING, **config)
    tiered.now_ms = now_ms
    for number in range(SEGMENT_COUNT):
        for _ in range(BATCH_COUNT - 1):
            tiered.one("P1")
        tiered.one("P1a" if number in aborting else "P1c")
        tiered.partition.roll(now_ms)
        tiered.sync()
    tiered.copy()
    tiered.now_ms += 1
    assert tiered.drop_local() == SEGMENT_COUNT
    return tiered


def keys(tiered, kind=LOG):
    rows = tiered.remote.manifest.segments
    return [PARTITION.segment_key(one.base_offset, one.segment_id, kind) for one in rows]


def of_another_segment(tiered, _content):
    return tiered.objects[keys(tiered)[2]]


def of_another_topic(tiered, _content):
    other = written(tiered.chunk_size, now_ms=NOW_MS + 7)
    return other.objects[keys(other)[1]]


def shifted(_tiered, content):
    """The base offset of one batch is greater by one. The CRC of a batch does not cover this field."""
    at = [at for at, _ in headers_in(content)][-2]
    base_offset = int.from_bytes(content[at : at + 8]) + 1
    return content[:at] + base_offset.to_bytes(8) + content[at + 8 :]


def truncated(_tiered, content):
    return content[:-1]


def with_batches_exchanged(_tiered, content):
    (first, _), (second, _), (third, _) = list(headers_in(content))[:3]
    return content[:first] + content[second:third] + content[first:second] + content[third:]


FAULTS = [of_another_segment, of_another_topic, shifted, truncated, with_batches_exchanged]
