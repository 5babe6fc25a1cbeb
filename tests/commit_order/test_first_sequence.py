"""The last commit before the log is known after commit indexes were lost, and after a crash at each step of a deletion."""

import errno

import pytest

from stablelog.commit_order.first_sequence import (
    FirstSequence,
    decode_first_sequences,
    encode_first_sequences,
)
from stablelog.errors import DamageError, DiskError
from stablelog.log.files.names import FIRST_SEQUENCE_FILE
from tests.commit_order.committed_log import DIRECTORY, Log
from tests.commit_order.test_tiered_commit_order import TieredLog

PATH = DIRECTORY / FIRST_SEQUENCE_FILE
ROWS = (FirstSequence(31, 7), FirstSequence(52, 9))


def commits(log, count):
    """Append commits, each in a segment of its own."""
    for _ in range(count):
        log.append(1)
        log.end(1)
        log.partition.roll(log.now_ms)
    log.sync()


def test_each_changed_byte_and_each_torn_end_is_damage():
    content = encode_first_sequences(ROWS)
    assert decode_first_sequences(content) == ROWS
    damaged = [content[:size] for size in range(len(content))]
    for place in range(len(content)):
        damaged += [
            content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :] for bit in (1, 16, 128)
        ]
    damaged += [content + b"\n", content.replace(b"1\n", b"2\n", 1), encode_first_sequences(())]
    for one in damaged:
        with pytest.raises(DamageError, match="the file `log-start-sequence` is damaged"):
            decode_first_sequences(one)


def test_a_copy_of_a_rebuilt_index_knows_the_commits_that_were_deleted_before_they_were_copied():
    log = TieredLog(file_delete_delay_ms=0)
    commits(log, 1)
    log.copy()
    log.partition.deletion.delete_records(log.partition.high_watermark)
    commits(log, 3)
    log.append(2)
    log.partition.roll(log.now_ms)
    commits(log, 1)
    log.partition.deletion.delete_records(
        13
    )  # The commits 2 to 4 were never copied. The open transaction keeps its segment.
    assert [one.base_offset for one in log.partition.segments()] == [12, 13, 16]
    log.lose_indexes()
    assert log.partition.view.removed_sequence() == 4
    log.copy()
    assert log.loading(log.partition.view.removed_sequence) == 4
    copied = [one.commit.latest_sequence for one in log.remote.manifest.segments if one.base_offset >= 12]
    assert copied == [4, 5]


@pytest.mark.parametrize("name", [FIRST_SEQUENCE_FILE, "log-start-offset"])
def test_a_deletion_that_a_crash_has_interrupted_leaves_the_last_commit_before_the_log(name):
    log = Log(file_delete_delay_ms=0)
    commits(log, 4)
    log.plain()
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    log.partition.deletion.delete_records(3)
    assert decode_first_sequences(log.disk.read_bytes(PATH)) == (FirstSequence(3, 1),)
    assert log.partition.view.removed_sequence() == 1

    log.disk.fault = lambda what, path: errno.EIO if name in str(path) else None
    with pytest.raises(DiskError):
        log.partition.deletion.delete_records(12)
    log.disk.fault = None
    rows = decode_first_sequences(log.disk.read_bytes(PATH))
    assert rows == (
        (FirstSequence(3, 1),) if name == FIRST_SEQUENCE_FILE else (FirstSequence(3, 1), FirstSequence(12, 4))
    )
    log.partition.close(clean=False)
    log.partition = log.open(clean=False)
    log.lose_indexes()
    assert [index.latest_sequence for index in log.partition.view.indexes][:4] == [2, 3, 4, 4]
    assert log.partition.view.removed_sequence() == 4
    log.partition.deletion.delete_records(12)
    log.lose_indexes()
    assert log.partition.view.removed_sequence() == 4


@pytest.mark.parametrize("content", [None, b"garbage", b""], ids=["missing", "garbage", "empty"])
def test_a_log_without_the_file_is_read_as_before(content):
    log = Log(file_delete_delay_ms=0)
    commits(log, 3)
    log.partition.deletion.delete_records(6)
    if content is None:
        log.disk.lose(PATH)
    else:
        log.disk.damage(PATH, content)
    log.lose_indexes()
    assert log.partition.view.removed_sequence() == 2
    assert [payload for _, payload in log.read_all(6, 1 << 20)] == [b"2"]
    commits(log, 1)
    log.partition.deletion.delete_records(9)
    assert decode_first_sequences(log.disk.read_bytes(PATH)) == (FirstSequence(9, 3),)


def test_a_log_without_commits_has_no_such_file():
    log = Log(file_delete_delay_ms=0)
    for _ in range(3):
        log.plain()
        log.partition.roll(log.now_ms)
    log.sync()
    log.partition.deletion.delete_records(2)
    assert log.partition.start_offset == 2
    assert not log.disk.exists(PATH)
