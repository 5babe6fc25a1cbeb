"""Damaged, lost and deleted objects: a read is right, or it names what is wrong."""

import json
import logging
import uuid
from dataclasses import replace

import pytest
from crc32c import crc32c

from stablelog.batch.header import HEADER, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.env.objects.opening import open_store
from stablelog.errors import DamageError, DataLossError, StablelogError, UnavailableError
from stablelog.spark import count
from stablelog.spark.objects.download import ranges_of
from stablelog.spark.objects.object_spans import log_edges
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.spark.objects.whole_batches import WholeBatches, batches_of
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.planning import ObjectExtent, TaskLimits
from stablelog.spark.schema import Columns, default_schema
from stablelog.spark.source.object_log import ObjectLog
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.readable_ranges import batch_parts
from stablelog.spark.source.reader import StablelogReader
from stablelog.spark.source.tiered_log import TieredLog
from stablelog.testing.s3 import S3Fault
from stablelog.tier.chain import Chain, claim_epoch, same_payload
from stablelog.tier.cut_points import cut_points
from stablelog.tier.manifest import encode_manifest
from stablelog.tier.pins import decode_pin
from stablelog.tier.prefix import Prefix
from tests.spark.objects.stored import in_s3
from tests.spark.reading import rows, tasks

pytestmark = pytest.mark.xdist_group("objects")


@pytest.fixture(params=["plain", "ordered"])
def topic(request):
    return request.param


@pytest.fixture
def s3(stored):
    """A copy of the store, which tests may damage, and the options of a read."""
    opened_store.cache_clear()
    with in_s3(stored.url) as (server, options):
        yield server, options


def log_key(s3, topic, place=0):
    return sorted(key for key in s3.objects if f"/t.{topic}/" in key and key.endswith(".log"))[place]


def flipped(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def starts(content):
    return [position for position, _ in headers_in(content)]


def test_a_changed_record_is_named(s3, topic):
    server, options = s3
    key = log_key(server, topic, 1)
    content = server.objects[key]
    for position in starts(content):  # whichever of them are read
        content = flipped(content, position + 62)
    server.objects[key] = content
    with pytest.raises(DamageError, match="CRC"):
        rows({**options, "subscribe": topic}, "offset")


def test_a_changed_base_offset_is_found_by_the_crc_of_the_headers(s3, topic):
    server, options = s3
    key = log_key(server, topic, 1)
    content = server.objects[key]
    server.objects[key] = flipped(content, starts(content)[1] + 7)
    with pytest.raises(
        DamageError, match=r"batch headers in the object|do not match the CRC in the manifest"
    ) as error:
        rows({**options, "subscribe": topic}, "offset")
    assert key.removeprefix("prefix/") in str(error.value)


def test_no_batch_is_used_before_the_proof_of_the_headers_of_its_part(s3):
    server, options = s3
    key = log_key(server, "large", 0)
    content = server.objects[key]
    server.objects[key] = flipped(content, starts(content)[-1] + 7)
    store = open_store(options["path"], allow_http=True, options=server.options)
    (partition,) = Prefix(store).partitions("large")
    segment = Prefix(store).last_manifest(partition).segments[0]
    edges = log_edges(segment, cut_points(segment))
    extent = ObjectExtent(segment.log_key(partition), tuple(edges))
    parts = [one.place for one in ranges_of(extent)]
    assert len(parts) > 1
    found = batches_of(store, [extent])
    seen = []
    with pytest.raises(DamageError, match=f"from byte {parts[-1].start}: the batch headers in the object"):
        seen.extend(part for part, _ in found)
    assert set(seen) == set(parts[:-1])


@pytest.mark.extended
@pytest.mark.parametrize("begins_at_cut", [False, True])
def test_each_stretch_of_a_log_file_is_proven_alone(s3, begins_at_cut):
    server, options = s3
    given = {**options, "subscribe": "large", "failOnDataLoss": "true"}
    planned = tasks(given, TaskLimits(target_size=10 << 20))
    extents = [extent for pieces in planned for piece in pieces for extent in piece.stored.extents]
    assert [extent.edges[0].position > 0 for extent in extents] == [False, True] * (len(extents) // 2)
    whole = [row for pieces in planned for row in rows(given, "offset", planned=[pieces])]
    assert whole == [(offset,) for offset in range(len(whole))]
    damaged = next(one for one in extents if (one.edges[0].position > 0) == begins_at_cut)
    key = f"prefix/{damaged.key}"
    content = server.objects[key]
    inside = [at for at in starts(content) if damaged.edges[0].position < at < damaged.edges[-1].position]
    server.objects[key] = flipped(content, inside[3] + 7)
    for pieces in planned:
        touched = damaged in [extent for piece in pieces for extent in piece.stored.extents]
        if touched:
            with pytest.raises(DamageError, match="batch headers in the object"):
                rows(given, "offset", planned=[pieces])
        else:
            rows(given, "offset", planned=[pieces])


@pytest.mark.parametrize("size", [0, 40, 1000])
def test_a_truncated_object_is_named(s3, topic, size):
    server, options = s3
    key = log_key(server, topic, 1)
    content = server.objects[key]
    server.objects[key] = content[: min(size, len(content) - 1)]
    with pytest.raises(DamageError, match=key.removeprefix("prefix/")):
        rows({**options, "subscribe": topic}, "offset")


def test_a_missing_object_that_the_manifest_names_is_damage(s3, topic):
    server, options = s3
    key = log_key(server, topic, 1)
    del server.objects[key]
    with pytest.raises(DamageError, match="the last manifest names it: restore the object"):
        rows({**options, "subscribe": topic}, "offset")


def third_end(server, options, topic):
    """The end offset of the third segment of a topic in the store."""
    prefix = Prefix(open_store(options["path"], allow_http=True, options=server.options))
    return prefix.last_manifest(prefix.partitions(topic)[0]).segments[2].end_offset


def delete_up_to(server, options, topic, segment_count):
    """Do what a broker does that deletes segments although a reader needs them. Return the new log start offset."""
    store = open_store(options["path"], allow_http=True, options=server.options)
    prefix = Prefix(store)
    (partition,) = prefix.partitions(topic)
    manifest = prefix.last_manifest(partition)
    nonce = uuid.uuid4().bytes
    epoch = prefix.run_steps(claim_epoch(nonce))
    chain = Chain(partition, epoch, nonce)
    prefix.run_steps(chain.take_over(same_payload))
    gone = manifest.segments[:segment_count]
    marked = manifest.with_log_start(gone[-1].end_offset, 0, 0)
    prefix.run_steps(chain.publish(encode_manifest(marked, 0)))
    for segment in gone:
        for kind in ("log", "indexes"):
            store.delete(partition.segment_key(segment.base_offset, segment.segment_id, kind))
    return marked.log_start


def test_what_was_deleted_while_a_query_ran_is_named_exactly(s3, topic):
    server, options = s3
    given = {**options, "subscribe": topic}
    whole = rows(given, "offset")
    planned = tasks(given)
    log_start = delete_up_to(server, options, topic, 3)
    with pytest.raises(
        DataLossError, match=f"offsets 0 to {log_start - 1} of {topic}-0 were deleted"
    ) as error:
        rows(given, "offset", planned=planned)
    assert f"begins at offset {log_start} now" in str(error.value)
    found = rows({**given, "failOnDataLoss": "false"}, "offset", planned=planned)
    assert rows(given, "offset") == found, "a new plan begins at the new log start"
    left = [row for row in whole if row[0] >= log_start]
    # In commit order, a transaction that has lost its first records is left out whole.
    assert found == left if topic == "plain" else set(found) < set(left)


def test_a_transaction_that_loses_its_first_records_while_it_is_read_is_named(s3):
    server, options = s3
    given = {**options, "subscribe": "ordered"}
    whole = rows(given, "offset")
    start = third_end(server, options, "ordered") + 1
    ((piece,),) = tasks({**given, "startingOffsets": json.dumps({"ordered": {"0": start}})})
    planned = [(piece,)]
    assert piece.stored.segments[0].base_offset < piece.start
    log_start = delete_up_to(server, options, "ordered", 3)
    assert log_start <= piece.start
    with pytest.raises(DataLossError, match=f"have transactions that began before offset {log_start}"):
        rows(given, "offset", planned=planned)
    found = rows({**given, "failOnDataLoss": "false"}, "offset", planned=planned)
    assert set(found) < {row for row in whole if row[0] >= piece.start}


def test_a_read_with_a_broker_asks_the_broker_for_deleted_objects(stored, s3, topic):
    server, options = s3
    given = {**options, "subscribe": topic, "kafka.bootstrap.servers": stored.broker.bootstrap}
    planned = tasks(given)
    delete_up_to(server, options, topic, 3)
    assert rows(given, "offset", "value", planned=planned) == stored.consumed(topic)


@pytest.mark.extended
def test_a_plan_needs_one_list_and_one_manifest_and_no_index(s3):
    server, options = s3
    planned = tasks({**options, "subscribe": "large"})
    keys = {(kind, key.removeprefix("prefix/")): number for (kind, key), number in server.keys.items()}
    partition = [one for one in keys if "/manifest" in one[1] or "/part" in one[1]]
    assert [one for one in partition if one[0] == "get"] == [one for one in partition if one[0] != "list"]
    assert sum(keys[one] for one in partition if one[0] == "get") == 1
    assert sum(number for (kind, key), number in keys.items() if key.endswith((".indexes", ".log"))) == 0
    assert sum(number for (kind, key), number in keys.items() if "/pins/" in key and kind == "put") == 1
    server.keys.clear()
    assert len(rows({**options, "subscribe": "large"}, "offset", planned=planned)) > 5000
    size = sum(
        extent.edges[-1].position - extent.edges[0].position
        for pieces in planned
        for piece in pieces
        for extent in piece.stored.extents
    )
    gets = sum(number for (kind, _), number in server.keys.items() if kind == "get")
    assert size / (10 << 20) <= gets <= size / (8 << 20) + sum(map(len, planned)) * 2
    assert {kind for kind, _ in server.keys} == {"get"}
    server.keys.clear()
    assert count({**options, "subscribe": "large"}) > 5000
    assert not [key for _, key in server.keys if key.endswith((".indexes", ".log"))]


def test_a_plan_reads_the_transaction_index_of_each_segment_with_aborts(s3):
    server, options = s3
    tasks({**options, "subscribe": "plain"})
    prefix = Prefix(open_store(options["path"], allow_http=True, options=server.options))
    (partition,) = prefix.partitions("plain")
    manifest = prefix.last_manifest(partition)
    with_aborts = [segment for segment in manifest.segments if segment.may_have_aborts]
    read = [key for (kind, key) in server.keys if key.endswith(".indexes")]
    assert 0 < len(read) <= len(with_aborts)
    assert all(server.keys["get", key] == 1 for key in read)


def test_a_pin_is_created_before_the_manifest_is_read_and_says_what_it_keeps(s3, topic):
    server, options = s3
    tasks({**options, "subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 5}})})
    (key,) = [key for key in server.objects if "/pins/" in key]
    pin = decode_pin(server.objects[key])
    assert pin.start_offset == 0, "in commit order, what was committed later may have begun earlier"
    assert pin.end_offset > 10**12
    asked = [(kind, key) for (kind, key) in server.keys if f"/t.{topic}/" in key or kind == "list"]
    puts = [place for place, (kind, _) in enumerate(asked) if kind == "put"]
    gets = [place for place, (kind, key) in enumerate(asked) if kind == "get" and "/manifest/" in key]
    assert max(puts) < min(gets)


def test_a_task_renews_a_pin_that_is_old_once_for_all_tasks(s3):
    server, options = s3
    given = {**options, "subscribe": "ordered,plain"}
    planned = tasks(given)

    def aged(piece, age_s):
        pins = piece.stored.pins
        return replace(
            piece, stored=replace(piece.stored, pins=replace(pins, created_s=pins.created_s - age_s))
        )

    for age_s, pin_count in ((100, 1), (1000, 2), (1000, 2), (1900, 3)):
        ((piece, _),) = planned
        rows(given, "offset", planned=[(aged(piece, age_s),)])
        for topic in ("plain", "ordered"):
            pins = [key for key in server.objects if "/pins/" in key and f"/t.{topic}/" in key]
            assert len(pins) == pin_count, "the task of one partition renews the pins of all"


def test_a_count_leaves_no_pin(s3):
    server, options = s3
    count({**options, "subscribe": "plain"})
    assert not [key for key in server.objects if "/pins/" in key]


def test_a_user_who_may_not_write_reads_without_a_pin_and_is_told(s3, caplog):
    server, options = s3
    server.fail(S3Fault("put", "/pins/", status=403, count=100))
    with caplog.at_level(logging.WARNING):
        found = rows({**options, "subscribe": "plain,ordered"}, "offset")
    assert len(found) > 40
    assert len([line for line in caplog.messages if "goes on without a pin" in line]) == 1


@pytest.mark.extended
def test_a_slow_down_of_the_store_is_waited_out(s3, topic):
    server, options = s3
    wanted = rows({**options, "subscribe": topic}, "offset", "value")
    server.fail(S3Fault("get", "", status=503, count=3))
    server.fail(S3Fault("get", ".log", cut_size=100, count=2))
    server.fail(S3Fault("list", "", status=503, count=2))
    assert rows({**options, "subscribe": topic}, "offset", "value") == wanted


def test_a_url_without_tiered_storage_is_refused_and_nothing_is_written(tmp_path):
    other = tmp_path / "other"
    (other / "a").mkdir(parents=True)
    (other / "a" / "b").write_bytes(b"")
    with pytest.raises(StablelogError, match="holds no tiered storage of stablelog"):
        tasks({"path": f"file://{other}"})
    assert sorted(other.rglob("*")) == [other / "a", other / "a" / "b"]


def test_cut_points_without_their_crcs_are_read_without_the_proof(stored):
    segment = replace(stored.manifest("large").segments[0], header_crcs=b"")
    assert {point.header_crc for point in cut_points(segment)} == {None}
    with pytest.raises(DamageError, match="cut points"):
        cut_points(replace(segment, cut_points=segment.cut_points * 2))


def test_a_topic_that_was_deleted_while_a_query_ran_is_named(s3, topic):
    server, options = s3
    given = {**options, "subscribe": topic}
    planned = tasks(given)
    prefix = Prefix(open_store(options["path"], allow_http=True, options=server.options))
    (partition,) = prefix.partitions(topic)
    server.objects[f"prefix/{partition.deleted_key}"] = b""
    for key in [key for key in server.objects if key.endswith((".log", ".indexes"))]:
        del server.objects[key]
    with pytest.raises(
        DataLossError, match=f"{topic} was deleted from s3://bucket/prefix while the query read it"
    ):
        rows(given, "offset", planned=planned)
    assert rows({**given, "failOnDataLoss": "false"}, "offset", planned=planned) == []


def test_a_plan_does_not_read_another_topic_of_the_same_name(s3, topic):
    _, options = s3
    options = read_options({**options, "subscribe": topic}, BATCH)
    log = ObjectLog(options)
    ((place, topic_id),) = log.partitions().items()
    assert batch_parts(options, log, [Range(place, 0, 10)], {topic: topic_id}) == [Range(place, 0, 10)]
    with pytest.raises(DataLossError, match=f"{topic} was deleted and created again"):
        batch_parts(options, log, [Range(place, 0, 10)], {topic: "0" * 32})


def test_a_stream_that_was_started_again_reads_all_partitions_of_a_topic_together(s3):
    server, options = s3
    options = read_options({**options, "subscribe": "plain"}, BATCH)
    log = ObjectLog(options)
    server.counts.clear()
    log.latest([("plain", 0)])
    counts = dict(server.counts)
    log = ObjectLog(options)
    server.counts.clear()
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition plain-1 in s3://bucket/prefix"):
        log.latest([("plain", 0), ("plain", 1), ("plain", 2)])
    assert server.counts == counts, "the topic was listed, or a manifest was read, more than once"


def test_a_range_whose_transactions_may_still_be_aborted_is_refused(s3):
    _, options = s3
    log = ObjectLog(read_options({**options, "subscribe": "plain"}, BATCH))
    place = "plain", 0
    log.partitions()
    stored = log.stored_partitions()[0]
    segments = [
        replace(one, summary=replace(one.summary, stable_offset=3)) for one in stored.manifest.segments
    ]
    early = TieredPartition(
        opened_store(options["path"], read_options(options, BATCH).store),
        stored.partition,
        stored.manifest._replace(segments=tuple(segments)),
        committed=True,
    )
    assert early.end_offset == 3
    with pytest.raises(
        UnavailableError, match="does not have the ends of all transactions of plain-0 that began before"
    ):
        early.span(0, stored.manifest.end_offset).piece()
    assert log.latest([place])[place] > 3


def test_only_the_partitions_that_are_read_are_pinned(s3):
    server, options = s3
    tasks({**options, "subscribe": "plain,ordered", "partitions": "5"})
    assert [key for key in server.objects if "/pins/" in key and "/0/pins/" not in key] == []
    before = {key for key in server.objects if "/pins/" in key}
    late = read_options({**options, "subscribe": "plain", "startingTimestamp": str(10**14)}, BATCH)
    with pytest.raises(UnavailableError, match="no record of time"):
        StablelogReader(late, Columns(default_schema(include_headers=False))).partitions()
    count({**options, "subscribe": "plain"})
    assert {key for key in server.objects if "/pins/" in key} == before


def test_a_task_at_the_end_of_the_log_sends_no_request_to_the_store(stored, s3, topic):
    server, options = s3
    given = {**options, "subscribe": topic, "kafka.bootstrap.servers": stored.broker.bootstrap}
    log = TieredLog(read_options(given, BATCH))
    try:
        ((place, topic_id),) = log.partitions().items()
        end, local = log.latest([place])[place], stored.manifest(topic).end_offset
        server.keys.clear()
        assert list(log.spans([Range(place, local, end)], {topic: topic_id}))
        assert not server.keys
        for _ in range(3):
            assert list(log.spans([Range(place, 0, end)], {topic: topic_id}))
        assert [kind for kind, key in server.keys.elements() if "/manifest" in key or kind == "list"] == [
            "list",
            "get",
        ]
    finally:
        log.close()


def test_batches_of_any_size_are_divided_at_any_place():
    batch_sizes = (61, 100, 5_000)
    content = b"".join(
        encode_batch([Record(number, 0, None, bytes(size - 61))] if size > 61 else [], base_offset=number)
        for number, size in enumerate(batch_sizes * 3)
        if size > 61
    )
    headers = b"".join(content[at : at + HEADER.size] for at in starts(content))
    for size in (1, 7, 60, 61, 62, 200, 5_000, len(content)):
        whole = WholeBatches(len(content), 0, 100)
        found = b""
        for at in range(0, len(content), size):
            for batches in whole.batches_in(content[at : at + size]):
                found += bytes(batches)
        assert whole.is_complete
        assert found == content
        assert whole.header_crc == crc32c(headers)


def test_a_batch_that_exceeds_its_part_is_refused_before_it_is_gathered():
    content = bytearray(encode_batch([Record(0, 0, None, bytes(1_000))]))
    content[8:12] = (1 << 30).to_bytes(4, "big")
    whole = WholeBatches(len(content), 0, 100)
    with pytest.raises(DamageError, match="a batch has 1073741836 bytes"):
        list(whole.batches_in(content))
