"""The plan of an append: what is refused, and what an append tells of what it has written."""

import itertools
from dataclasses import replace

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.batch.header import read_header
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError, RefusedError
from stablelog.log.append import PlannedBatch, count_fitting, with_append_time
from stablelog.log.model import Appended, MarkerWrite, Origin
from stablelog.log.partition import Isolation
from tests.log.test_partition import plain
from tests.log.timeline import NOW_MS, Log


def test_markers_are_written_together_as_far_as_a_segment_can_hold_them():
    def planned(*counts):
        found, offset = [], 100
        for count in counts:
            batch = encode_marker(
                Marker(MarkerType.COMMIT, 0),
                base_offset=offset,
                leader_epoch=0,
                producer_id=1,
                producer_epoch=0,
                timestamp_ms=NOW_MS,
                position_count=count,
            )
            found.append(PlannedBatch(read_header(batch), batch[:61], (batch,)))
            offset = found[-1].header.next_offset
        return found

    for batches in (planned(0, 3, 5), planned(2, 3, 5), planned(4)):
        lasts = [one.header.last_offset - 100 for one in batches]
        assert lasts == sorted(lasts)
        for limit in range(lasts[-1] + 2):
            assert count_fitting(batches, limit) == max(1, sum(last <= limit for last in lasts))


def test_a_batch_says_no_more_records_than_it_has_room_for():
    """A record takes 7 bytes at the least. A batch that says more would take offsets that nothing stands at. The header
    is enough to see it.
    """
    log = Log(proves_records=False)
    plain = encode_batch([Record(0, NOW_MS, None, bytes(42))])
    room = (len(plain) - 61) // 7
    assert (len(plain) - 61) % 7 == 0
    for count, is_taken in ((room - 1, True), (room, True), (room + 1, False), (room + 9, False)):
        batch = bytearray(plain)
        batch[23:27], batch[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        if is_taken:
            appended = log.partition.append(bytes(batch), now_ms=NOW_MS)
            assert appended.last_offset - appended.first_offset == count - 1
        else:
            with pytest.raises(RefusedError, match=f"{count} records in {len(plain) - 61} bytes"):
                log.partition.append(bytes(batch), now_ms=NOW_MS)


def test_an_append_tells_where_it_went_and_by_which_time():
    for by_broker, order in itertools.product((False, True), ("offset", "commit")):
        log = Log(message_timestamp_type="LogAppendTime" if by_broker else "CreateTime", order=order)
        log.write("- - -")
        log.partition.deletion.delete_records(1)
        log.now_ms += 9
        time_ms = log.now_ms if by_broker else -1
        assert log.append(1, count=4) == Appended(3, 6, time_ms)
        log.now_ms += 1
        assert log.append(1, count=4, sequence=0) == Appended(3, 6, time_ms, duplicate=True)
        log.append(2, count=2)
        markers = [
            MarkerWrite(1, 0, Marker(MarkerType.COMMIT, 0)),
            MarkerWrite(1, 0, Marker(MarkerType.COMMIT, 0)),
            MarkerWrite(2, 0, Marker(MarkerType.ABORT, 0)),
        ]
        last = (
            9 if order == "offset" else 13
        )  # in commit order, the marker takes an offset for each record, too
        assert log.partition.append_markers(markers, now_ms=log.now_ms) == [
            Appended(9, last, log.now_ms),
            Appended(-1, -1, -1, duplicate=True),
            Appended(last + 1, last + 1, log.now_ms),
        ]
        assert log.partition.end_offset == last + 2
        if order == "offset":
            batch = encode_batch([Record(0, NOW_MS, None, b"x")] * 3, base_offset=20)
            outcome = log.partition.append(batch, now_ms=log.now_ms, origin=Origin.REPLICATION)
            assert outcome == Appended(20, 22, -1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda batch: batch + batch, ErrorCode.invalid_record),
        (lambda batch: (7).to_bytes(8, "big") + batch[8:], ErrorCode.invalid_record),
    ],
)
def test_what_no_client_may_send_is_refused(change, code):
    log = Log()
    with pytest.raises(RefusedError) as caught:
        log.partition.append(change(plain(1, 2)), now_ms=NOW_MS)
    assert caught.value.code is code
    assert log.partition.end_offset == 0


@pytest.mark.parametrize("at", [17, 30, 61, 70])
def test_a_batch_whose_bytes_changed_on_the_way_is_not_written(at):
    log = Log()
    batch = bytearray(plain(1, 2))
    batch[at] ^= 1
    with pytest.raises((DamageError, RefusedError)):
        log.partition.append(bytes(batch), now_ms=NOW_MS)
    assert log.partition.end_offset == 0


def test_a_batch_that_is_too_large_is_refused_by_the_name_of_the_setting():
    log = Log(max_message_bytes=100)
    with pytest.raises(RefusedError, match=r"max\.message\.bytes=100"):
        log.partition.append(plain(1, value=bytes(100)), now_ms=NOW_MS)
    batch = plain(NOW_MS, value=bytes(20))
    log.partition.config = replace(log.config, max_message_bytes=len(batch) - 1)
    with pytest.raises(RefusedError) as caught:
        log.partition.append(batch, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.message_too_large
    log.partition.config = replace(log.config, max_message_bytes=len(batch))
    assert log.partition.append(batch, now_ms=NOW_MS).last_offset == 0


def test_a_time_too_far_from_the_brokers_is_refused_by_the_name_of_the_setting():
    """A record from the future would keep its segment from retention; Kafka's default allows an hour."""
    log = Log(message_timestamp_before_ms_max=1000)
    log.partition.append(plain(NOW_MS - 1000, NOW_MS + 3_600_000), now_ms=NOW_MS)
    log.partition.append(plain(-1), now_ms=NOW_MS)
    for times, setting in (
        ((NOW_MS - 1001, NOW_MS), "before"),
        ((NOW_MS, NOW_MS + 3_600_001), "after"),
    ):
        with pytest.raises(RefusedError, match=rf"message\.timestamp\.{setting}\.max\.ms") as caught:
            log.partition.append(plain(*times), now_ms=NOW_MS)
        assert caught.value.code is ErrorCode.invalid_timestamp
    with pytest.raises(RefusedError, match=r"declares LogAppendTime"):
        log.partition.append(with_append_time(plain(NOW_MS), NOW_MS), now_ms=NOW_MS)
    assert log.partition.end_offset == 3
    by_broker = Log(message_timestamp_type="LogAppendTime", message_timestamp_before_ms_max=0)
    assert by_broker.partition.append(plain(5, 1 << 60), now_ms=NOW_MS).append_time_ms == NOW_MS


def test_the_brokers_time_takes_the_place_of_the_clients_where_the_topic_says_so():
    log = Log(message_timestamp_type="LogAppendTime")
    assert log.partition.append(plain(5, 6), now_ms=NOW_MS).append_time_ms == NOW_MS
    log.sync()
    read = decode_records(log.partition.read(0, 1 << 20, Isolation.READ_COMMITTED).buffers[0])
    assert [record.timestamp_ms for record in read] == [NOW_MS, NOW_MS]
    log.reopen(clean=False)
    assert log.partition.end_offset == 2
