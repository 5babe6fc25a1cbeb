"""Sealed segments whose batch headers have changed are refused by name before a record of them is handed out."""

import itertools
import json
import os
import shutil
import struct

import pytest
from crc32c import crc32c
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType as Long
from pyspark.sql.types import StructField, StructType

from stablelog.batch.header import CRC_START, headers_in
from stablelog.errors import DamageError
from stablelog.log.indexes.summary import Summary
from stablelog.spark import count
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits
from stablelog.spark.schema import Columns
from stablelog.spark.source.reader import StablelogStreamReader
from tests.golden.generation import generations
from tests.golden.serving import BrokerAt
from tests.spark.reading import rows, tasks

# A topic of each kind, and the place of a sealed segment in its middle. A commit-ordered one is read from its files
# uncommitted.
KINDS = {
    "ordinary": (1, "read_committed"),
    "compacted": (2, "read_committed"),
    "ordered": (1, "read_uncommitted"),
}
SMALL_TASKS = TaskLimits(offsets_max=9)  # a part of a segment each


@pytest.fixture(scope="module")
def stopped(module_path):
    """A data directory of a broker that was stopped, and when it was written."""
    newest = generations()[-1]
    return newest.unpack("stopped", module_path), newest.expected("stopped")


class Copy:
    """A copy of one partition, to be damaged."""

    def __init__(self, data, topic, root):
        place, self.isolation = KINDS[topic]
        shutil.copytree(data / f"{topic}-0", root / f"{topic}-0")
        bases = sorted(int(path.stem) for path in (root / f"{topic}-0").glob("*.log"))
        self.base = bases[place]
        self.path = root / f"{topic}-0" / f"{self.base:020d}.log"
        self.topic = topic
        self.wanted = {"assign": json.dumps({topic: [0]}), "isolation": self.isolation}
        self.given = {"path": str(root), **self.wanted}
        self.mounted = {"mount": str(root), **self.wanted}
        self.offsets = range(self.base, bases[place + 1])

        self._content = self.path.read_bytes()
        self._times = itertools.count(1)  # The unpacked files have the time 0.

    def damage(self, how):
        self._write(how([self._content[at : at + header.size] for at, header in headers_in(self._content)]))

    def restore(self):
        self._write(self._content)

    def _write(self, content):
        self.path.write_bytes(content)
        os.utime(self.path, ns=(0, next(self._times)))  # a file system may not tell two quick writes apart


@pytest.fixture(scope="module", params=KINDS)
def copied(request, stopped, module_path):
    return Copy(stopped[0], request.param, module_path / f"copy-{request.param}")


@pytest.fixture
def copy(copied):
    """Not damaged as yet."""
    copied.restore()
    return copied


def with_crc(batch):
    return bytes(batch[:17]) + struct.pack(">I", crc32c(batch[CRC_START:])) + bytes(batch[CRC_START:])


def flipped(at, *, bits=1, crc_holds=False):
    """A change of one byte of the header of a batch in the middle; its CRC may hold nevertheless."""

    def damage(batches):
        batch = bytearray(batches[len(batches) // 2])
        batch[at] ^= bits
        changed = with_crc(batch) if crc_holds else bytes(batch)
        return b"".join([*batches[: len(batches) // 2], changed, *batches[len(batches) // 2 + 1 :]])

    return damage


def exchanged(batches):
    return b"".join([*batches[:3], batches[4], batches[3], *batches[5:]])


def removed(batches):
    return b"".join(batches[:3] + batches[4:])


def repeated(batches):
    return b"".join(batches[:4] + batches[3:])


def hidden(batches):
    """A batch whose length takes in the next one, with a CRC that holds."""
    both = bytearray(batches[3] + batches[4])
    both[8:12] = struct.pack(">i", len(both) - 12)
    return b"".join([*batches[:3], with_crc(both), *batches[5:]])


def lowered(batches):
    """The last batch has the offsets of an earlier one: a search for its own finds nothing."""
    return b"".join([*batches[:-1], batches[0][:8] + batches[-1][8:]])


def older(batches):
    """Each header says that its records are old: a search by time finds nothing."""
    return b"".join(with_crc(batch[:35] + bytes(8) + batch[43:]) for batch in batches)


DAMAGES = {
    "base offset": flipped(7),
    "high bits of the base offset": flipped(2),
    "length": flipped(11),
    "leader epoch": flipped(15),
    "magic": flipped(16),
    "an aborted batch that is no longer transactional": flipped(22, bits=0x10, crc_holds=True),
    "producer": flipped(50, crc_holds=True),
    "greatest timestamp": flipped(42, crc_holds=True),
    "exchanged": exchanged,
    "removed": removed,
    "repeated": repeated,
    "hidden": hidden,
    "lowered": lowered,
    "older": older,
    "cut": lambda batches: b"".join(batches[:-1]),
}


def assert_refused(copy, read):
    """Nothing of the segment is handed out, and it is named."""
    found = []
    with pytest.raises(DamageError, match=f"{copy.path}.*Restore"):
        for planned in read:
            found += rows(copy.given, "offset", planned=[planned])
    assert not [offset for (offset,) in found if offset in copy.offsets]


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
def test_a_batch_read_refuses_a_segment_with_other_headers(copy, how):
    planned = tasks(copy.given, SMALL_TASKS)
    in_part = [task for task in planned if any(str(copy.path) == one.path for one in task[0].extents)]
    assert len(in_part) > 1, "no task reads a part of the segment"
    copy.damage(how)
    for task in in_part:
        assert_refused(copy, [task])
    with pytest.raises(DamageError, match=f"{copy.path}.*Restore"):  # planned with the damage
        rows(copy.given, "offset", limits=SMALL_TASKS)


@pytest.mark.parametrize("how", ["base offset", "hidden", "lowered", "older", "repeated"])
@pytest.mark.parametrize("ask", ["from an offset", "from a time", "count"])
def test_no_answer_comes_from_other_headers(copy, how, ask):
    """Of a range that begins in the segment, also where the damage hides it."""
    first = copy.offsets[1] if ask == "count" else copy.offsets[-1]
    given = {**copy.given, "startingOffsets": json.dumps({copy.topic: {"0": first}})}
    if ask == "from a time":
        latest = Summary.decode(copy.path.with_suffix(".summary").read_bytes()).max_timestamp
        given = {**copy.given, "startingTimestamp": str(latest)}
    copy.damage(DAMAGES[how])
    with pytest.raises(DamageError, match=f"{copy.path}.*Restore"):
        count(given) if ask == "count" else rows(given, "offset")


@pytest.fixture(scope="module")
def broker(stopped, module_path):
    """A broker of the same data; what is damaged are copies."""
    data = shutil.copytree(stopped[0], module_path / "served")
    with BrokerAt(data, stopped[1]["written_ms"]) as made:
        yield made


@pytest.mark.parametrize(
    "how", ["base offset", "an aborted batch that is no longer transactional", "exchanged"]
)
def test_a_stream_refuses_a_segment_with_other_headers(copy, broker, how):
    given = {**copy.mounted, "bootstrap": broker.bootstrap, "scan": "files", "startingOffsets": "earliest"}
    schema = StructType([StructField("offset", Long(), nullable=False)])
    reader = StablelogStreamReader(read_options(given, STREAM), Columns(schema))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    whole = offsets_of(reader, reader.partitions(start, end))
    assert set(copy.offsets) & set(whole)
    copy.damage(DAMAGES[how])
    with pytest.raises(DamageError, match=f"{copy.path}.*Restore"):
        offsets_of(reader, reader.partitions(start, end))
    reader.stop()


def offsets_of(reader, planned):
    return [
        offset for task in planned for batch in reader.read(task) for offset in batch.column(0).to_pylist()
    ]


@pytest.mark.parametrize("change", ["removed", "flipped"])
def test_an_aborted_range_that_is_hidden_is_refused(stopped, tmp_path, change):
    copy = Copy(stopped[0], "ordinary", tmp_path)
    index = copy.path.with_suffix(".txnindex")
    if change == "removed":
        index.unlink()
    else:
        content = bytearray(index.read_bytes())
        content[17] ^= 1
        index.write_bytes(content)
    with pytest.raises(DamageError, match=f"{index} is damaged"):
        rows(copy.given, "offset")


def test_a_segment_without_a_summary_is_read_as_it_is(stopped, tmp_path):
    copy = Copy(stopped[0], "ordinary", tmp_path)
    whole = rows(copy.given, "offset")
    for summary in copy.path.parent.glob("*.summary"):
        summary.unlink()
    assert rows(copy.given, "offset") == whole


@pytest.mark.parametrize("topic", KINDS)
def test_a_worker_proves_a_file_once_and_again_when_it_has_changed(stopped, topic, tmp_path, monkeypatch):
    from stablelog.spark.segments import extent_proof

    copy = Copy(stopped[0], topic, tmp_path)
    for path in copy.path.parent.glob("*.log"):
        path.touch()  # A removed copy may have had the same inode, and a copy has the times of the original.
    walked, once = [], extent_proof.headers_crc

    def walking(descriptor, size):
        walked.append(size)
        return once(descriptor, size)

    monkeypatch.setattr(extent_proof, "headers_crc", walking)
    planned = tasks(copy.given, SMALL_TASKS)
    sealed = [path for path in copy.path.parent.glob("*.log") if path.with_suffix(".summary").exists()]
    for _ in range(2):
        rows(copy.given, "offset", planned=planned)
        assert sorted(walked) == sorted(path.stat().st_size for path in sealed)
    copy.damage(exchanged)
    with pytest.raises(DamageError, match="batches are not those that were synced"):
        rows(copy.given, "offset", planned=planned)
