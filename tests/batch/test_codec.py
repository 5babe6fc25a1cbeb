"""The codecs, by Kafka's numbers."""

import subprocess
import sys

from stablelog.batch.codec import CODECS, Codec


def test_a_codec_has_the_number_that_kafka_writes_into_the_attributes():
    assert {codec.name: codec.value for codec in Codec} == {
        "NONE": 0,
        "GZIP": 1,
        "SNAPPY": 2,
        "LZ4": 3,
        "ZSTD": 4,
    }


def test_the_codec_of_a_number_stands_at_this_index():
    assert [CODECS[number] for number in range(len(CODECS))] == [Codec(number) for number in range(5)]


def test_who_names_a_codec_loads_no_library():
    program = "import sys, stablelog.batch.codec; print(*sorted({'crc32c', 'cramjam'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
