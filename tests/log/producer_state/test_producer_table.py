"""Packed producers: against a model of plain objects, in size, in time, and on disk."""

import gc
import itertools
import random
import sys
import tracemalloc

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.batch.header import BatchHeader, read_header
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, RefusedError
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state import producer_table
from stablelog.log.producer_state import producers as producers_module
from stablelog.log.producer_state.producer import BATCHES_KEPT, KeptBatch, ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import RECENT_MAX, Producers
from stablelog.log.producer_state.snapshots import (
    decode_producers,
    encode_producers,
)
from tests.log.known_producers import SEQUENCE_END, KnownProducers
from tests.log.timeline import NOW_MS, Log

PROGRESS = Summary(0, 9)
IDLE_SIZE_MAX = 200  # bytes that an idle producer may take
CALLS_MAX = 40_000  # on the event loop, at once: about 5 ms

TEMPLATE = read_header(
    encode_batch([Record(0, 0, b"k", b"v")], base_offset=0, producer_id=1, producer_epoch=0, base_sequence=0)
)


def header(producer_id, epoch, sequence, count, *, transactional, timestamp_ms) -> BatchHeader:
    return TEMPLATE._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        record_count=count,
        max_timestamp=timestamp_ms,
        attributes=0x10 if transactional else 0,
    )


def rows(producers):
    return [
        (
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.used_ms,
            one.last_timestamp_ms,
            [
                (b.first_sequence, b.last_sequence, b.first_offset, b.last_offset, b.timestamp_ms)
                for b in one.batches
            ],
            (one.txn_first_offset, one.txn_started_ms, one.txn_record_count),
        )
        for one in producers
    ]


def encoded(table):
    return b"".join(encode_producers(table, PROGRESS))


def code_of(producers, given):
    """The code with which a batch is refused; None if it is taken."""
    try:
        assert producers.check_batch(given) is None
    except RefusedError as refused:
        return refused.code
    return None


class History:
    """Random operations on producer state and on the model, which have to agree at each."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.real, self.model = Producers(), KnownProducers()
        self.offset, self.now_ms = 0, NOW_MS
        self.ids = [
            self.chance.choice((n, n, 10**6 - n, 2**40 + n)) for n in range(self.chance.choice((3, 40, 200)))
        ]
        self.frozen = []

    def append(self):
        chance, one = self.chance, self.chance.choice(self.ids)
        known = self.model.all.get(one)
        epoch = min(max(0 if known is None else known.epoch, 0) + chance.choice((0,) * 8 + (1, 30000)), 32767)
        count = chance.choice((1, 1, 3, 1000))
        transactional = chance.random() < 0.5 if known is None or known.txn_first < 0 else True
        sequence = self.model.next_sequence(one, epoch)
        if sequence is None:
            sequence = chance.choice((0, 7, SEQUENCE_END - 1, SEQUENCE_END - 2))
        if known is not None and known.batches and chance.random() < 0.3:  # a retry, or something like it
            batch = chance.choice(known.batches)
            sequence = batch.first_sequence
            count = (batch.last_sequence - sequence) % SEQUENCE_END + chance.choice((1, 1, 1, 2))
            epoch = chance.choice((known.epoch, known.epoch, known.epoch, max(known.epoch - 1, 0)))
            transactional = chance.choice((transactional, known.txn_first >= 0))
        timestamp_ms = self.now_ms - chance.choice((0, 5000))
        given = header(one, epoch, sequence, count, transactional=transactional, timestamp_ms=timestamp_ms)
        wanted = self.model.repeated(one, epoch, sequence, count, transactional=transactional)
        if wanted is not None:
            assert self.real.check_batch(given).first_offset == wanted
            return
        following = self.model.next_sequence(one, epoch)
        refused = None
        if known is not None and epoch < known.epoch:
            refused = ErrorCode.invalid_producer_epoch
        elif (following is not None and sequence != following) or (
            (least := self.model.waits_for(one, epoch)) is not None and sequence > least
        ):
            refused = ErrorCode.out_of_order_sequence_number
        elif known is not None and known.txn_first >= 0 and not transactional:
            refused = ErrorCode.invalid_txn_state
        assert code_of(self.real, given) == refused
        if refused is not None:
            return
        if transactional and chance.random() < (0.1 if known else 0.4):  # verification refuses it
            self.real.remember_refused(given)
            self.model.remember_refused(one, epoch, sequence)
            return
        self.real.apply_batch(given._replace(base_offset=self.offset), None, self.now_ms)
        self.model.batch(
            one, epoch, sequence, count, self.offset,
            transactional=transactional, timestamp_ms=timestamp_ms, now_ms=self.now_ms,
        )  # fmt: skip
        self.offset += count

    def end(self):
        one = self.chance.choice(self.ids)
        known = self.model.all.get(one)
        epoch = min((0 if known is None else known.epoch) + self.chance.choice((0, 1)), 32767)
        coordinator_epoch = self.chance.choice((0, 3))
        marker = Marker(self.chance.choice(list(MarkerType)), coordinator_epoch)
        others = [k.txn_first for i, k in self.model.all.items() if k.txn_first >= 0 and i != one]
        given = header(one, epoch, -1, 1, transactional=True, timestamp_ms=self.now_ms)
        txn = self.real.apply_batch(given._replace(base_offset=self.offset), marker, self.now_ms)
        ended = self.model.marker(one, epoch, coordinator_epoch, timestamp_ms=self.now_ms, now_ms=self.now_ms)
        assert (None if txn is None else (txn.first_offset, txn.record_count)) == ended
        if txn is not None:
            if txn.aborted is not None:
                assert txn.aborted.stable_offset == min(others, default=self.offset + 1)
            if self.chance.random() < 0.3:
                self.real.packed_copy()
            self.real.end_transaction(txn)
        self.offset += 1
        if self.chance.random() < 0.5:
            self.real.move_high_watermark(self.offset)

    def let_time_pass(self):
        self.now_ms += self.chance.choice((1, 1000, 100_000))

    def expire(self):
        before_ms = self.now_ms - self.chance.choice((0, 2000, 90_000))
        assert sum(self.real.remove_unused(before_ms, self.now_ms - 1000)) == self.model.expire(before_ms)

    def freeze(self):
        self.frozen.append((self.real.packed_copy(), self.model.copy()))

    def restart(self):
        table, progress = decode_producers(encoded(self.real.packed_copy()))
        assert progress == PROGRESS
        self.now_ms -= self.chance.choice((0, 0, 10**6))  # the machine's clock may be set back
        self.real = Producers.from_table(table, self.now_ms)
        self.model.refused.clear()
        self.model.limit_times(self.now_ms)

    def compare(self):
        assert rows(self.real) == self.model.rows()
        assert len(self.real) == len(self.model.all)
        opened = sorted(
            (known.txn_first, one) for one, known in self.model.all.items() if known.txn_first >= 0
        )
        assert [(one.txn_first_offset, one.producer_id) for one in self.real.open_producers()] == opened
        assert self.real.first_open_offset(-1) == (opened[0][0] if opened else -1)
        for limit in (2**62, *(one - 1 for one in self.chance.sample(self.ids, 3))):
            greatest = max((one for one in self.model.all if one <= limit), default=-1)
            assert self.real.greatest_id(limit) == greatest
        for one in self.chance.sample(self.ids, min(3, len(self.ids))):
            known = self.model.all.get(one)
            open_records = known.txn_records if known is not None and known.txn_first >= 0 else None
            txn = self.real.open_transaction(one)
            assert (None if txn is None else txn.txn_record_count) == open_records


@pytest.mark.sampled(20)
@pytest.mark.parametrize("recent_max", [1, 5, 500])
@pytest.mark.parametrize("seed", range(20))
def test_packed_producers_are_those_of_the_model(seed, recent_max, monkeypatch):
    """Also with few objects, so that producers are packed and unpacked all the time."""
    monkeypatch.setattr(producers_module, "RECENT_MAX", recent_max)
    monkeypatch.setattr(producers_module, "EXPIRED_BLOCKS_MAX", 2)
    history = History(seed)
    steps = [history.append] * 20 + [history.end] * 6 + [history.let_time_pass] * 3
    steps += [history.expire, history.freeze, history.restart, history.compare]
    for _ in range(1000):
        history.chance.choice(steps)()
    history.compare()
    for table, model in history.frozen:
        assert rows(table) == model.rows(), "a copy stays as it was"
        again, _ = decode_producers(encoded(table))
        assert rows(again) == model.rows()
        assert encoded(again) == encoded(table)


def of_batches(producer_id, count):
    batches = [
        KeptBatch(10**6 + producer_id % 10**6 + n, 10**10 + producer_id * 7 + n, 0, NOW_MS + n)
        for n in range(count)
    ]
    return ProducerEntry(producer_id, 3, 0, batches, NOW_MS + producer_id, NOW_MS + count)


def many(count, batch_count=BATCHES_KEPT):
    return ProducerTable.from_producers(of_batches(one, batch_count) for one in range(count))


# By day each order of ids, and each number of kept batches, once; by night all combinations.
ORDERS_AND_COUNTS_BY_DAY = {("falling", 0), ("rising", 1), ("shuffled", BATCHES_KEPT)}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("given", "batch_count"),
    [
        pytest.param(*one, marks=() if one in ORDERS_AND_COUNTS_BY_DAY else pytest.mark.night)
        for one in itertools.product(("rising", "falling", "shuffled"), (0, 1, BATCHES_KEPT))
    ],
)
def test_an_idle_producer_takes_at_most_200_bytes(given, batch_count):
    """In whatever order ids come, and however many batches are kept."""
    ids = list(range(10_000))
    if given == "shuffled":
        random.Random(1).shuffle(ids)
    elif given == "falling":
        ids.reverse()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = ProducerTable()
        for one in ids:
            table.put(of_batches(one, batch_count))
        producers = Producers.from_table(table, 2**60)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(producers) == len(ids)
    assert size / len(ids) <= IDLE_SIZE_MAX


@pytest.mark.extended
def test_producers_that_have_written_are_packed_when_they_are_idle():
    producers = Producers()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for one in range(2_500):
            for sequence in range(6):
                given = header(one, 0, sequence, 1, transactional=False, timestamp_ms=NOW_MS)
                producers.apply_batch(given._replace(base_offset=6 * one + sequence), None, NOW_MS + one)
        assert sum(producers.remove_unused(0, NOW_MS + 10**6)) == 0
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size / 2_500 <= IDLE_SIZE_MAX


def test_producers_that_have_written_within_a_minute_are_not_packed(monkeypatch):
    """A producer at work is not packed and unpacked with each batch."""
    log = Log(producer_id_expiration_ms=10**9)
    begun = log.now_ms
    for producer_id in (1, 2, 3):
        log.append(producer_id, transactional=False)
        log.now_ms += 1
    unpacked, get = set(), ProducerTable.get
    monkeypatch.setattr(ProducerTable, "get", lambda table, one: unpacked.add(one) or get(table, one))
    for later_ms, left in ((0, [1, 2, 3]), (60_000, [1, 2, 3]), (60_001, [2, 3]), (60_003, [])):
        assert sum(log.partition.deletion.expire_producers(begun + later_ms)) == 0
        unpacked.clear()
        for one in (1, 2, 3):
            given = header(one, 0, 1, 1, transactional=False, timestamp_ms=log.now_ms)
            log.partition.log.producers.check_epoch(given)
        assert sorted({1, 2, 3} - unpacked) == left
    assert len(list(log.partition.log.producers)) == 3


def calls_of(work):
    """How many functions are called, those written in C included."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.extended
def test_what_the_event_loop_does_does_not_grow_with_the_producers():
    """A snapshot, the view of compaction, and each step of expiry; the rest is done in threads, or in steps."""

    def counts(producer_count):
        producers = Producers.from_table(many(producer_count), 2**60)

        def of(work):
            for one in range(RECENT_MAX):
                given = header(one * 13, 3, 0, 1, transactional=False, timestamp_ms=NOW_MS)
                producers.apply_batch(given._replace(base_offset=10**11), None, NOW_MS + 10**7)
            return calls_of(work)

        yield of(lambda: len(encode_producers(producers.packed_copy(), PROGRESS)))
        yield of(producers.packed_copy)
        yield of(lambda: next(iter(producers)))
        expiry = producers.remove_unused(NOW_MS + 10**9, NOW_MS)
        yield of(lambda: next(expiry))
        yield of(lambda: next(expiry))

    for few, many_more in zip(counts(10_000), counts(100_000), strict=True):
        assert many_more <= few * 1.1
        assert many_more <= CALLS_MAX


def test_producers_whose_ids_rise_fill_their_blocks():
    """As they come from a broker that gives out ids."""
    for count in (1, 31, 32, 33, 64, 65, 200):
        table = ProducerTable()
        for one in many(count):
            table.put(one)
        assert [block[0] for block in table.blocks()] == [32] * (count // 32) + [count % 32] * bool(
            count % 32
        )
        assert [one.producer_id for one in table] == [one.producer_id for one in many(count)]


def with_crc(content):
    return content[:2] + crc32c(content[6:]).to_bytes(4, "big") + content[6:]


def test_a_count_that_is_not_that_of_the_blocks_is_damage():
    content = encoded(many(40))
    for count in (0, 39, 41):
        with pytest.raises(DamageError, match="40 producers"):
            decode_producers(with_crc(content[:6] + count.to_bytes(8, "big") + content[14:]))


@pytest.mark.parametrize("seed", range(300))
def test_blocks_that_no_release_has_written_are_damage(seed):
    """Also where the CRC holds: nothing else than DamageError is raised, and what is read has producers in order."""
    chance = random.Random(seed)
    changed = bytearray(encoded(many(chance.choice((1, 40, 70)), chance.choice((0, 1, 5)))))
    for _ in range(chance.choice((1, 2, 8))):
        changed[chance.randrange(132, len(changed))] = chance.choice((0, 1, 8, 31, 32, 255))
    if chance.random() < 0.3:
        del changed[chance.randrange(132, len(changed)) :]
    try:
        table, _ = decode_producers(with_crc(bytes(changed)))
    except DamageError:
        return
    ids = [one.producer_id for one in table]
    assert ids == sorted(set(ids))
    assert len(ids) == len(table)


@pytest.mark.parametrize("count", [0, 33, 255])
def test_a_block_holds_1_to_32_producers(count):
    assert len(ProducerTable.from_blocks([])) == 0
    block = producers_of(32).blocks()[0]
    assert len(ProducerTable.from_blocks([block[:7], block[7:]])) == 32
    with pytest.raises(DamageError):
        ProducerTable.from_blocks([bytes([count]) + block[1:]])


@pytest.mark.parametrize("kind", range(256))
def test_a_block_has_producers_of_up_to_5_batches_with_and_without_a_transaction(kind):
    entry = producer_table.SNAPSHOT_ENTRY.pack(7, 0, -1, -1, 0, -1, -1, -1)
    count = kind & ~8
    rest_size = (8 + 24 * (count - 1)) * bool(count) + 16 * bool(kind & 8)
    if count > 5:
        with pytest.raises(DamageError, match="of an unknown kind"):
            ProducerTable.from_blocks([b"\1" + entry + bytes(8) + bytes([kind]) + bytes(rest_size)])
        return
    for size in (rest_size - 1, rest_size, rest_size + 1):
        block = b"\1" + entry + bytes(8) + bytes([kind]) + bytes(max(size, 0))
        if size == rest_size:
            (producer,) = ProducerTable.from_blocks([block])
            assert (producer.producer_id, len(producer.batches)) == (7, count)
        elif size >= 0:
            with pytest.raises(DamageError):
                ProducerTable.from_blocks([block])


def test_the_ids_of_blocks_rise_from_each_to_the_next():
    def block(*ids):
        (found,) = ProducerTable.from_producers(ProducerEntry(one, 0) for one in ids).blocks()
        return found

    assert len(ProducerTable.from_blocks([block(1, 3), block(4), block(9)])) == 4
    for blocks in ([block(1, 3), block(3)], [block(1, 3), block(2)], [block(3), block(3)]):
        with pytest.raises(DamageError, match="do not ascend after id 3"):
            ProducerTable.from_blocks(blocks)


@pytest.mark.parametrize("seed", range(6))
def test_a_table_of_producers_in_any_order_is_a_dict_that_is_sorted(seed, monkeypatch):
    monkeypatch.setattr(producer_table, "BLOCK_COUNT_MAX", 4)
    chance = random.Random(seed)

    def producer(one):
        used_ms, first = chance.randrange(100), chance.choice([-1, -1, 5])
        started_ms = -1 if first < 0 else chance.randrange(100)
        batches = [KeptBatch(one, one, 0, 3)] * chance.randrange(3)
        return ProducerEntry(one, 1, 2, batches, used_ms, 3, first, started_ms, 0 if first < 0 else 7)

    assert ProducerTable().greatest_id(10) == -1
    given = [producer(chance.randrange(60)) for _ in range(chance.choice([1, 4, 5, 40, 70]))]
    if seed % 2:
        given.sort(key=lambda one: one.producer_id)
    wanted = {one.producer_id: one for one in given}
    table = ProducerTable.from_producers(given)
    assert list(table) == [wanted[one] for one in sorted(wanted)]
    assert len(table) == len(wanted)
    for one in range(-1, 61):
        assert table.get(one) == wanted.get(one)
        assert table.greatest_id(one) == max((known for known in wanted if known <= one), default=-1)
    opened = [wanted[one] for one in sorted(wanted) if wanted[one].txn_first_offset >= 0]
    assert table.open_producers() == opened
    copy, before = table.copy(), list(table)
    for limit in (90, 50, 10):
        table.limit_times(limit)
        for one in wanted.values():
            one.used_ms, one.txn_started_ms = min(one.used_ms, limit), min(one.txn_started_ms, limit)
        assert list(table) == [wanted[one] for one in sorted(wanted)]
    again, idle = table.copy(), [one for one in before if one.txn_first_offset < 0]
    again.put(ProducerEntry(61, 1, used_ms=4))
    assert again.remove_unused(2**62, 0, 99)[0] == len(idle) + 1
    assert [one.producer_id for one in again] == [one.producer_id for one in opened]
    assert [(one.producer_id, one.used_ms) for one in copy] == [
        (one.producer_id, one.used_ms) for one in before
    ]
    for used_before in (3, 9, 11):
        removed, at = table.remove_unused(used_before, 0, chance.choice([1, 2, 99]))
        while at < len(table.blocks()):
            again, at = table.remove_unused(used_before, at, 1)
            removed += again
        gone = {
            o for o, known in wanted.items() if known.used_ms < used_before and known.txn_first_offset < 0
        }
        assert removed == len(gone)
        wanted = {one: known for one, known in wanted.items() if one not in gone}
        assert list(table) == [wanted[one] for one in sorted(wanted)]
        assert len(table) == len(wanted)


def producers_of(count):
    return ProducerTable.from_producers(
        ProducerEntry(
            one,
            one % 5,
            one % 3 - 1,
            [KeptBatch(one, one, 0, NOW_MS)] * (one % 6),
            one % 4 - 1,
            3,
            2,
        )
        for one in range(count)
    )
