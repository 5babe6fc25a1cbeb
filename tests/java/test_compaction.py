"""Apache Kafka's dump tool finds nothing wrong with what compaction leaves, but for the gaps that it is for."""

import random
import re

import pytest

from stablelog.env.local_disk import LocalDisk
from tests.java.dump import dump, files_of
from tests.log.compaction.test_policy import HOUR_MS, KeyedLog, random_words
from tests.log.timeline import DIRECTORY

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

GAP = re.compile(r"^Non-consecutive offsets in|^\s+\d+ is followed by \d+$")


def test_a_compacted_partition_is_read_as_we_read_it(kafka_jars, tmp_path):
    chance = random.Random(4)
    log = KeyedLog(segment_bytes=1500, index_interval_bytes=200)
    for _ in range(5):
        log.write(random_words(chance, 60) + " P1c P2a P3c")
        log.now_ms += 2 * HOUR_MS
        log.compact()
    words = log.words()
    log.partition.close()
    disk = LocalDisk()
    for name in log.disk.list_dir(DIRECTORY):
        disk.write_atomic(tmp_path / name, log.disk.read_bytes(DIRECTORY / name))
    found = dump(*files_of(tmp_path))
    assert [line for line in found.complaints if not GAP.match(line)] == []
    rows = [row for _, row in found.of(".log")]
    assert any(row["count"] == "0" for row in rows)
    assert any("deleteHorizonMs" in row for row in rows)
    records = [row for row in found.records() if "endTxnMarker" not in row]
    ours = [word for word in words.split() if "=" in word]
    assert [f"{row['offset']}:{row['key']}={row.get('payload', '')}" for row in records] == ours
