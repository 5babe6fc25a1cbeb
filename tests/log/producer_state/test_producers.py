import random
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import CONTROL, DELETE_HORIZON, read_header
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import RefusedError
from stablelog.log.model import Isolation, MarkerWrite, Origin
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write

DAY_MS = 86_400_000


def refused(call, *arguments, **keywords):
    with pytest.raises(RefusedError) as caught:
        call(*arguments, **keywords)
    return caught.value.code


def test_the_stable_offset_follows_the_oldest_open_transaction():
    """Scenario 7: three interleaved transactions that end as 1, 3, 2."""
    log = Log()
    log.write("P1 P2 P3 P1 P2 P3")
    log.write("P1a")
    assert log.partition.log.segments.active.txn_index[0].stable_offset == 1
    log.write("P3a")
    assert log.partition.log.segments.active.txn_index[1].stable_offset == 1
    log.write("P2a")
    assert log.partition.log.segments.active.txn_index[2].stable_offset == 9
    assert log.stable_offset == 9


def test_a_marker_that_is_not_durable_decides_nothing_yet():
    """Scenario 8: the last stable offset stays at the transaction's start until the marker is below the high watermark."""
    log = Log().write("- P1")
    log.write("P1c -", sync=False)
    assert log.stable_offset == 1
    log.sync()
    assert log.stable_offset == 4


def test_markers_of_transactions_that_wrote_nothing_complete_nothing():
    """Scenario 9: one write with an end, two empty markers, and then a transaction that is open."""
    log = Log().write("P1")
    writes = [MarkerWrite(p, 0, Marker(MarkerType.ABORT, 0)) for p in (1, 2, 3)]
    log.partition.append_markers(writes, now_ms=log.now_ms)
    log.write("P4 P4c P5")
    assert [txn.producer_id for txn in log.all_aborted()] == [1]
    assert log.stable_offset == 6


def test_sequences_wrap_to_zero():
    """Scenario 10: after 2^31-1 comes 0, also within a batch; any other jump is refused."""
    log = Log().write("-")
    log.append(1, sequence=2**31 - 2, count=1)
    log.append(1, sequence=2**31 - 1, count=3)
    assert next(iter(log.partition.log.producers)).last_sequence == 1
    assert refused(log.append, 1, sequence=3) is ErrorCode.out_of_order_sequence_number
    assert refused(log.append, 1, sequence=0) is ErrorCode.out_of_order_sequence_number
    log.append(1, sequence=2)


def test_a_marker_alone_raises_the_epoch():
    """Scenario 11: what the old epoch writes then is refused, and the new one begins with sequence 0."""
    log = Log().write("P1")
    log.end(1, commit=False, epoch=1)
    assert refused(log.append, 1, epoch=0) is ErrorCode.invalid_producer_epoch
    log.append(1, epoch=1, sequence=0)
    assert refused(log.append, 1, epoch=2, sequence=1) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("restart", [False, True])
def test_any_of_the_last_five_batches_is_recognised(restart):
    """Scenario 12: also after a restart; the sixth and a partial overlap are out of order."""
    log = Log()
    firsts = [log.append(1, count=2, transactional=False).first_offset for _ in range(6)]
    log.sync()
    if restart:
        log.reopen()
    for n in range(1, 6):
        again = log.append(1, sequence=2 * n, count=2, transactional=False)
        assert again.duplicate
        assert again.first_offset == firsts[n]
    assert (
        refused(log.append, 1, sequence=0, count=2, transactional=False)
        is ErrorCode.out_of_order_sequence_number
    )
    assert (
        refused(log.append, 1, sequence=3, count=2, transactional=False)
        is ErrorCode.out_of_order_sequence_number
    )
    assert log.partition.end_offset == 12


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("ends", ["P1c", "P1a", "P1c P1", "P1a P1"])
def test_a_batch_of_an_ended_transaction_is_never_a_repetition(ends, restart):
    """Neither within the next transaction nor between two; another record may have its sequence by now."""
    log = write(f"P1 P1 {ends}")
    if restart:
        log.reopen()
    end = log.partition.end_offset
    for sequence in (0, 1):
        assert refused(log.append, 1, sequence=sequence) is ErrorCode.out_of_order_sequence_number
    assert log.partition.end_offset == end
    if ends.endswith("P1"):
        assert log.append(1, sequence=2).duplicate


def test_a_transactional_batch_and_one_outside_transactions_do_not_repeat_each_other():
    log = Log().write("P1")
    assert refused(log.append, 1, sequence=0, transactional=False) is ErrorCode.out_of_order_sequence_number
    log.append(2, transactional=False)
    assert refused(log.append, 2, sequence=0) is ErrorCode.out_of_order_sequence_number
    assert log.append(2, sequence=0, transactional=False).duplicate


def test_a_batch_whose_sequences_wrap_is_recognised():
    log = Log().write("-")
    first = log.append(1, sequence=2**31 - 1, count=3, transactional=False)
    again = log.append(1, sequence=2**31 - 1, count=3, transactional=False)
    assert again == first._replace(duplicate=True)


def test_the_window_of_five_survives_a_crash():
    log = Log()
    for _ in range(5):
        log.append(1, transactional=False)
    log.sync()
    log.reopen(clean=False)
    assert all(log.append(1, sequence=n, transactional=False).duplicate for n in range(5))


def test_a_producer_with_an_open_transaction_is_not_forgotten():
    """Scenario 14: however long it has been silent."""
    log = Log(producer_id_expiration_ms=1000).write("P1 P2 P2c")
    assert sum(log.partition.deletion.expire_producers(log.now_ms + DAY_MS)) == 1
    assert [producer.producer_id for producer in log.partition.log.producers] == [1]


def test_a_producer_that_wrote_at_the_limit_is_kept_where_another_goes():
    log = Log(producer_id_expiration_ms=1000)
    log.append(1, transactional=False)
    log.now_ms += 1
    log.append(2, transactional=False)
    assert sum(log.partition.deletion.expire_producers(log.now_ms + 1000)) == 1
    assert [producer.producer_id for producer in log.partition.log.producers] == [2]


@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_is_open_after_a_restart(clean):
    """Scenario 15: and cutting away a commit opens it again."""
    log = write("- P1 P2 P2c")
    started_ms = log.partition.log.open_transactions()[0].started_ms
    log.now_ms += 5000
    log.reopen(clean=clean)
    assert log.stable_offset == 1
    assert log.partition.log.open_transactions()[0].first_offset == 1
    if clean:
        assert log.partition.log.open_transactions()[0].started_ms == started_ms
    log.write("P1c")
    assert log.stable_offset == 5
    log.partition.replication.truncate_to(4)
    assert log.stable_offset == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x09\x00" + bytes(30)])
def test_a_damaged_snapshot_is_passed_over(damage):
    """Scenario 16: empty, garbage, of a version that no release can have: what it said is made from the log."""
    log = write("P1 P2 P2c P1")
    before = list(log.partition.log.producers)
    log.partition.close()
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith((".snapshot", ".producers")):
            log.disk.write_atomic(DIRECTORY / name, damage)
    log.partition = log.open()
    assert sorted(map(str, log.partition.log.producers)) == sorted(map(str, before))
    assert log.stable_offset == 0


def test_without_any_snapshot_open_transactions_are_not_forgotten():
    """Scenario 18: Kafka takes this for an upgrade, and its last stable offset jumps."""
    log = write("P1 - P2 P2c")
    log.partition.close()
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith((".snapshot", ".producers")):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open()
    assert log.stable_offset == 0


def test_a_marker_of_an_old_coordinator_is_refused_even_for_an_empty_transaction():
    """Scenario 19."""
    log = Log()
    log.end(1, commit=True, coordinator_epoch=5)
    assert log.end(1, commit=True, coordinator_epoch=4).code is ErrorCode.transaction_coordinator_fenced


def test_a_repeated_marker_of_the_second_dialect_is_done_and_one_for_the_next_transaction_is_refused():
    """Scenario 20: equal epochs; nothing open is a retry, an open transaction is not its own."""
    log = Log()
    log.append(1, epoch=0)
    log.end(1, commit=True, epoch=1, version=2)
    end = log.partition.end_offset
    assert log.end(1, commit=True, epoch=1, version=2).duplicate
    assert log.partition.end_offset == end
    log.append(1, epoch=1)
    assert log.end(1, commit=True, epoch=1, version=2).code is ErrorCode.invalid_producer_epoch
    assert log.partition.log.open_transactions()


def test_old_timestamps_of_a_client_do_not_expire_its_state():
    """Scenario 22: the broker's clock says when a producer last wrote."""
    log = Log(producer_id_expiration_ms=DAY_MS)
    now_ms = log.now_ms
    log.now_ms -= 2 * DAY_MS
    batch_time = log.now_ms
    log.now_ms = now_ms
    old = encode_batch([Record(0, batch_time, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=0)
    log.partition.append(old, now_ms=now_ms)
    assert sum(log.partition.deletion.expire_producers(now_ms + 1000)) == 0
    assert sum(log.partition.deletion.expire_producers(now_ms + DAY_MS + 1)) == 1


def test_after_a_start_with_an_earlier_clock_producers_expire_in_time():
    """A clock that was set back: what is kept of the producers is not from the time to come."""
    log = Log(producer_id_expiration_ms=DAY_MS).write("P1 P1c P2")
    log.now_ms -= 30 * DAY_MS
    log.reopen()
    assert log.partition.log.open_transactions()[0].started_ms == log.now_ms
    log.write("P3 P3c")
    assert sum(log.partition.deletion.expire_producers(log.now_ms + DAY_MS)) == 0
    assert sum(log.partition.deletion.expire_producers(log.now_ms + DAY_MS + 1)) == 2
    assert [producer.producer_id for producer in log.partition.log.producers] == [2]


def test_a_plain_batch_within_an_open_transaction_is_refused():
    log = Log().write("P1")
    assert refused(log.append, 1, transactional=False) is ErrorCode.invalid_txn_state


def test_a_batch_gets_its_offset_after_the_check_of_its_transaction():
    """The check may end another transaction, whose marker goes to the same log."""
    log = Log().write("P2")
    batch = encode_batch(
        [Record(0, log.now_ms, None, b"x")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    appended = log.partition.append(
        batch, now_ms=log.now_ms, transaction_check=lambda _header: log.end(2, commit=True)
    )
    assert (appended.first_offset, log.partition.end_offset) == (2, 3)
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [2]


def test_the_coordinators_word_is_asked_for_with_every_batch_but_a_duplicate():
    log = Log()
    asked = []

    def append(sequence, check=asked.append):
        batch = encode_batch(
            [Record(0, log.now_ms, None, b"x")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return log.partition.append(batch, now_ms=log.now_ms, transaction_check=check)

    append(0)
    append(1)
    append(1)
    assert [header.base_sequence for header in asked] == [0, 1]

    def refuse(_header):
        raise RefusedError(ErrorCode.invalid_txn_state, "late")

    end = log.partition.end_offset
    assert refused(append, 2, refuse) is ErrorCode.invalid_txn_state
    assert log.partition.end_offset == end
    log.end(1, commit=True)
    assert refused(append, 2, refuse) is ErrorCode.invalid_txn_state


def test_a_batch_that_verification_refused_comes_before_those_that_were_sent_after_it():
    """Scenario 21: the answer is the coordinator's of this moment, never an older one; and sequence 1 waits for 0.

    The log is not empty: a producer that is new in it may begin with any sequence.
    """
    log = Log().write("-")
    known = set()

    def check(header):
        if header.producer_id not in known:
            raise RefusedError(ErrorCode.invalid_txn_state, "not its transaction")

    def append(sequence):
        batch = encode_batch(
            [Record(0, log.now_ms, None, b"x")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return log.partition.append(batch, now_ms=log.now_ms, transaction_check=check)

    assert refused(append, 0) is ErrorCode.invalid_txn_state
    known.add(1)
    assert refused(append, 1) is ErrorCode.out_of_order_sequence_number
    assert append(0).first_offset == 1
    assert append(1).first_offset == 2
    log.end(1, commit=False)
    known.clear()  # with the abort, the coordinator forgets the partition: a late success is nothing to it
    assert refused(append, 2) is ErrorCode.invalid_txn_state
    assert log.partition.log.open_transactions() == []


class Verified(Log):
    """A log whose coordinator knows no transaction until `known` says so."""

    known = False

    def check(self, _header):
        if not self.known:
            raise RefusedError(ErrorCode.invalid_txn_state, "not its transaction")

    def send(self, sequence, *, epoch=0):
        batch = encode_batch(
            [Record(0, self.now_ms, None, b"x")],
            producer_id=1,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return self.partition.append(batch, now_ms=self.now_ms, transaction_check=self.check)


def test_of_the_batches_that_verification_refused_the_lowest_sequence_comes_first():
    log = Verified().write("-")
    for sequence in (7, 5):
        assert refused(log.send, sequence) is ErrorCode.invalid_txn_state
    assert refused(log.send, 6) is ErrorCode.out_of_order_sequence_number, (
        "it would have raised what is awaited"
    )
    log.known = True
    for sequence in (6, 7):
        assert refused(log.send, sequence) is ErrorCode.out_of_order_sequence_number
    for sequence in (5, 6, 7):
        assert not log.send(sequence).duplicate


@pytest.mark.parametrize("order", [((1, 0), (2, 5)), ((2, 5), (1, 0))], ids=["newer", "older"])
def test_of_several_epochs_what_verification_refused_of_the_newest_comes_first(order):
    log = Verified().write("-")
    for epoch, sequence in order:
        assert refused(log.send, sequence, epoch=epoch) is ErrorCode.invalid_txn_state
    log.known = True
    assert refused(log.send, 6, epoch=2) is ErrorCode.out_of_order_sequence_number
    log.send(5, epoch=2)
    log.send(6, epoch=2)


def test_duplicates_of_several_producers_are_answered_and_written_once():
    """Scenario 13: one by one with the places of the originals; several in one append are refused as a whole."""
    log = Log()
    sent = {}
    for producer_id in (1, 2, 3):
        batch = encode_batch(
            [Record(0, log.now_ms, None, b"x")] * producer_id,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        sent[producer_id] = (batch, log.partition.append(batch, now_ms=log.now_ms))
    end, size = log.partition.end_offset, log.partition.size
    for batch, first in reversed(sent.values()):
        again = log.partition.append(batch, now_ms=log.now_ms)
        assert again == first._replace(duplicate=True)
    both = sent[1][0] + sent[2][0]
    assert refused(log.partition.append, both, now_ms=log.now_ms) is ErrorCode.invalid_record
    copied = log.partition.read(0, 1 << 20, Isolation.LOG_END).buffers[0]
    for part in (copied, copied[: read_header(copied).size]):
        with pytest.raises(RefusedError):
            log.partition.append(part, now_ms=log.now_ms, origin=Origin.REPLICATION)
    assert (log.partition.end_offset, log.partition.size) == (end, size)


def test_the_stable_offset_is_never_past_the_high_watermark():
    """Also where the first open transaction began behind it."""
    log = Log().write("-")
    log.write("- P1", sync=False)
    assert (log.partition.high_watermark, log.stable_offset) == (1, 1)


def test_a_marker_at_the_high_watermark_is_not_durable():
    log = write("P1")
    log.write("-", sync=False)
    work = log.partition.sync_work()
    log.write("P1c", sync=False)
    work.run()
    log.partition.finish_sync(work)
    assert (log.partition.high_watermark, log.stable_offset) == (2, 0)


def test_of_transactions_whose_markers_are_not_durable_the_first_offset_of_each_counts():
    log = write("P1 P2 P3")
    log.write("P1c", sync=False)
    work = log.partition.sync_work()
    log.write("P2c P3c", sync=False)
    assert log.stable_offset == 0
    work.run()
    log.partition.finish_sync(work)
    assert log.stable_offset == 1


def test_a_transaction_begins_with_its_first_record():
    log = Log()
    log.append(1, count=3)
    log.append(1, count=2)
    assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [0]


def test_after_the_greatest_sequence_comes_0():
    log = Log().write("-")
    log.append(1, sequence=2**31 - 1)
    assert refused(log.append, 1, sequence=2**31 - 2) is ErrorCode.out_of_order_sequence_number
    log.append(1, sequence=0)
    assert log.partition.end_offset == 3


def test_a_batch_that_ends_like_a_kept_one_and_begins_elsewhere_is_no_repetition():
    log = Log()
    log.append(1, count=4, transactional=False)
    for sequence, count in ((1, 3), (2, 2), (3, 1)):
        assert (
            refused(log.append, 1, sequence=sequence, count=count, transactional=False)
            is ErrorCode.out_of_order_sequence_number
        )
    assert log.append(1, sequence=0, count=4, transactional=False).duplicate


def test_a_batch_of_another_epoch_is_no_repetition():
    log = Log()
    log.append(1, transactional=False)
    assert not log.append(1, epoch=1, sequence=0, transactional=False).duplicate
    assert (
        refused(log.append, 1, epoch=0, sequence=0, transactional=False) is ErrorCode.invalid_producer_epoch
    )
    assert log.append(1, epoch=1, sequence=0, transactional=False).duplicate
    assert log.partition.end_offset == 2


def test_a_marker_of_an_older_epoch_is_refused():
    log = Log()
    log.append(1, epoch=3)
    assert log.end(1, commit=True, epoch=2).code is ErrorCode.invalid_producer_epoch
    assert len(log.partition.log.open_transactions()) == 1
    assert log.partition.end_offset == 1


def test_of_the_markers_of_one_write_an_older_and_a_repeated_one_of_a_producer_are_not_written():
    log = write("P1")
    markers = [MarkerWrite(1, epoch, Marker(MarkerType.ABORT, 0)) for epoch in (1, 1, 0)]
    first, again, older = log.partition.append_markers(markers, now_ms=log.now_ms)
    assert (first.first_offset, first.duplicate) == (1, False)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (-1, -1)
    assert older.code is ErrorCode.invalid_producer_epoch
    assert log.partition.end_offset == 2


def test_a_producer_that_is_not_known_begins_with_0_where_that_is_asked_for():
    log = Log()

    def append(sequence):
        batch = encode_batch(
            [Record(0, log.now_ms, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=sequence
        )
        return log.partition.append(batch, now_ms=log.now_ms, require_first_sequence_zero=True)

    assert refused(append, 4) is ErrorCode.out_of_order_sequence_number
    append(0)
    append(1)
    assert not log.append(2, sequence=4, transactional=False).duplicate


@pytest.mark.parametrize("transactional", [False, True])
def test_the_first_batch_of_a_new_partition_has_sequence_0(transactional):
    """Of two batches that were sent at once, the first was refused, and is sent again: the second one waits for it."""
    log = Log()
    late = partial(log.append, 1, sequence=17, count=5, transactional=transactional)
    assert refused(late) is ErrorCode.out_of_order_sequence_number
    assert log.partition.end_offset == 0
    log.append(1, sequence=0, count=17, transactional=transactional)
    assert late().first_offset == 17


@pytest.mark.parametrize("change", ["expiry", "DeleteRecords", "restart"])
def test_in_a_partition_that_has_had_records_an_unknown_producer_begins_with_any_sequence(change):
    """Its state may have expired."""
    log = Log(file_delete_delay_ms=0).write("-")
    if change == "expiry":
        log.append(1, count=3, transactional=False)
        log.sync()
        log.now_ms += log.partition.config.producer_id_expiration_ms + 1
        assert sum(log.partition.deletion.expire_producers(log.now_ms)) == 1
    elif change == "DeleteRecords":
        log.partition.roll(log.now_ms)
        log.sync()
        log.partition.deletion.delete_records(1)
        assert log.partition.size == 0
    else:
        log.reopen()
    log.append(1, sequence=17, transactional=False)


@pytest.mark.parametrize(
    "given",
    [
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "extra_attributes": CONTROL},
        {},
        {"producer_id": 1, "producer_epoch": 0},
        {"producer_id": 1, "base_sequence": 0},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "extra_attributes": DELETE_HORIZON},
    ],
    ids=["a marker", "no producer id", "no sequence", "no epoch", "a delete horizon"],
)
def test_what_no_producer_sends_is_refused(given):
    log = Log()
    batch = encode_batch([Record(0, log.now_ms, None, b"x")], transactional=True, **given)
    assert refused(log.partition.append, batch, now_ms=log.now_ms) is ErrorCode.invalid_record
    assert log.partition.end_offset == 0


def test_of_a_producer_whose_batches_another_epoch_has_replaced_kafkas_form_tells_the_marker():
    log = write("P1")
    log.now_ms += 7000
    log.end(1, commit=False, epoch=1)
    log.partition.log.take_snapshot()
    log.sync()
    content = log.disk.read_bytes(DIRECTORY / f"{log.partition.end_offset:020d}.snapshot")
    [entry] = SNAPSHOT_ENTRY.iter_unpack(content[SNAPSHOT_HEADER.size :])
    # id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first open offset
    assert entry == (1, 1, -1, -1, 0, log.now_ms, 0, -1)


@pytest.mark.parametrize("clean", [True, False])
def test_from_kafkas_form_alone_the_last_batch_and_the_open_transaction_are_known(clean):
    log = Log()
    for _ in range(3):
        log.append(1, count=2, transactional=False)
    log.append(2, count=2)
    log.partition.roll(log.now_ms)  # a start reads a snapshot of Kafka's form where a segment begins
    log.sync()
    log.partition.close(clean=clean)
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith(".producers"):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open(clean=clean)
    assert [(txn.producer_id, txn.first_offset) for txn in log.partition.log.open_transactions()] == [(2, 6)]
    assert log.append(1, sequence=4, count=2, transactional=False).first_offset == 4
    assert log.append(2, sequence=0, count=2).duplicate
    log.append(1, sequence=6, transactional=False)
    log.append(2, sequence=2)
    assert log.partition.end_offset == 10


def test_a_coordinators_batch_of_an_older_epoch_is_refused_too():
    """As the group coordinator writes offsets for a transaction whose producer was fenced meanwhile."""
    log = Log()
    log.append(1, epoch=3)
    batch = encode_batch(
        [Record(0, log.now_ms, None, b"x")],
        producer_id=1,
        producer_epoch=2,
        base_sequence=-1,
        transactional=True,
    )
    code = refused(log.partition.append, batch, now_ms=log.now_ms, origin=Origin.COORDINATOR)
    assert code is ErrorCode.invalid_producer_epoch
    assert log.partition.end_offset == 1


def test_compaction_is_told_the_last_of_several_batches_of_a_producer():
    log = Log()
    for _ in range(3):
        log.append(1, transactional=False)
    producers = log.partition.log.producers.packed_copy()
    assert producers.get(1).last_offset == 2
    assert producers.get(2) is None


def header(producer_id, sequence, base_offset, *, count=1, transactional=True):
    return read_header(
        encode_batch(
            [Record(0, NOW_MS, None, b"")] * count,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            base_offset=base_offset,
            transactional=transactional,
        )
    )


@pytest.mark.parametrize("is_packed", [True, False])
def test_counts_of_open_transactions_replace_what_was_counted_and_nothing_else(is_packed):
    producers = Producers()
    for producer_id in (1, 2, 3):
        producers.apply_batch(header(producer_id, 0, 10 * producer_id, count=4), None, NOW_MS)
    if is_packed:
        producers.pack_recent(NOW_MS + 1)
    before = {one.producer_id: one for one in producers}
    producers.set_open_record_counts({1: 7, 3: 9})
    producers.apply_batch(header(1, 4, 50), None, NOW_MS + 1)
    after = {one.producer_id: one for one in producers}
    assert [producers.open_transaction(one).txn_record_count for one in (1, 2, 3)] == [8, 4, 9]
    assert [after[one].txn_record_count for one in (1, 2, 3)] == [8, 4, 9]
    assert after[2] == before[2]
    assert after[3].batches == before[3].batches


@pytest.mark.parametrize("seed", range(4))
def test_the_first_unstable_offset_is_the_least_of_all_that_is_open_or_not_durable(seed):
    chance, producers = random.Random(seed), Producers()
    opened, ended, offset, high_watermark = {}, [], 0, 0
    for _ in range(300):
        producer_id, choice = chance.randrange(6), chance.random()
        if choice < 0.4:
            producers.apply_batch(header(producer_id, 0, offset), None, NOW_MS)
            opened.setdefault(producer_id, offset)
            offset += 1
        elif choice < 0.8:
            marker = Marker(chance.choice(list(MarkerType)), 0)
            txn = producers.apply_batch(header(producer_id, 0, offset), marker, NOW_MS)
            assert (txn is not None) == (producer_id in opened)
            if txn is not None:
                producers.end_transaction(txn)
                ended.append((offset, opened.pop(producer_id)))
            offset += 1
        else:
            high_watermark = chance.randint(high_watermark, offset)
            producers.move_high_watermark(high_watermark)
        undecided = [*opened.values(), *(first for at, first in ended if at >= high_watermark)]
        for end in (offset, high_watermark):
            assert producers.first_unstable_offset(end) == min([*undecided, end])
            assert producers.first_open_offset(end) == min(opened.values(), default=end)
