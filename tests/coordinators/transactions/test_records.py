"""Records of the commit log: Kafka's bytes, with fields of our own that Kafka passes over."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i64

from stablelog.coordinators.transactions import records
from stablelog.coordinators.transactions.log_ends import (
    END,
    NO_ENDS,
    OFFSET_UNKNOWN,
    LogEnd,
    LogEnds,
)
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import (
    JointKey,
    TransactionGroupKey,
    TransactionGroupState,
    TransactionKey,
    decode_group,
    decode_transaction,
    encode_group,
    encode_transaction,
    group_key,
    joint_key,
    read_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import JointName

EXAMPLE = TransactionMetadata(
    producer_id=7,
    producer_epoch=4,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_COMMIT,
    partitions=PartitionSet({("orders", 0), ("orders", 2), ("__consumer_offsets", 0)}),
    update_ms=1_700_000_001_000,
    start_ms=1_700_000_000_000,
    previous_producer_id=7,
    last_producer_epoch=3,
    transaction_version=2,
    commit_sequence=12,
    transaction_epoch=3,
)
EXAMPLE_HEX = (
    "0001"  # value version
    "0000000000000007" "0004" "0000ea60" "02"  # producer id, epoch, timeout, state
    "03"  # two topics
    "13" "5f5f636f6e73756d65725f6f666673657473" "02" "00000000" "00"
    "07" "6f7264657273" "03" "00000000" "00000002" "00"
    "0000018bcfe56be8" "0000018bcfe56800"  # last update, start
    "05"  # tagged fields
    "00" "08" "0000000000000007"  # previous producer id
    "02" "02" "0002"  # the client's transaction version
    "904e" "08" "000000000000000c"  # ours: commit sequence
    "914e" "02" "0003"  # ours: last producer epoch
    "924e" "02" "0003"  # ours: the transaction's epoch
)  # fmt: skip
HEAD_HEX = EXAMPLE_HEX[:32]  # up to the state


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPartitions:
    """Kafka's TransactionLogValue, as its own schema has it, read by a codec that is not ours."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    topic: str = field(metadata={"kafka_type": "string"})
    partition_ids: tuple[i32, ...] = field(metadata={"kafka_type": "int32"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaValue:
    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    producer_id: i64 = field(metadata={"kafka_type": "int64"})
    previous_producer_id: i64 = field(metadata={"kafka_type": "int64", "tag": 0}, default=i64(-1))
    next_producer_id: i64 = field(metadata={"kafka_type": "int64", "tag": 1}, default=i64(-1))
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    transaction_timeout_ms: i32 = field(metadata={"kafka_type": "int32"})
    transaction_status: i8 = field(metadata={"kafka_type": "int8"})
    transaction_partitions: tuple[KafkaPartitions, ...] | None
    transaction_last_update_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    transaction_start_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    client_transaction_version: i16 = field(metadata={"kafka_type": "int16", "tag": 2}, default=i16(0))
    next_producer_epoch: i16 = field(metadata={"kafka_type": "int16", "tag": 3}, default=i16(-1))


def varints(content: bytes, position: int) -> Iterator[tuple[int, int]]:
    while True:
        number = shift = 0
        while content[position] & 0x80:
            number |= (content[position] & 0x7F) << shift
            position, shift = position + 1, shift + 7
        number |= content[position] << shift
        position += 1
        yield number, position


def as_kafka_reads_it(txn: TransactionMetadata) -> KafkaValue:
    """What Kafka's generated reader makes of a record: it passes over tags that it does not know."""
    value = encode_transaction(txn)
    times = txn.update_ms.to_bytes(8, "big", signed=True) + txn.start_ms.to_bytes(8, "big", signed=True)
    body_end = value.rindex(times) + len(times)
    count, position = next(varints(value, body_end))
    tags: list[tuple[int, bytes]] = []
    for _ in range(count):
        tag, position = next(varints(value, position))
        size, position = next(varints(value, position))
        tags.append((tag, value[position : position + size]))
        position += size
    assert position == len(value)
    assert [tag for tag, _ in tags] == sorted({tag for tag, _ in tags}), "tags rise"
    known = [(tag, content) for tag, content in tags if tag < 4]
    tail = bytes([len(known)]) + b"".join(bytes([tag, len(content)]) + content for tag, content in known)
    read, size = entity_reader(KafkaValue)(memoryview(value[2:body_end] + tail), 0)
    assert value[:2] == b"\0\1"
    assert size == body_end - 2 + len(tail)
    assert isinstance(read, KafkaValue)
    return read


ids = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**15 - 1)


def log_ends(ends: Mapping[TopicPartition, LogEnd]) -> LogEnds:
    return LogEnds(list(ends), b"".join(END.pack(*end) for end in ends.values()))


@st.composite
def transactions(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(TransactionState))
    partitions = draw(
        st.builds(
            PartitionSet,
            st.frozensets(st.tuples(st.text("añ-_.", min_size=1, max_size=200), st.integers(0, 999))),
        )
    )
    if state is TransactionState.EMPTY:
        partitions = PartitionSet()
    ends = st.builds(LogEnd, st.integers(0, 2**31 - 1), ids)
    return TransactionMetadata(
        producer_id=draw(st.integers(0, 2**63 - 1)),
        producer_epoch=draw(st.integers(0, 2**15 - 1)),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        state=state,
        partitions=partitions,
        update_ms=draw(ids),
        start_ms=draw(ids),
        previous_producer_id=draw(ids),
        last_producer_epoch=draw(epochs),
        next_producer_id=draw(ids),
        next_producer_epoch=draw(epochs),
        transaction_version=draw(st.integers(0, 2)),
        commit_sequence=draw(ids),
        transaction_epoch=draw(epochs),
        ends=log_ends(draw(st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys(partitions, ends))))),
        settled_epoch=draw(st.integers(-1, 2**31 - 1)),
        unknown_tags=draw(st.sampled_from([(), ((17, b"x"), (10_099, b"")), ((99_999, b"yz" * 100),)])),
    )


def test_the_example_of_the_formats_page() -> None:
    assert encode_transaction(EXAMPLE).hex() == EXAMPLE_HEX
    assert decode_transaction(bytes.fromhex(EXAMPLE_HEX)) == EXAMPLE


@pytest.mark.extended
@given(transactions())
def test_writing_gives_bytes_and_reading_gives_the_transaction(txn: TransactionMetadata) -> None:
    assert decode_transaction(encode_transaction(txn)) == txn


@pytest.mark.extended
@given(transactions())
def test_kafka_reads_what_we_write(txn: TransactionMetadata) -> None:
    read = as_kafka_reads_it(txn._replace(unknown_tags=()))

    assert (read.producer_id, read.producer_epoch) == (txn.producer_id, txn.producer_epoch)
    assert (read.previous_producer_id, read.next_producer_id) == (
        txn.previous_producer_id,
        txn.next_producer_id,
    )
    assert (read.next_producer_epoch, read.client_transaction_version) == (
        txn.next_producer_epoch,
        txn.transaction_version,
    )
    assert (read.transaction_timeout_ms, read.transaction_status) == (txn.timeout_ms, txn.state)
    assert (read.transaction_last_update_timestamp_ms, read.transaction_start_timestamp_ms) == (
        txn.update_ms,
        txn.start_ms,
    )
    if txn.state is TransactionState.EMPTY:
        assert read.transaction_partitions is None
    else:  # Kafka does not look whether it is null
        assert read.transaction_partitions is not None
        assert {(p.topic, i) for p in read.transaction_partitions for i in p.partition_ids} == txn.partitions


def test_values_of_version_0_are_read() -> None:
    value = bytes.fromhex(
        "0000" "0000000000000005" "0002" "00002710" "01"
        "00000001" "0001" "74" "00000002" "00000000" "00000003"
        "0000000000000064" "0000000000000032"
    )  # fmt: skip
    txn = decode_transaction(value)

    assert txn == TransactionMetadata(
        5, 2, 10_000, TransactionState.ONGOING, PartitionSet({("t", 0), ("t", 3)}), update_ms=100, start_ms=50
    )
    empty = bytes.fromhex("0000000000000000000500020000271000ffffffff") + b"\xff" * 16
    assert decode_transaction(empty).partitions == PartitionSet()


def test_values_that_kafka_wrote_say_who_may_ask_again() -> None:
    """Kafka keeps no last epoch; in the second dialect it is the one before."""
    kafka = bytes.fromhex("000100000000000000050003000027100401" + "00" * 16 + "0102020002")
    assert decode_transaction(kafka).predecessor == ProducerIdAndEpoch(5, 2)

    for epoch, before in ((1, 0), (2, 1)):
        value = bytes.fromhex(f"00010000000000000005000{epoch}000027100401" + "00" * 16 + "0102020002")
        assert decode_transaction(value).predecessor == ProducerIdAndEpoch(5, before)

    rotated = bytes.fromhex(
        "000100000000000000090000000027100501" + "00" * 16 + "020008000000000000000502020002"
    )
    assert decode_transaction(rotated).predecessor == ProducerIdAndEpoch(5, 32766)

    first_dialect = bytes.fromhex("000100000000000000050003000027100401" + "00" * 16 + "00")
    assert decode_transaction(first_dialect).predecessor.producer_epoch == -1

    decided = bytes.fromhex("000100000000000000050003000027100201" + "00" * 16 + "0102020002")
    assert decode_transaction(decided).transaction_epoch == 2


def test_tags_that_are_not_known_survive() -> None:
    txn = EXAMPLE._replace(unknown_tags=((5, b"kafka, later"), (10_050, b"stablelog, later")))
    assert decode_transaction(encode_transaction(txn)) == txn


def test_keys() -> None:
    assert transaction_key("a/b").hex() == "00000003612f62"
    assert read_key(transaction_key("a/b")) == TransactionKey("a/b")
    assert group_key("payments").hex() == "271000087061796d656e7473"
    assert read_key(group_key("")) == TransactionGroupKey("")
    assert joint_key("", "q").hex() == "27110000000171"
    assert read_key(joint_key("payments", "q/1")) == JointKey(JointName("payments", "q/1"))
    assert read_key(bytes.fromhex("00010003612f62")) is None
    with pytest.raises(UnknownFormatError, match=r"a record whose key is of version 10002; .* up to 10001"):
        read_key(bytes.fromhex("271200ff"))
    with pytest.raises(UnknownFormatError, match="of version 10099"):
        read_key(bytes.fromhex("277300ff"))
    assert read_key(bytes.fromhex("277400ff")) is None


def test_the_state_of_a_group() -> None:
    state = TransactionGroupState(producer_ids_end=2000, commit_sequence_next=77)
    assert encode_group(state).hex() == "000000000000000007d0000000000000004d"
    assert decode_group(encode_group(state) + b"what comes later") == state
    with pytest.raises(DamageError, match="16 bytes are expected, but only 8 bytes are left"):
        decode_group(encode_group(state)[:10])


def test_values_of_a_later_release_are_refused_as_such() -> None:
    with pytest.raises(UnknownFormatError, match=r"the state of a transactional id of version 2; .* up to 1"):
        decode_transaction(bytes.fromhex("0002"))
    with pytest.raises(
        UnknownFormatError, match=r"the state of a transaction group of version 1; .* up to 0"
    ):
        decode_group(b"\0\1" + bytes(30))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("ffff", "version is -1"),
        (HEAD_HEX + "06", "state 6"),
        (EXAMPLE_HEX + "00", "1 bytes follow the last field"),
        (HEAD_HEX + "02" + "0202ff0100", "not UTF-8"),
        (HEAD_HEX + "02" + "ffffffffff01", "a varint is longer than 5 bytes"),
        (HEAD_HEX + "02" + "02027400", "bytes are expected"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_named(value: str, what: str) -> None:
    with pytest.raises(DamageError, match=what):
        decode_transaction(bytes.fromhex(value))


@pytest.mark.extended
@given(st.dictionaries(st.tuples(st.text(max_size=3), ids), st.tuples(st.integers(-1, 2**31 - 1), ids)))
def test_ends_are_a_mapping(wanted: dict[TopicPartition, tuple[int, int]]) -> None:
    ends = log_ends({partition: LogEnd(*end) for partition, end in wanted.items()})
    assert dict(ends) == wanted
    assert list(ends) == list(wanted)
    assert ends.get(("absent", 0)) is None
    assert [ends.leader_epoch] == [end[0] for end in wanted.values()][:1] if wanted else ends == NO_ENDS


def test_ends_under_one_leader_epoch() -> None:
    ends = LogEnds.from_offsets(3, [("t", 0), ("u", 5)], [10, OFFSET_UNKNOWN])
    assert dict(ends) == {("t", 0): LogEnd(3, 10), ("u", 5): LogEnd(3, OFFSET_UNKNOWN)}
    assert repr(ends) == f"LogEnds({dict(ends)})"
    with pytest.raises(DamageError, match="12 bytes of partition ends for 2 partitions"):
        LogEnds.from_offsets(3, [("t", 0), ("u", 5)], [10])


def test_ends_must_be_of_the_partitions() -> None:
    partitions = EXAMPLE.partitions.in_order
    txn = EXAMPLE._replace(ends=LogEnds.from_offsets(1, partitions, [5] * len(partitions)))
    value = encode_transaction(txn).replace(bytes.fromhex("934e24"), bytes.fromhex("934e18"))[:-12]
    with pytest.raises(DamageError, match="24 bytes of partition ends for 3"):
        decode_transaction(value)


@given(st.binary(max_size=80), st.booleans())
def test_garbage_is_refused_or_read_but_never_anything_else(garbage: bytes, prefixed: bool) -> None:
    for read in (read_key, decode_transaction, decode_group):
        with contextlib.suppress(DamageError, UnknownFormatError):
            read(bytes.fromhex(EXAMPLE_HEX)[:20] + garbage if prefixed else garbage)


@given(st.integers(0, len(bytes.fromhex(EXAMPLE_HEX)) - 1))
def test_a_value_that_is_cut_anywhere_is_refused(size: int) -> None:
    with pytest.raises(DamageError):
        decode_transaction(bytes.fromhex(EXAMPLE_HEX)[:size])


def test_the_numbers_of_our_fields_and_keys_are_those_of_the_document() -> None:
    """A commit log that an earlier release has written names them."""
    text = (Path(__file__).parents[3] / "docs" / "decisions" / "0003-transactions.md").read_text()
    told = {
        name: int(tag) for tag, name in re.findall(r"^\| (10\d{3}) \| [^|]* \| (\w+) \|", text, re.MULTILINE)
    }
    own = {field: tag for tag, (field, _) in records.TAGS.items() if tag >= 10_000}
    assert told == {**own, "ends": records.ENDS_TAG}
    kinds = dict.fromkeys(map(int, re.findall(r"[Kk](?:ey k)?ind\s+(100\d\d)", text)))
    assert list(kinds)[:2] == [records.GROUP_KIND, records.JOINT_KIND]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 16384])
def test_sizes_of_several_bytes_are_read(size: int) -> None:
    txn = EXAMPLE._replace(unknown_tags=((128, bytes(size)), (16384, b"x")))
    assert decode_transaction(encode_transaction(txn)) == txn


@pytest.mark.parametrize("key", ["0000ffff", "0000fffe61", "27100001", "2711000161ffff", "2711000161"])
def test_a_key_whose_text_is_null_or_not_there_is_refused(key: str) -> None:
    with pytest.raises(DamageError, match=r"bytes are expected|a string is null"):
        read_key(bytes.fromhex(key))
