"""Random histories of one partition, held against a reader that knows everything.

Transactions, aborts, plain writes, repeated batches, rolls, truncations, retention, DeleteRecords, syncs, snapshots,
clean restarts and power cuts interleave; after each step the watermarks agree, and every fetch of every alignment
and isolation hands out exactly the right batches with exactly the right aborted transactions.

`STABLELOG_HISTORIES=5000` runs that many histories in place of a few.
"""

import os
import random
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import RefusedError
from stablelog.log.partition import Isolation, MarkerWrite
from stablelog.log.producer_state.producers import BATCHES_KEPT
from stablelog.log.search import times as lookups
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_newest, look_up_time
from stablelog.log.verify import verify_directory
from tests.log.known import Batch, Known
from tests.log.timeline import DIRECTORY, NOW_MS, Log, aborted_in

HISTORIES = int(os.environ.get("STABLELOG_HISTORIES", "60"))
STEPS = 40
HOUR_MS = 3_600_000
PRODUCERS = st.integers(1, 4)
DELAYS = st.lists(
    st.integers(-1000, 1000), min_size=1, max_size=3
)  # of each record's time, against the clock
SIZES = st.integers(0, 90)
CONFIG = {
    "segment_bytes": 500,
    "segment_ms": HOUR_MS,
    "index_interval_bytes": 120,
    "snapshot_bytes": 700,
    "retention_bytes": 2500,
    "retention_ms": 6 * HOUR_MS,
    "producer_id_expiration_ms": 3 * HOUR_MS,
    "file_delete_delay_ms": HOUR_MS,
}


class History(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.log = Log(**CONFIG)
        self.known = Known()
        self.start = 0
        self.stable = 0
        self.epochs = {}
        self.work = None  # a sync under way
        self.sent = {}  # producer -> its batches of this epoch and where they went, the oldest first

    @property
    def partition(self):
        return self.log.partition

    def appended(self, outcome, producer, kind, size, times):
        self.known.batches.append(
            Batch(outcome.first_offset, outcome.last_offset, producer, kind, size, tuple(times))
        )

    def read_back_producers(self):
        """After a cut, producers go on from what the log still has of them."""
        self.sent.clear()
        self.work = None
        found = {one.producer_id: one for one in self.partition.log.producers}
        for producer in range(1, 5):
            one = found.get(producer)
            epoch = self.epochs[producer] = one.producer_epoch if one else self.epochs.get(producer, 0)
            self.log.sequences[producer, epoch] = one.last_sequence + 1 if one else 0

    # -- writes ------------------------------------------------------------------------------------------------

    def batch(self, delays, size, **arguments):
        records = [Record(0, self.log.now_ms + delay, None, bytes(size)) for delay in delays]
        return encode_batch(records, **arguments), [record.timestamp_ms for record in records]

    @rule(delays=DELAYS, size=SIZES)
    def write_outside_transactions(self, delays, size):
        batch, times = self.batch(delays, size)
        outcome = self.partition.append(batch, now_ms=self.log.now_ms)
        self.appended(outcome, None, "plain", len(batch), times)

    @rule(producer=PRODUCERS, delays=DELAYS, size=SIZES)
    def write_in_a_transaction(self, producer, delays, size):
        epoch = self.epochs.get(producer, 0)
        sequence = self.log.sequences.get((producer, epoch), 0)
        batch, times = self.batch(
            delays,
            size,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        outcome = self.partition.append(batch, now_ms=self.log.now_ms)
        assert not outcome.duplicate
        self.log.sequences[producer, epoch] = sequence + len(delays)
        self.sent.setdefault(producer, []).append((batch, outcome))
        self.appended(outcome, producer, "data", len(batch), times)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_a_batch_again(self, data):
        """One of the last five of the open transaction is a repetition; any other batch is refused, also between transactions."""
        producer = data.draw(st.sampled_from(sorted(self.sent)))
        sent = self.sent[producer]
        at = data.draw(st.integers(0, len(sent) - 1))
        batch, before = sent[at]
        begun = dict(self.known.open_transactions()).get(producer)
        if begun is not None and before.first_offset >= begun and at >= len(sent) - BATCHES_KEPT:
            outcome = self.partition.append(batch, now_ms=self.log.now_ms)
            assert outcome.duplicate
            assert (outcome.first_offset, outcome.last_offset) == (before.first_offset, before.last_offset)
        else:
            with pytest.raises(RefusedError) as refused:
                self.partition.append(batch, now_ms=self.log.now_ms)
            assert refused.value.code is ErrorCode.out_of_order_sequence_number

    @rule(producer=PRODUCERS, commit=st.booleans(), own_epochs=st.booleans())
    def end_a_transaction(self, producer, commit, own_epochs):
        epoch = self.epochs.get(producer, 0)
        if own_epochs:  # the second dialect: an epoch for each transaction
            epoch += 1
            self.epochs[producer] = epoch
            self.sent.pop(producer, None)
        write = MarkerWrite(
            producer, epoch, Marker(MarkerType.COMMIT if commit else MarkerType.ABORT, 0), 2 * own_epochs
        )
        [outcome] = self.partition.append_markers([write], now_ms=self.log.now_ms)
        assert not isinstance(outcome, RefusedError)
        self.appended(outcome, producer, "commit" if commit else "abort", 78, [self.log.now_ms])

    @rule(producers=st.lists(PRODUCERS, min_size=2, max_size=4, unique=True), commit=st.booleans())
    def end_several_at_once(self, producers, commit):
        marker = Marker(MarkerType.COMMIT if commit else MarkerType.ABORT, 0)
        writes = [MarkerWrite(producer, self.epochs.get(producer, 0), marker) for producer in producers]
        outcomes = self.partition.append_markers(writes, now_ms=self.log.now_ms)
        for producer, outcome in zip(producers, outcomes, strict=True):
            self.appended(outcome, producer, "commit" if commit else "abort", 78, [self.log.now_ms])

    # -- keeping house -----------------------------------------------------------------------------------------

    @rule()
    def begin_a_sync(self):
        self.finish_a_sync()
        self.work = self.partition.sync_work()

    @rule()
    def finish_a_sync(self):
        """What was appended since it began is not in it."""
        if self.work is not None:
            self.work.run()
            self.partition.finish_sync(self.work)
            self.work = None

    @rule()
    def sync(self):
        self.finish_a_sync()
        self.log.sync()

    @rule()
    def roll(self):
        self.partition.roll(self.log.now_ms)

    @rule()
    def take_a_snapshot(self):
        self.partition.log.take_snapshot()

    @rule(hours=st.integers(0, 4))
    def let_time_pass(self, hours):
        self.log.now_ms += hours * HOUR_MS

    @rule()
    def forget_silent_producers(self):
        before = {one.producer_id for one in self.partition.log.producers}
        sum(self.partition.deletion.expire_producers(self.log.now_ms))
        for gone in before - {one.producer_id for one in self.partition.log.producers}:
            self.sent.pop(gone, None)
            self.log.sequences[gone, self.epochs.get(gone, 0)] = 0

    @rule(data=st.data())
    def delete_records(self, data):
        before = data.draw(st.integers(0, self.partition.high_watermark))
        self.start = max(self.start, before)
        assert self.partition.deletion.delete_records(before) == self.start

    @rule()
    def apply_retention(self):
        durable = self.partition.high_watermark
        self.partition.deletion.apply_retention(self.log.now_ms)
        self.partition.deletion.remove_deleted(self.log.now_ms)
        assert self.start <= self.partition.start_offset <= durable
        self.start = self.partition.start_offset

    @rule(data=st.data())
    def truncate(self, data):
        at = data.draw(st.integers(self.start, self.partition.end_offset))
        self.partition.replication.truncate_to(at)
        self.known.cut(at)
        self.start = min(self.start, self.known.end)  # it may have been in the batch that went
        self.stable = self.partition.last_stable_offset
        self.read_back_producers()

    # -- restarts ----------------------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def restart(self, clean):
        self.log.reopen(clean=clean)
        sent = dict(self.sent)
        self.read_back_producers()
        self.sent = sent  # the batches that the partition remembers outlive it

    @rule(seed=st.integers(0, 1 << 32))
    def cut_the_power(self, seed):
        durable = self.partition.high_watermark
        self.log.disk = self.log.disk.crash(random.Random(seed))
        self.log.partition = self.log.open()
        assert self.partition.end_offset >= durable
        self.known.cut(self.partition.end_offset)
        self.read_back_producers()

    # -- reads -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known.batches)
    @rule(data=st.data(), size_max=st.integers(1, 1500), isolation=st.sampled_from(Isolation))
    def fetch(self, data, size_max, isolation):
        start = data.draw(st.integers(self.start, self.partition.end_offset))
        self.check_fetch(start, size_max, isolation, at_least_one=data.draw(st.booleans()))

    def check_fetch(self, start, size_max, isolation, *, at_least_one):
        found = self.partition.read(start, size_max, isolation, at_least_one=at_least_one)
        limit = self.partition.visible_end(isolation)
        wanted = self.known.read(start, limit) if start < limit else []
        batches = [header for buffer in found.buffers for _, header in headers_in(buffer)]
        assert [(header.base_offset, header.last_offset, header.size) for header in batches] == [
            (batch.first, batch.last, batch.size) for batch in wanted[: len(batches)]
        ]
        assert found.start_offset == start
        assert found.end_offset == (batches[-1].next_offset if batches else start)
        assert found.size == sum(header.size for header in batches)
        assert found.size <= size_max or (len(batches) == 1 and at_least_one)
        if len(batches) < len(wanted):
            # It stopped because the next batch did not fit, or lies in another segment.
            bases = [segment.base_offset for segment in self.partition.segments()]
            following = wanted[len(batches)]
            assert found.size + following.size > size_max or (batches and following.first in bases)
            assert batches or not at_least_one
        if isolation is Isolation.READ_COMMITTED:
            told = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in found.aborted]
            assert told == (self.known.aborted(start, found.end_offset) if batches else [])
        else:
            assert found.aborted is None

    @rule(data=st.data())
    def look_for_aborted_transactions(self, data):
        stable = self.partition.last_stable_offset
        start = data.draw(st.integers(self.start, stable))
        end = data.draw(st.integers(start, stable))
        told = [
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in aborted_in(self.partition, start, end)
        ]
        assert told == (self.known.aborted(start, end) if start < end else [])

    @rule(data=st.data(), isolation=st.sampled_from(Isolation))
    def look_up_a_time(self, data, isolation):
        limit = self.partition.visible_end(isolation)
        times = sorted({time for _, time in self.known.records(0)})
        near = st.sampled_from(times) if times else st.just(NOW_MS)
        time = data.draw(near) + data.draw(st.integers(-1, 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookups, "STEP_COUNT_MAX", (1, 2, 5, 1000)[time % 4])
            found = run_lookup(look_up_time(self.partition, time, isolation))
            assert (found and found[:2]) == self.known.first_at_or_after(time, self.start, limit)
            found = run_lookup(look_up_newest(self.partition, isolation))
            assert (found and found[:2]) == self.known.greatest_time(self.start, limit)

    # -- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def watermarks_agree(self):
        partition = self.partition
        assert partition.end_offset == self.known.end
        assert partition.start_offset == self.start
        assert partition.last_stable_offset == self.known.stable_offset(partition.high_watermark, self.start)
        assert partition.last_stable_offset >= self.stable, "it never moves back but for a truncation"
        self.stable = partition.last_stable_offset
        assert [
            (txn.producer_id, txn.first_offset) for txn in partition.log.open_transactions()
        ] == self.known.open_transactions()
        assert partition.size == sum(
            self.log.disk.size(segment.path(".log")) for segment in partition.segments()
        )

    def teardown(self):
        self.sync()
        assert list(verify_directory(self.log.disk, DIRECTORY)) == []
        chance = random.Random(self.partition.end_offset)
        for isolation in Isolation:
            for start in range(self.start, self.partition.end_offset + 1):
                self.check_fetch(start, chance.choice((1, 200, 450, 10_000)), isolation, at_least_one=True)
        self.log.reopen(clean=False)
        self.watermarks_agree()


History.TestCase.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],  # it takes minutes for a failure
)
test_every_fetch_agrees_with_a_reader_that_knows_everything = History.TestCase


def drawn(value):
    """Stands for Hypothesis's data: each draw returns this value."""
    return SimpleNamespace(draw=lambda strategy: value)


def test_a_history_in_which_recovery_replays_a_segment_behind_an_emptied_index():
    history = History()
    history.end_several_at_once([1, 2, 3], commit=False)
    history.cut_the_power(0)
    history.cut_the_power(0)
    history.truncate(drawn(0))
    history.write_in_a_transaction(1, [0, 0, 0], 61)
    history.end_several_at_once([1, 2, 3], commit=False)
    history.truncate(drawn(4))
    history.restart(clean=True)
    history.cut_the_power(0)
    history.watermarks_agree()
    history.teardown()
