"""Copies of segments without aborted data: a read-committed consumer gets the same records as of the plain log."""

from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from stablelog.log.partition import Isolation
from stablelog.log.verify import verify_directory
from tests.log.timeline import NOW_MS, Log
from tests.scale import examples
from tests.tier.tiered_log import TieredLog

LOCAL_NOTHING = {"local_retention_ms": 0, "local_retention_bytes": 0}
RECORDS = ("P1", "P1", "P2", "P2", "P3", "-")
ENDS = ("P1c", "P1a", "P1a", "P2c", "P2a", "P2a", "P3c", "P3a")
TIERS = ("copy", "copy", "drop", "clean", "keep aborts", "drop aborts")
WORDS = st.lists(
    st.one_of(*map(st.sampled_from, (RECORDS, RECORDS, ENDS, ("roll",), TIERS))), min_size=30, max_size=60
)


def of_java(batches, aborted):
    """The batches that the consumer of Apache Kafka delivers, of one response."""
    coming = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
    dropping = set()
    for header, batch in batches:
        if header.has_producer:
            while coming and coming[-1].first_offset <= header.last_offset:
                dropping.add(coming.pop().producer_id)
            if header.is_control:
                if read_marker(batch).type is MarkerType.ABORT:
                    dropping.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in dropping:
                continue
        yield header, batch


def of_librdkafka(batches, aborted):
    """The batches that librdkafka delivers, of one response: each abort marker removes the first transaction of its
    producer from the list, if that transaction has begun.
    """
    first_offsets = defaultdict(deque)
    for txn in sorted(aborted, key=lambda txn: txn.first_offset):
        first_offsets[txn.producer_id].append(txn.first_offset)
    for header, batch in batches:
        waiting = first_offsets[header.producer_id]
        if header.is_control:
            is_abort = read_marker(batch).type is MarkerType.ABORT
            if is_abort and waiting and waiting[0] <= header.base_offset:
                waiting.popleft()
        elif not (header.is_transactional and waiting and header.base_offset >= waiting[0]):
            yield header, batch


def batches_of(found):
    content = b"".join(found.buffers)
    return [(header, content[at : at + header.size]) for at, header in headers_in(content)]


def consumed(read, partition, start, size_max, client):
    """The offsets of the records that a read-committed consumer gets from `start` on."""
    seen, offset = [], start
    while offset < partition.last_stable_offset:
        found = read(offset, size_max, Isolation.READ_COMMITTED)
        assert found.end_offset > offset, "a fetch does not go on"
        for _, batch in client(batches_of(found), found.aborted):
            seen += [record.offset for record in decode_records(batch) if record.offset >= offset]
        offset = found.end_offset
    return seen


class History:
    """The same records in a tiered log whose copies lack aborted data, and in a plain log."""

    def __init__(self, words=(), **config):
        self.tiered = TieredLog(drops_aborted_copies=True, **LOCAL_NOTHING, **config)
        self.plain = Log()
        for word in words:
            self.step(word)

    def step(self, word):
        if word == "copy":
            self.tiered.copy()
        elif word == "drop":
            self.tiered.drop_local()
        elif word == "clean":
            self.clean()
        elif word.endswith("aborts"):
            tiered = self.tiered
            config = {**vars_of(tiered.config), "drops_aborted_copies": word == "drop aborts"}
            tiered.partition.config = type(tiered.config)(**config)
        else:
            for log in (self.tiered, self.plain):
                log.partition.roll(NOW_MS) if word == "roll" else log.one(word)
                log.sync()
                log.now_ms += 1

    def clean(self):
        """Remove aborted data from the local segments that are in the store."""
        tiered = self.tiered
        config = {**vars_of(tiered.partition.config), "drops_aborted": True}
        tiered.partition.config = type(tiered.config)(**config)
        work = tiered.partition.compaction.begin_pass(tiered.now_ms, key_count_max=1)
        if work is None:
            return
        for cleaned in work.steps():
            if cleaned is not None:
                assert tiered.partition.compaction.put_in_place(cleaned)
        tiered.partition.compaction.end_pass(work)
        assert list(verify_directory(tiered.disk, tiered.directory)) == []

    def check(self, size_max, clients=(of_java, of_librdkafka)):
        wanted = consumed(self.plain.partition.read, self.plain.partition, 0, 1 << 20, of_java)
        for client in clients:
            for start in range(self.plain.partition.last_stable_offset + 1):
                seen = consumed(self.tiered.read, self.tiered.partition, start, size_max, client)
                assert seen == [offset for offset in wanted if offset >= start]


def vars_of(config):
    return {name: getattr(config, name) for name in config.__slots__}


@settings(max_examples=examples(20), deadline=None)
@given(WORDS, st.sampled_from([1, 200, 1 << 20]))
def test_a_read_committed_consumer_gets_the_same_records_from_every_offset(words, size_max):
    History([*words, "roll", "copy", "drop"]).check(size_max)
