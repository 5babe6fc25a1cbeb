"""Checks of the records of a client's batch: which are refused with which code, and what is done without a thread."""

import cramjam
import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch import compression, proof
from stablelog.batch.header import HEADER, Codec, assemble, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import RecordsRefusedError, RefusedError
from stablelog.log import record_checks
from stablelog.log.model import LogConfig
from stablelog.log.record_checks import (
    SOON_PACKED_SIZE_MAX,
    SOON_PORTIONS,
    SOON_SIZE_MAX,
    check_records,
    is_checked_soon,
    needs_records,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DEFAULT = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


def checked(batch, config=DEFAULT, check=check_records):
    return check(read_header(batch), batch, "t", config, NOW_MS)


def refusal(batch, config=DEFAULT):
    with pytest.raises(RefusedError) as refused:
        checked(batch, config)
    return refused.value


def records(count, **fields):
    """Records of different sizes, so that they are proven one by one."""
    return [Record(0, NOW_MS, b"k", b"v" * (number % 5))._replace(**fields) for number in range(count)]


@pytest.mark.parametrize("codec", Codec)
def test_the_decompressed_records_are_returned(codec):
    batch = encode_batch(records(100), codec=codec)
    assert checked(batch) == encode_batch(records(100))[HEADER.size :]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bytes_that_cannot_be_decompressed_are_an_invalid_record(codec):
    batch = bytearray(encode_batch(records(100), codec=codec))
    batch[HEADER.size :] = b"garbage" * 20
    header = read_header(batch)._replace(batch_length=HEADER.size + 140 - 12)
    batch[: HEADER.size] = HEADER.pack(*header)
    assert refusal(bytes(batch)).code == ErrorCode.invalid_record


@pytest.mark.parametrize("check", [check_records, is_checked_soon])
def test_a_batch_that_the_java_client_could_not_decompress_is_an_invalid_record(check):
    whole = encode_batch(records(100), codec=Codec.LZ4)
    batch = assemble(
        read_header(whole), bytes(cramjam.lz4.compress(encode_batch(records(100))[HEADER.size :]))
    )
    with pytest.raises(RefusedError, match=r"block_linked=False") as refused:
        checked(batch, check=check)
    assert refused.value.code == ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_records_that_decompress_to_too_much_are_too_large(codec, monkeypatch):
    monkeypatch.setattr(compression, "SIZE_MAX", 1 << 20)
    refused = refusal(encode_batch([Record(0, NOW_MS, None, bytes(1 << 20))], codec=codec))
    assert refused.code == ErrorCode.message_too_large
    assert "decompress to more than 1048576 bytes" in str(refused)
    checked(encode_batch([Record(0, NOW_MS, None, bytes((1 << 20) - 100))], codec=codec))


def test_records_that_are_not_compressed_have_no_limit_but_that_of_the_topic(monkeypatch):
    monkeypatch.setattr(compression, "SIZE_MAX", 1 << 20)
    checked(encode_batch([Record(0, NOW_MS, None, bytes(2 << 20))]))


def test_a_header_that_hides_a_late_timestamp_is_not_believed():
    """The greatest timestamp of the header is the producer's word: Apache Kafka looks at each record, too."""
    header = read_header(encode_batch([Record(0, NOW_MS, b"k", b"v")]))
    batch = encode_batch([*records(3), Record(0, NOW_MS + 2 * HOUR_MS, b"k", b"v")])
    hidden = assemble(read_header(batch)._replace(max_timestamp=header.max_timestamp), batch[HEADER.size :])
    refused = refusal(hidden)
    assert isinstance(refused, RecordsRefusedError)
    assert refused.code == ErrorCode.invalid_timestamp
    assert [error.number for error in refused.errors] == [3]
    checked(hidden, LogConfig(message_timestamp_type="LogAppendTime"))


@pytest.mark.parametrize("distance_ms", [0, 63, 64, 8191, 1 << 20, HOUR_MS, 1 << 40])
def test_timestamps_within_the_limits_are_accepted_however_far_apart(distance_ms):
    checked(encode_batch([Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS - distance_ms, b"k", b"v")]))
    limited = LogConfig(message_timestamp_before_ms_max=1000)
    if distance_ms > 1000:
        assert (
            refusal(
                encode_batch([Record(0, NOW_MS - distance_ms, b"k", b"v"), Record(0, NOW_MS, b"k", b"v")]),
                limited,
            )
            .errors[0]
            .number
            == 0
        )


@pytest.mark.parametrize("timestamp_ms", [0, -2, -(2**62)])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_timestamp_before_1970_is_too_old_as_others_and_no_timestamp_is_not(timestamp_ms, is_first):
    limited = LogConfig(message_timestamp_before_ms_max=1000)
    old, late = Record(0, timestamp_ms, b"k", b"v"), Record(0, NOW_MS, b"k", b"v")
    batch = encode_batch([old, late] if is_first else [late, old])
    assert [error.number for error in refusal(batch, limited).errors] == [0 if is_first else 1]
    checked(encode_batch([old._replace(timestamp_ms=-1), old._replace(timestamp_ms=-1)]), limited)


def test_a_timestamp_of_more_than_64_bits_is_refused():
    batch = encode_batch([Record(0, 10, b"k", b"v"), Record(0, 9, b"k", b"v")])
    low = assemble(read_header(batch)._replace(base_timestamp=-(2**63) + 5), batch[HEADER.size :])
    checked(low)
    batch = encode_batch([Record(0, 0, b"k", b"v"), Record(0, -(2**62), b"k", b"v")])
    low = assemble(read_header(batch)._replace(base_timestamp=-(2**63) + 5), batch[HEADER.size :])
    assert "which is not a number of 64 bits" in str(refusal(low))


def test_each_record_without_a_key_is_named_in_a_compacted_topic():
    batch = encode_batch([*records(50), *records(2, key=None), *records(1)])
    assert [error.number for error in refusal(batch, COMPACTED).errors] == [50, 51]
    checked(batch)


def test_a_batch_is_checked_soon_if_it_is_small():
    for codec in Codec:
        assert checked(encode_batch(records(100), codec=codec), check=is_checked_soon)
    many = encode_batch([Record(0, NOW_MS, b"k", b"v" * 100)] * 5000)
    assert checked(many, check=is_checked_soon), "records of equal size are proven at once"


LONG = {
    "records of different sizes": encode_batch(records(proof.PORTION * SOON_PORTIONS + 1)),
    "bytes that are decompressed": encode_batch(
        [Record(0, NOW_MS, b"k", bytes(SOON_SIZE_MAX))], codec=Codec.ZSTD
    ),
    "compressed bytes": encode_batch(
        [Record(0, NOW_MS, b"k", b"".join(n.to_bytes(4, "big") for n in range(SOON_PACKED_SIZE_MAX)))],
        codec=Codec.SNAPPY,
    ),
    "headers": encode_batch(
        [Record(0, NOW_MS, b"k", b"v", (("", None),) * (proof.PORTION * SOON_PORTIONS + 1))]
    ),
    "timestamps": encode_batch(
        [Record(0, NOW_MS - (number % 2) * 2**45, b"k", b"v") for number in range(5000)]
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_many_of_these_are_not_checked_soon(name):
    assert not checked(LONG[name], check=is_checked_soon)
    checked(LONG[name])


def test_missing_keys_of_many_records_are_not_named_soon():
    rows = [Record(0, NOW_MS, b"k", b"v" * 9)] * 5000
    batch = encode_batch([*rows, *records(1, key=None)])
    assert not checked(batch, COMPACTED, is_checked_soon)
    assert [error.number for error in refusal(batch, COMPACTED).errors] == [5000]
    batch = encode_batch(records(5000, key=None))
    assert len(refusal(batch, COMPACTED).errors) == record_checks.ERRORS_MAX


def test_the_records_of_each_batch_are_checked_unless_producers_are_trusted():
    trusting = LogConfig(proves_records=False)
    assert needs_records(LogConfig())
    assert not needs_records(trusting)
