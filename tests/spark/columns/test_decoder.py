"""The decoder gives what `batch.records` gives, of every batch that is one, and a clean error for every other."""

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stablelog.batch.compression import compress
from stablelog.batch.header import (
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    Codec,
    headers_in,
    read_header,
)
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, decode_records, encode_batch, encode_record, record_ranges
from stablelog.errors import DamageError, UsageError
from stablelog.spark.columns import decoder as decoder_module
from stablelog.spark.columns.builder import TYPES, ColumnBuilder
from stablelog.spark.columns.decoder import Decoder
from tests.scale import examples
from tests.spark.columns.own_decoder import OwnDecoder

ALL = tuple(TYPES)
ENDLESS = 2**62
quick = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])

payloads = st.none() | st.binary(max_size=40) | st.integers(60, 300).map(lambda n: b"x" * n)
timestamps = st.integers(-(2**40), 2**42)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
records = st.builds(Record, st.just(0), timestamps, payloads, payloads, headers)


def resealed(batch):
    """The batch with the CRC of what it holds now."""
    batch = bytearray(batch)
    batch[CRC_START - 4 : CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def rewritten(batch, **changes):
    header = read_header(batch)._replace(**changes)
    return resealed(HEADER.pack(*header) + batch[HEADER.size :])


def with_gaps(batch, deltas, last):
    """The batch as compaction leaves it: the records' offsets are those of `deltas`, the last offset stays."""
    header = read_header(batch)
    found = decode_records(batch)
    body = bytearray()
    for record, delta in zip(found, deltas, strict=True):
        since_base = record.timestamp_ms - header.base_timestamp
        body += encode_record(record.key, record.value, record.headers, delta, since_base)
    packed = compress(header.codec, bytes(body))
    header = header._replace(batch_length=HEADER.size - 12 + len(packed), last_offset_delta=last)
    return resealed(HEADER.pack(*header) + packed)


def row(record, topic="t", partition=3, timestamp_type=0):
    return {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "timestampType": timestamp_type,
        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
    }


def rows_of(batches):
    out = []
    for batch in batches:
        batch.validate(full=True)
        if "timestamp" in batch.schema.names:
            n = batch.schema.names.index("timestamp")
            batch = batch.set_column(n, "timestamp", batch.column(n).cast(pa.int64()))
        out += batch.to_pylist()
    return out


def decoded(data, start=0, end=ENDLESS, aborted=(), columns=ALL, **options):
    decoder = OwnDecoder("t", 3, columns, **options)
    batches = [*decoder.feed(data, start, end, aborted), *decoder.flush()]
    assert all(batch.schema.equals(decoder.schema) for batch in batches)
    return rows_of(batches)


@st.composite
def logs(draw):
    """Batches of growing offsets, with gaps, and their records."""
    data, wanted, offset = bytearray(), [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 5))):
        some = draw(st.lists(records, min_size=1, max_size=8))
        attributes = draw(st.sampled_from([0, LOG_APPEND_TIME]))
        batch = encode_batch(
            some, base_offset=offset, codec=draw(st.sampled_from(Codec)), extra_attributes=attributes
        )
        deltas = sorted(draw(st.sets(st.integers(0, 300), min_size=len(some), max_size=len(some))))
        last = deltas[-1] + draw(st.integers(0, 3))
        if draw(st.booleans()):
            batch = with_gaps(batch, deltas, last)
        data += batch
        wanted += [
            row(record, timestamp_type=attributes // LOG_APPEND_TIME) for record in decode_records(batch)
        ]
        offset = read_header(batch).next_offset + draw(st.sampled_from([0, 0, 1, 1000]))
    return bytes(data), wanted


@pytest.mark.extended
@quick
@given(logs(), st.data())
def test_columns_are_what_the_records_are(log, data):
    batches, wanted = log
    start = data.draw(st.integers(0, wanted[-1]["offset"] + 2))
    end = data.draw(st.integers(start, wanted[-1]["offset"] + 2))
    rows_max = data.draw(st.integers(1, 20))
    bytes_max = data.draw(st.integers(1, 500))
    columns = data.draw(st.lists(st.sampled_from(ALL), unique=True, min_size=1))
    found = decoded(batches, start, end, columns=columns, rows_max=rows_max, bytes_max=bytes_max)
    assert found == [{name: r[name] for name in columns} for r in wanted if start <= r["offset"] < end]


@pytest.mark.extended
@quick
@given(logs(), st.data())
def test_fed_in_pieces_it_goes_on_where_it_was(log, data):
    batches, wanted = log
    decoder = OwnDecoder("t", 3, ALL, rows_max=5)
    found, position = [], 0
    positions = {header.next_offset: at + header.size for at, header in headers_in(batches)}
    while position < len(batches):
        size = data.draw(st.integers(1, len(batches)))
        before = position
        found += decoder.feed(batches[position : position + size], 0, ENDLESS)
        position = positions.get(decoder.next_offset, 0)
        if position == before:  # not even one whole batch
            found += decoder.feed(batches[position:], 0, ENDLESS)
            position = len(batches)
    found += decoder.flush()
    assert rows_of(found) == wanted


def test_a_cut_last_batch_is_left_unread():
    batch = encode_batch([Record(0, 1, b"k", b"v")] * 3)
    later = encode_batch([Record(0, 1, b"k", b"v")], base_offset=3)
    decoder = OwnDecoder("t", 0, ["offset"])
    for cut in (1, 30, 61, len(later) - 1):
        decoder = OwnDecoder("t", 0, ["offset"])
        list(decoder.feed(batch + later[:cut], 0, ENDLESS))
        assert (rows_of(decoder.flush()), decoder.next_offset) == ([{"offset": n} for n in range(3)], 3)


def test_a_range_ends_the_reading():
    data = encode_batch([Record(0, 1, b"k", b"v")] * 5) + b"garbage behind the range" * 9
    decoder = OwnDecoder("t", 0, ["offset"])
    list(decoder.feed(data, 1, 3))
    assert decoder.next_offset == 3
    assert rows_of(decoder.flush()) == [{"offset": 1}, {"offset": 2}]


def test_a_record_larger_than_a_batch_gets_a_larger_one():
    large = Record(0, 1, None, b"x" * 5000, (("h", b"y" * 100),))
    small = Record(0, 1, b"k", b"v")
    data = encode_batch([small, small, large, small])
    decoder = OwnDecoder("t", 0, ALL, bytes_max=1000)
    sizes = [b.num_rows for b in decoder.feed(data, 0, ENDLESS)] + [b.num_rows for b in decoder.flush()]
    assert sizes[0] == 2  # the large one does not go where no room is left for it
    assert sum(sizes) == 4
    assert [r["value"] for r in decoded(data, bytes_max=1000)] == [b"v", b"v", large.value, b"v"]


def test_a_batch_emptied_by_compaction_gives_nothing():
    batch = encode_batch([Record(0, 1, b"k", b"v")] * 2)
    empty = rewritten(batch[: HEADER.size], record_count=0, batch_length=HEADER.size - 12)
    assert decoded(empty) == []


def test_with_a_delete_horizon_timestamps_still_count_from_the_base():
    batch = encode_batch(
        [Record(0, 7, b"k", b"v"), Record(0, 9, b"k", b"v")], extra_attributes=DELETE_HORIZON
    )
    assert [r["timestamp"] for r in decoded(batch)] == [7000, 9000]


@pytest.mark.parametrize("time", [2**62, (2**63 - 1) // 1000 + 1, -(2**62)])
def test_a_timestamp_past_the_microseconds_is_refused_by_name(time):
    batch = encode_batch([Record(0, 7, b"k", b"v"), Record(0, time, b"k", b"v")])
    with pytest.raises(UsageError, match=r"a record of .*-\d+ has a time outside of the range"):
        decoded(batch)


def test_the_last_timestamp_is_read():
    last = (2**63 - 1) // 1000
    batch = encode_batch([Record(0, last, b"k", b"v")])
    assert [r["timestamp"] for r in decoded(batch)] == [last * 1000]


def test_small_partitions_share_batches():
    builder = ColumnBuilder(["topic", "partition", "offset"], rows_max=4)
    found = []
    for partition in range(3):
        decoder = Decoder("t", partition, builder)
        found += decoder.feed(encode_batch([Record(0, 1, b"k", b"v")] * 3), 0, ENDLESS)
    found += builder.take_batches()
    assert [b.num_rows for b in found] == [4, 4, 1]
    assert [(r["partition"], r["offset"]) for r in rows_of(found)] == [
        (p, n) for p in range(3) for n in range(3)
    ]


# --- what was aborted ----------------------------------------------------------------------------------------------


def data_batch(producer_id, base_offset, count=1, transactional=True):
    return encode_batch(
        [Record(0, 1, None, b"%d@%d" % (producer_id, base_offset + n)) for n in range(count)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )


def marker(producer_id, offset, kind):
    return encode_marker(
        Marker(kind, 0, *(("g", 4) if kind is MarkerType.COMMIT else ())),
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1,
    )


table_sizes = st.sampled_from([1, 2, 3, 7, decoder_module.SCAN_COUNT_MAX])


def decoder_of_tables(size, columns, **options):
    """A decoder that reads the headers of so many batches at once: a transaction may go over several tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "SCAN_COUNT_MAX", size)
        return OwnDecoder("t", 0, columns, **options)


def packed(batch):
    """The batch with its records compressed."""
    body = compress(Codec.LZ4, batch[HEADER.size :])
    header = read_header(batch)
    changes = {"attributes": header.attributes | Codec.LZ4, "batch_length": HEADER.size - 12 + len(body)}
    return resealed(HEADER.pack(*header._replace(**changes)) + body)


@st.composite
def histories(draw):
    """A partition's log as (batches, aborted, committed offsets): transactions of a few producers, interleaved."""
    offset, open_since, batches, aborted, fates, pending = 0, {}, [], [], {}, {}
    for _ in range(draw(st.integers(1, 25))):
        producer = draw(st.integers(1, 3))
        step = draw(st.sampled_from(["data", "data", "abort", "commit", "plain"]))
        if step == "plain" and producer not in open_since:
            batches.append(data_batch(producer, offset, transactional=False))
            fates[offset] = True
            offset += 1
        elif step == "data":
            count = draw(st.integers(1, 3))
            batches.append(data_batch(producer, offset, count))
            open_since.setdefault(producer, offset)
            pending.setdefault(producer, []).extend(range(offset, offset + count))
            offset += count
        elif step in {"abort", "commit"} and (producer in open_since or draw(st.booleans())):
            kind = MarkerType.ABORT if step == "abort" else MarkerType.COMMIT
            batches.append(marker(producer, offset, kind))
            if producer in open_since:
                begun = open_since.pop(producer)
                for at in pending.pop(producer):
                    fates[at] = step == "commit"
                if step == "abort":
                    aborted.append((producer, begun, offset))
            offset += 1
    for producer in open_since:  # the log ends where every fate is known
        batches.append(marker(producer, offset, MarkerType.COMMIT))
        for at in pending[producer]:
            fates[at] = True
        offset += 1
    return batches, aborted, [at for at, committed in sorted(fates.items()) if committed], offset


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.data())
def test_what_was_aborted_is_never_seen_and_what_was_committed_always(history, data):
    batches, aborted, committed, end = history
    start = data.draw(st.integers(0, end))
    decoder = decoder_of_tables(data.draw(table_sizes), ["offset", "value"], rows_max=3)
    found, fetched = [], start
    while fetched < end:  # fetch after fetch, each with the list that a broker sends
        behind = [batch for batch in batches if read_header(batch).next_offset > fetched]
        sent = behind[: data.draw(st.integers(1, len(behind)))]
        upper = read_header(sent[-1]).next_offset
        listed = [(p, first) for p, first, last in aborted if last >= fetched and first < upper]
        found += decoder.feed(b"".join(sent), start, end, listed)
        fetched = upper
    found += decoder.flush()
    assert [r["offset"] for r in rows_of(found)] == [at for at in committed if at >= start]


@pytest.mark.extended
@settings(max_examples=examples(50), deadline=None)
@given(histories(), st.data())
def test_of_a_range_with_all_aborted_transactions_ever_the_past_does_no_harm(history, data):
    batches, aborted, committed, end = history
    start = data.draw(st.integers(0, end))
    sent = b"".join(batch for batch in batches if read_header(batch).next_offset > start)
    decoder = decoder_of_tables(data.draw(table_sizes), ["offset"])
    found = rows_of([*decoder.feed(sent, start, end, aborted), *decoder.flush()])
    assert [r["offset"] for r in found] == [at for at in committed if at >= start]
    everything = decoded(b"".join(batches), columns=["offset"], isolation="read_uncommitted")
    control = {h.base_offset for b in batches if (h := read_header(b)).is_control}
    assert [r["offset"] for r in everything] == [at for at in range(end) if at not in control]


def test_a_fetch_from_the_middle_of_two_aborted_transactions_leaks_neither():
    """Counter-example A: the first of two aborted transactions has no batch in what is read."""
    data = (
        data_batch(2, 11)
        + marker(2, 12, MarkerType.ABORT)
        + marker(1, 20, MarkerType.ABORT)
        + data_batch(1, 21)
        + data_batch(2, 22)
    )
    assert [r["offset"] for r in decoded(data, 10, ENDLESS, [(1, 2), (2, 3)])] == [21, 22]


def test_an_abort_marker_whose_data_lie_before_the_fetch_swallows_nothing():
    """Counter-example B: the marker comes before any batch of its transaction; the producer's next one commits."""
    data = marker(1, 20, MarkerType.ABORT) + data_batch(1, 21) + marker(1, 22, MarkerType.COMMIT)
    assert [r["offset"] for r in decoded(data, 15, ENDLESS, [(1, 2)])] == [21]


def test_a_transaction_that_is_told_again_after_its_end_swallows_nothing():
    decoder = OwnDecoder("t", 0, ["offset"])
    found = list(decoder.feed(data_batch(1, 0) + marker(1, 1, MarkerType.ABORT), 0, ENDLESS, [(1, 0)]))
    found += decoder.feed(data_batch(1, 2) + marker(1, 3, MarkerType.COMMIT), 0, ENDLESS, [(1, 0)])
    assert [r["offset"] for r in rows_of([*found, *decoder.flush()])] == [2]


def test_aborted_transactions_of_many_producers_between_others_are_left_out_each_to_its_end():
    """Producers take turns, with three transactions each, over tables that none of them ends with."""
    producers, turns = 40, 30
    sent, aborted, committed, first = [], [], [], {}
    for turn in range(turns):
        for producer in range(producers):
            offset = len(sent)
            aborts = (producer + turn // 10) % 3 == 0
            if turn % 10 < 9:
                first.setdefault(producer, offset)
                sent.append(data_batch(producer, offset))
                committed += [] if aborts else [offset]
                continue
            sent.append(marker(producer, offset, MarkerType.ABORT if aborts else MarkerType.COMMIT))
            begun = first.pop(producer)
            aborted += [(producer, begun, offset)] if aborts else []
    assert len(sent) > decoder_module.SCAN_COUNT_MAX
    for size in (97, decoder_module.SCAN_COUNT_MAX):
        decoder = decoder_of_tables(size, ["offset"])
        found = [*decoder.feed(b"".join(sent), 0, ENDLESS, aborted), *decoder.flush()]
        assert [r["offset"] for r in rows_of(found)] == committed


def test_the_end_of_an_aborted_transaction_drops_nothing_of_its_neighbours():
    """Its batches lie in the headers read before, its marker among those of another producer."""
    data = data_batch(5, 0) + data_batch(6, 1) + data_batch(6, 2) + marker(5, 3, MarkerType.ABORT)
    data += marker(6, 4, MarkerType.COMMIT)
    decoder = decoder_of_tables(2, ["offset"])
    found = [*decoder.feed(data, 0, ENDLESS, [(5, 0)]), *decoder.flush()]
    assert [r["offset"] for r in rows_of(found)] == [1, 2]


def test_of_two_aborted_transactions_of_one_producer_neither_is_seen():
    data = data_batch(1, 0) + marker(1, 1, MarkerType.ABORT) + data_batch(1, 2)
    data += marker(1, 3, MarkerType.ABORT) + data_batch(1, 4) + marker(1, 5, MarkerType.COMMIT)
    assert [r["offset"] for r in decoded(data, 0, ENDLESS, [(1, 0), (1, 2)], columns=["offset"])] == [4]


def test_a_packed_marker_ends_its_transaction():
    """Nobody compresses markers; a producer id is all the same of another transaction behind one."""
    data = data_batch(1, 0) + packed(marker(1, 1, MarkerType.ABORT)) + data_batch(1, 2)
    data += data_batch(2, 3) + packed(marker(2, 4, MarkerType.COMMIT)) + data_batch(2, 5)
    assert [r["offset"] for r in decoded(data, 0, ENDLESS, [(1, 0), (2, 3)], columns=["offset"])] == [2]


def test_control_batches_of_unknown_kinds_are_passed_over():
    unknown = bytearray(marker(1, 1, MarkerType.ABORT))
    at = HEADER.size + 5  # behind length, attributes, timestamp, offset and the key's size
    assert struct.unpack_from(">hh", unknown, at) == (0, 0)
    struct.pack_into(">hh", unknown, at, 0, 6)
    data = data_batch(1, 0) + resealed(unknown) + data_batch(1, 2) + marker(1, 3, MarkerType.ABORT)
    assert decoded(data, 0, ENDLESS, [(1, 0)]) == []


# --- what is not right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [CRC_START, HEADER.size, HEADER.size + 9, -1])
def test_a_flipped_bit_is_found_and_named(at):
    data = bytearray(encode_batch([Record(0, 1, b"k", b"v")] * 3, base_offset=40))
    data[at] ^= 4
    with pytest.raises(DamageError, match=r"t-3: the CRC of the batch at offset 40 is wrong"):
        decoded(bytes(data))


def test_what_is_no_header_is_named_with_its_place():
    good = encode_batch([Record(0, 1, b"k", b"v")] * 3)
    with pytest.raises(
        DamageError,
        match=rf"t-3 after offset 2: the bytes at position {len(good)} of the data are not the header",
    ):
        decoded(good + bytes(100))


def test_an_unknown_codec_is_named():
    with pytest.raises(DamageError, match="batch at offset 0 has the unknown compression codec 7"):
        decoded(rewritten(encode_batch([Record(0, 1, b"k", b"v")]), attributes=7))


@pytest.mark.extended
def test_a_bomb_is_not_unpacked():
    body = encode_batch([Record(0, 1, None, bytes(70 << 20))], codec=Codec.ZSTD)
    with pytest.raises(DamageError, match="decompress to more than"):
        decoded(body)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "more records than it has bytes"),
        (b"\x80" * 12, "varint does not end"),
        (b"\x00", "longer than"),
        (b"\x64\x00\x00\x00\x01\x01\x00", "longer than"),
        (b"\x0c\x00\x00\x00\x7e\x01\x00", "longer than"),  # a key of 63 bytes
        (b"\x0c\x00\x00\x02\x01\x01\x00", "do not increase"),  # an offset behind the batch's last
        (b"\x0c\x00\x00\x01\x01\x01\x00", "do not increase"),  # an offset before its first
        (b"\x0c\x00\x00\x00\x01\x01\x7e", "more headers than it has bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "more headers than it has bytes"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "header without a name"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "bytes after the last field"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "bytes after the last field"),
    ],
)
def test_records_that_are_not_what_they_claim_are_refused(body, wrong):
    batch = encode_batch([Record(0, 1, None, None)])
    header = read_header(batch)._replace(batch_length=HEADER.size - 12 + len(body))
    with pytest.raises(DamageError, match=rf"t-3: the batch at offset 0 is not valid: .*({wrong})"):
        decoded(resealed(HEADER.pack(*header) + body))


def same_or_corrupt(data):
    """Whatever the bytes are, it ends, with rows that were there or with a clean error."""
    for columns in (ALL, ["offset"], ["timestamp"], ["key"]):
        try:
            decoded(data, columns=columns, check_crc=False, rows_max=7, bytes_max=1 << 12)
        except DamageError as error:
            assert "t-3" in str(error)  # noqa: PT017 -- it may raise or not
        except UsageError as error:
            # A time that a timestamp of Spark cannot hold. Its bytes are valid.
            assert "timestamp" in columns
            assert "t-3 has a time outside of the range" in str(error)  # noqa: PT017 -- as above


@pytest.mark.extended
@settings(max_examples=examples(75), deadline=None)
@given(logs(), st.data())
def test_mutated_batches_crash_nothing(log, data):
    batches = bytearray(log[0])
    for _ in range(data.draw(st.integers(1, 5))):
        batches[data.draw(st.integers(0, len(batches) - 1))] = data.draw(st.integers(0, 255))
    same_or_corrupt(bytes(batches))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 40), st.integers(0, 40))
def test_random_records_crash_nothing(body, count, last):
    header = read_header(encode_batch([Record(0, 1, None, None)]))
    header = header._replace(
        batch_length=HEADER.size - 12 + len(body), record_count=count, last_offset_delta=last
    )
    same_or_corrupt(resealed(HEADER.pack(*header) + body))
    same_or_corrupt(body)


@pytest.mark.extended
@pytest.mark.parametrize("count", [600, pytest.param(6000, marks=pytest.mark.night)])
def test_nothing_is_read_or_written_outside_of_what_was_given(count):
    """In a process of its own: behind the batches, and behind each buffer that is filled, lies memory that kills."""
    script = Path(__file__).with_name("guarded_decoding.py")
    done = subprocess.run(
        [sys.executable, script, str(count)], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    assert int(done.stdout) > count * 2 / 3  # so many were damaged in ways that the decoder has found


def broken_record(batch, number, change):
    """The batch, without compression, with a change of one record; its size stays. The CRC is right."""
    header = read_header(batch)
    data = bytearray(batch)
    begin, _ = list(record_ranges(bytes(batch[HEADER.size :]), header.record_count))[number]
    change(data, HEADER.size + begin)
    return resealed(bytes(data))


def long_value(data, begin):
    data[begin + 4] = 0x7E  # the length of the value, after a null key


BAD = {
    "a value past the end": lambda batch, number: broken_record(batch, number, long_value),
    "bytes that are no records": lambda batch, _number: resealed(
        batch[: HEADER.size] + b"\xff" * (len(batch) - HEADER.size)
    ),
    "no zstd": lambda batch, _number: rewritten(batch, attributes=4),
    "an unknown codec": lambda batch, _number: rewritten(batch, attributes=7),
    "a count that is impossible": lambda batch, _number: rewritten(
        batch, record_count=10**6, last_offset_delta=10**6 - 1
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("rows_max", [3, 1000])
@pytest.mark.parametrize("name", BAD)
def test_what_a_producer_wrote_badly_is_skipped_and_counted(name, rows_max, codec):
    """The records before the one that cannot be decoded are returned, whatever the size of the Arrow batches."""
    good = [
        encode_batch([Record(0, n, b"key", b"v%d" % n)] * 5, base_offset=base, codec=codec)
        for n, base in ((1, 0), (2, 20))
    ]
    poisoned = encode_batch([Record(0, 9, None, b"x%d" % n) for n in range(10)], base_offset=5)
    bad = BAD[name](poisoned, 7)
    told = []
    found = decoded(good[0] + bad + good[1], rows_max=rows_max, skipped=told.append)
    kept = 7 if name == "a value past the end" else 0
    expected = decoded(good[0] + poisoned + good[1])
    assert found == [row for row in expected if not 5 + kept <= row["offset"] < 15]
    [message] = told
    assert "the batch at offset 5" in message
    assert (
        f"{read_header(bad).record_count - kept} of its {read_header(bad).record_count} records are skipped"
        in message
    )
    with pytest.raises(
        DamageError, match="The CRC of the batch is right, so the producer wrote the batch in this form"
    ):
        decoded(good[0] + bad + good[1])


def test_a_damaged_batch_is_not_skipped():
    batch = bytearray(encode_batch([Record(0, 1, None, b"v")] * 3))
    batch[-3] ^= 0x40
    for check_crc in (True, False):
        with pytest.raises(DamageError, match="CRC"):
            decoded(bytes(batch), check_crc=check_crc, skipped=lambda _message: pytest.fail("skipped"))


def test_no_part_of_a_record_that_is_skipped_stays_in_the_columns():
    """The null key of the record that cannot be decoded is not the key of the record that takes its row."""
    first = encode_batch([Record(0, 1, b"key", b"v")] * 9)
    bad = broken_record(encode_batch([Record(0, 9, None, b"x")] * 4, base_offset=9), 2, long_value)
    last = encode_batch([Record(0, 1, b"key", b"v")] * 4, base_offset=13)
    decoder = OwnDecoder("t", 3, ALL, skipped=lambda _message: None)
    batches = [*decoder.feed(first, 0, ENDLESS), *decoder.feed(bad + last, 0, ENDLESS), *decoder.flush()]
    assert [row["key"] for row in rows_of(batches)] == [b"key"] * 9 + [None] * 2 + [b"key"] * 4
