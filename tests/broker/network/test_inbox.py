"""The buffers of connections are shared: a connection has one only while bytes are in it."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stablelog.broker.network.inbox import INBOX_SIZE, KEPT_COUNT, LOGIN_INBOX_SIZE, Inbox, Inboxes
from tests.broker.jump import Door, request, run, settle


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=20), st.integers(0, 30)), max_size=40))
def test_inboxes_that_share_buffers_keep_their_bytes_apart(steps):
    inboxes = Inboxes()
    boxes = [Inbox() for _ in range(3)]
    expected = [b"", b"", b""]
    for number, arrived, dropped in steps:
        box = boxes[number]
        box.free_space(inboxes)[: len(arrived)] = arrived
        box.filled += len(arrived)
        expected[number] += arrived
        dropped = min(dropped, len(expected[number]))
        box.drop_bytes(dropped)
        expected[number] = expected[number][dropped:]
        for one, content in zip(boxes, expected, strict=True):
            assert bytes(one.buffer[: one.filled]) == content
            assert bool(one.buffer) == bool(content), "an empty inbox has no buffer"


def test_a_full_inbox_has_no_room_and_few_buffers_are_kept():
    inboxes = Inboxes()
    boxes = [Inbox() for _ in range(KEPT_COUNT + 2)]
    for box in boxes:
        assert len(box.free_space(inboxes)) == INBOX_SIZE
        box.filled = INBOX_SIZE
        assert len(box.free_space(inboxes)) == 0
    for box in boxes:
        box.clear()
        box.clear()
    assert len(inboxes) == KEPT_COUNT


def test_an_inbox_takes_its_bytes_into_a_larger_buffer():
    small, large = Inboxes(LOGIN_INBOX_SIZE), Inboxes()
    box = Inbox()
    box.free_space(small)[:3] = b"abc"
    box.filled = 3
    assert len(box.free_space(large)) == INBOX_SIZE - 3
    assert (bytes(box.buffer[:3]), len(small), len(large)) == (b"abc", 1, 0)
    box.clear()
    assert (len(small), len(large)) == (1, 1)


def test_connections_without_bytes_have_no_buffer():
    async def conversation():
        door = Door()
        wires = [door.connect() for _ in range(5)]
        for wire in wires:
            wire.send(request(100))
        await settle()
        assert len(door.budget.inboxes) == 1, "one buffer has served all connections, one after the other"
        whole = request(100)
        for wire in wires:
            wire.send(whole[:50])
        assert len(door.budget.inboxes) == 0
        for wire in wires[1:]:
            wire.send(whole[50:])
        await settle()
        assert [len(wire.answers()) for wire in wires] == [1, 2, 2, 2, 2]
        assert len(door.budget.inboxes) == 4
        wires[0].lost()
        assert len(door.budget.inboxes) == 5, "a lost connection gives its buffer back"

    run(conversation())


def test_a_draining_connection_keeps_no_buffer():
    async def conversation():
        door = Door()
        wire = door.connect()
        wire.send(request(100)[:50])
        (connection,) = door.members
        connection.drain()
        wire.send(bytes(1000))
        await asyncio.sleep(0)
        assert len(door.budget.inboxes) == 1

    run(conversation())
