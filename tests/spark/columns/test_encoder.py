"""What the encoder writes, `batch.records` and the decoder read back; rows go where Kafka's own producer sends them."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stablelog.batch.header import Codec, crc_holds, read_header
from stablelog.batch.records import decode_records
from stablelog.batch.stamping import stamp_producer
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import UsageError
from stablelog.spark.columns.encoder import TYPES, Encoder
from stablelog.spark.kernels.encode import hash_key
from tests.client.hashes import MURMUR2
from tests.clients.drivers import unique
from tests.scale import examples
from tests.spark.columns.own_decoder import OwnDecoder

COUNTS = {"a": 3, "b": 1, "c": 40}
HEADERS = TYPES["headers"]

payloads = st.none() | st.binary(max_size=20) | st.integers(60, 300).map(lambda n: b"x" * n)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)}),
    max_size=3,
)


@st.composite
def row_batches(draw):
    rows = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "key": payloads,
                    "value": payloads,
                    "headers": headers,
                    "topic": st.sampled_from(["a", "b", "c"]),
                    "partition": st.none() | st.just(0),
                }
            ),
            max_size=30,
        )
    )
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(TYPES.items()))
    start = draw(st.integers(0, len(rows)))
    return batch.slice(start), rows[start:]  # arrays that do not begin at their buffers' beginning


def records_of(encoded):
    found = []
    for topic, partition, batch, count in encoded:
        stamp_producer(batch, 7, 2, 5, transactional=True)
        header = read_header(batch)
        assert crc_holds(batch, 0, header)
        assert (header.size, header.base_offset, header.record_count) == (len(batch), 0, count)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
        assert header.is_transactional
        assert header.last_offset_delta == count - 1
        records = decode_records(batch)
        assert [record.offset for record in records] == list(range(count))
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        found += [(topic, partition, record) for record in records]
    return found


def as_rows(found):
    return [(topic, record.key, record.value, list(record.headers)) for topic, _, record in found]


@pytest.mark.extended
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(row_batches(), min_size=1, max_size=3),
    st.sampled_from(Codec),
    st.integers(62, 2000),
    st.booleans(),
)
def test_each_row_becomes_one_record(batches, codec, batch_bytes_max, lingers):
    encoder = Encoder(codec.name.lower(), batch_bytes_max, lingers=lingers, message_bytes_max=3000)
    encoded = []
    for n, (batch, _) in enumerate(batches):
        encoded += encoder.encode(batch, partition_counts=COUNTS, timestamp_ms=1000 - n)
    if not lingers:
        assert not list(encoder.flush())
    found = records_of(encoded + list(encoder.flush()))
    for name in COUNTS:
        wanted = [
            (row["topic"], row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or ()])
            for _, rows in batches
            for row in rows
            if row["topic"] == name
        ]
        got = [row for row in as_rows(found) if row[0] == name]
        assert sorted(map(repr, got)) == sorted(map(repr, wanted))
    for topic, partition, record in found:
        assert 0 <= partition < COUNTS[topic]
        assert 998 <= record.timestamp_ms <= 1000
    for topic, partition in {(t, p) for t, p, _ in found}:  # rows of one key stay in order
        keyed = [r for t, p, r in found if (t, p) == (topic, partition)]
        for key in {r.key for r in keyed} - {None}:
            wanted = [
                row["value"]
                for _, rows in batches
                for row in rows
                if (row["topic"], row["key"], row["partition"]) == (topic, key, None)
            ]
            if all(row["partition"] is None for _, rows in batches for row in rows):
                assert [r.value for r in keyed if r.key == key] == wanted


def test_what_is_encoded_is_decoded():
    rows = {"key": [b"k", None, b""], "value": [None, b"v", b""]}
    encoder = Encoder("zstd")
    [one] = encoder.encode(
        pa.RecordBatch.from_pydict(rows), topic="b", partition_counts=COUNTS, timestamp_ms=5
    )
    stamp_producer(one.batch, -1, -1, -1, transactional=False)
    decoder = OwnDecoder("b", 0, ["key", "value", "timestamp"])
    [found] = [*decoder.feed(one.batch, 0, 9), *decoder.flush()]
    assert found.select(["key", "value"]).to_pydict() == rows
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [5000] * 3


@pytest.mark.parametrize(("key", "wanted"), MURMUR2)
def test_a_key_has_the_hash_that_kafka_gives_it(key, wanted):
    assert hash_key(pa.py_buffer(key).address, len(key)) == wanted & 0xFFFFFFFF


def test_a_key_goes_to_the_partition_of_its_hash_and_the_column_partition_wins():
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"21", b"21"]), pa.array([b"x", b"y"]), pa.array([None, 7], pa.int32())],
        names=["key", "value", "partition"],
    )
    found = records_of(Encoder().encode(batch, topic="c", partition_counts=COUNTS))
    assert [(p, r.value) for _, p, r in found] == [(7, b"y"), ((-973932308 & 0x7FFFFFFF) % 40, b"x")]


def test_rows_without_a_key_fill_one_batch_after_another():
    batch = pa.RecordBatch.from_arrays([pa.array([b"x" * 100] * 100)], names=["value"])
    encoder = Encoder(batch_bytes_max=1100, first_partition=2)
    found = list(encoder.encode(batch, topic="a", partition_counts=COUNTS))
    assert [one.partition for one in found] == [2, 0, 1] * 4
    assert [one.record_count for one in found] == [9] * 11 + [1]
    [again] = encoder.encode(batch.slice(0, 1), topic="a", partition_counts=COUNTS)
    assert again.partition == 2


def test_batches_that_linger_get_full():
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"key"] * 4), pa.array([b"x" * 100] * 4)], names=["key", "value"]
    )
    encoder = Encoder(batch_bytes_max=1100, lingers=True)
    encoded = [one for _ in range(5) for one in encoder.encode(batch, topic="a", partition_counts=COUNTS)]
    assert [one.record_count for one in encoded] == [9, 9]
    assert [one.record_count for one in encoder.flush()] == [2]
    assert not list(encoder.flush())


def test_strings_and_large_types_are_taken():
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary(), pa.string_view()):
        batch = pa.RecordBatch.from_arrays([pa.array(["ä", None], pa.string()).cast(kind)], names=["value"])
        found = records_of(Encoder().encode(batch, topic="b", partition_counts=COUNTS))
        assert [r.value for _, _, r in found] == ["ä".encode(), None]
    nulls = pa.RecordBatch.from_arrays(
        [pa.nulls(1), pa.array([b"v"]), pa.nulls(1)], names=["key", "value", "headers"]
    )
    [(_, _, record)] = records_of(Encoder().encode(nulls, topic="b", partition_counts=COUNTS))
    assert (record.key, record.value, record.headers) == (None, b"v", ())


def test_a_partition_count_that_grows_is_followed():
    encoder = Encoder(lingers=True)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"v"]), pa.array([4], pa.int32())], names=["value", "partition"]
    )
    with pytest.raises(UsageError, match="partition says 4, and the topic 'a' has 3 partitions"):
        list(encoder.encode(batch, topic="a", partition_counts={"a": 3}))
    list(encoder.encode(batch, topic="a", partition_counts={"a": 5}))
    assert [(one.partition, one.record_count) for one in encoder.flush()] == [(4, 1)]


def batch_of(**columns):
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


V = pa.array([b"v"])


@pytest.mark.parametrize(
    ("batch", "topic", "wrong"),
    [
        (batch_of(key=V), "a", "they have no column `value`, only the columns key"),
        (batch_of(value=pa.array([1])), "a", "column value is int64"),
        (batch_of(value=V, key=pa.array([1.5])), "a", "column key is double"),
        (batch_of(value=V), None, "the rows have no topic: give the option topic or a column topic"),
        (batch_of(value=V, topic=pa.array([b"\xff"])), None, "column topic is binary"),
        (batch_of(value=V, topic=pa.array([None], pa.string())), None, "column topic is null in a row"),
        (
            batch_of(value=V, topic=pa.array(["nowhere"])),
            None,
            "topic 'nowhere', which a row names in the column `topic`, does not exist",
        ),
        (batch_of(value=V, partition=pa.array([1 << 40])), "a", "column partition is int64, not int32"),
        (
            batch_of(value=V, partition=pa.array([-1], pa.int32())),
            "a",
            "partition says -1, and the topic 'a' has 3",
        ),
        (batch_of(value=V, headers=pa.array([b"h"])), "a", "column headers is binary"),
        (batch_of(value=V, headers=pa.array([["h"]])), "a", "column headers is list"),
        (batch_of(value=V, headers=pa.array([[None]], HEADERS)), "a", "column headers contains a null"),
        (
            batch_of(value=V, headers=pa.array([[{"key": None}]], HEADERS)),
            "a",
            "header without a key in row 0",
        ),
        (
            batch_of(value=pa.array([b"x" * 2000])),
            "a",
            "row 0 of its batch makes a record of 20.. bytes, and a request holds 939: make the row smaller",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_by_column(batch, topic, wrong):
    with pytest.raises(UsageError, match=wrong):
        list(Encoder(message_bytes_max=1000).encode(batch, topic=topic, partition_counts=COUNTS))


def test_the_size_of_batches_is_checked():
    with pytest.raises(UsageError, match="batches of 5 bytes"):
        Encoder(batch_bytes_max=5)


def test_a_record_that_is_larger_than_a_batch_should_be_comes_alone():
    values = pa.array([b"a", b"x" * 5000, b"b"])
    encoded = list(
        Encoder(batch_bytes_max=1000, message_bytes_max=6000).encode(
            batch_of(value=values), topic="b", partition_counts=COUNTS
        )
    )
    assert [one.record_count for one in encoded] == [1, 1, 1]
    assert pc.binary_length(values).to_pylist() == [len(r.value) for _, _, r in records_of(encoded)]


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_confluent_kafka_reads_what_was_encoded_and_would_have_sent_it_there(stablelog_broker, codec):
    """librdkafka checks the CRC, unpacks, and finds keys in the partitions where its own murmur2 puts them."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka import Producer as TheirProducer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, count, partitions = unique("encoded"), 500, 3
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    rows = [
        {
            "key": b"k%d" % (n % 40),
            "value": None if n % 9 == 0 else b"%d" % n * 5,
            "headers": [{"key": "n", "value": b"%d" % n}, {"key": "null", "value": None}] if n % 2 else None,
        }
        for n in range(count)
    ]
    batch = pa.RecordBatch.from_pylist(
        rows, schema=pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])
    )
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("encoder"))
        producer.begin()
        for one in Encoder(codec, 3000).encode(batch, topic=topic, partition_counts={topic: partitions}):
            producer.append(one.topic, one.partition, one.batch)
        producer.flush()
        producer.end(commit=True)
        producer.close()
    theirs = TheirProducer({"bootstrap.servers": stablelog_broker.bootstrap, "partitioner": "murmur2_random"})
    places = {}
    for key in {row["key"] for row in rows}:
        theirs.produce(
            topic,
            b"theirs",
            key=key,
            on_delivery=lambda _, sent: places.update({sent.key(): sent.partition()}),
        )
    assert theirs.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": stablelog_broker.bootstrap,
            "group.id": topic,
            "check.crcs": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
    found = []
    while len(found) < count + len(places):
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(message)
    consumer.close()
    ours = [message for message in found if message.value() != b"theirs"]
    assert all(message.partition() == places[message.key()] for message in ours)
    got = sorted((m.key(), m.value() or b"", tuple(m.headers() or ())) for m in ours)
    wanted = [
        (r["key"], r["value"] or b"", tuple((h["key"], h["value"]) for h in r["headers"] or ())) for r in rows
    ]
    assert got == sorted(wanted)
