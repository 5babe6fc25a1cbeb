"""The memory of responses: kept while a reader has a part of it, and used again afterwards."""

import io

from stablelog.commit_order import copy_buffers, fetch_assembler
from stablelog.commit_order.copy_buffers import KEPT_COUNT, CopyBuffers
from stablelog.log.model import Isolation
from tests.commit_order.committed_log import a_log_of_small_batches


def test_an_answer_stays_as_it_is_until_its_reader_has_let_go_of_it(monkeypatch):
    monkeypatch.setattr(fetch_assembler, "COPY_BUFFERS", CopyBuffers())
    log = a_log_of_small_batches(60)
    starts = [position for position, _ in log.expected()]
    held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED).buffers for start in starts]
    # As a connection holds what the socket has not taken yet.
    parts = [buffers[0][:600] for buffers in held]
    before = [bytes(part) for part in parts]
    del held
    for start in starts:
        assert log.fetched(start, 20_000)[0]
    assert [bytes(part) for part in parts] == before
    assert len(set(before)) == len(before)


def test_the_memory_of_an_answer_is_used_again_once_it_is_gone(monkeypatch):
    monkeypatch.setattr(fetch_assembler, "COPY_BUFFERS", CopyBuffers())
    made = []

    class Made(io.BytesIO):
        def __init__(self):
            super().__init__()
            made.append(len(made))

    monkeypatch.setattr(copy_buffers, "BytesIO", Made)
    log = a_log_of_small_batches(60)
    assert log.read_all(0, 5_000) == log.expected()
    assert len(made) == 1
    start = log.expected()[0][0]
    held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED) for _ in range(2 * KEPT_COUNT)]
    assert len(made) == 2 * KEPT_COUNT
    del held
    for _ in range(3):
        held = [log.partition.read(start, 5_000, Isolation.READ_COMMITTED) for _ in range(KEPT_COUNT)]
        del held
    assert len(made) == 2 * KEPT_COUNT


def test_the_memory_of_four_answers_is_kept():
    known = CopyBuffers()
    *four, fifth = (known.take_buffer() for _ in range(5))
    for memory in (*four, fifth):
        known.return_buffer(memory)
    assert [known.take_buffer() for _ in range(4)] == four
    assert known.take_buffer() not in (*four, fifth)
    four[0].write(b"from the answer before")
    known.return_buffer(four[0])
    held = four[0].getbuffer()
    assert known.take_buffer() is not four[0], "somebody holds a part of it"
    del held
    memory = known.take_buffer()
    assert (memory, memory.tell()) == (four[0], 0)
