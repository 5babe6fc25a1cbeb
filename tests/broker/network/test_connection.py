"""One connection: bytes to requests and answers to bytes, within bounds, whatever the client does."""

import asyncio
import itertools
import logging
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.broker.network.budget import MemoryBudget, MemoryBudgets
from stablelog.broker.network.connection import BEGUN_AT_ONCE_COUNT, FREE_IN_FLIGHT_COUNT
from stablelog.broker.network.inbox import INBOX_SIZE, LOGIN_INBOX_SIZE
from stablelog.broker.network.request_head import is_one_way
from stablelog.broker.network.responses import TURN_SIZE, WRITE_SIZE
from stablelog.broker.network.session import Session
from stablelog.broker.settings.listeners import LOCAL
from stablelog.errors import RefusedError
from stablelog.security.principal import ANONYMOUS
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch, frame, produce_fields
from tests.broker.jump import LENGTH, Door, request, run, settle
from tests.declared_apis import APIS
from tests.scale import examples

KB = 1 << 10
FETCH, METADATA, JOIN_GROUP = 1, 3, 11


@settings(deadline=None, max_examples=examples(60))
@given(
    sizes=st.lists(
        st.sampled_from([8, 100, INBOX_SIZE - 5, INBOX_SIZE - 4, INBOX_SIZE - 3, 200 * KB]), max_size=12
    ),
    piece=st.sampled_from([1, 3, 1000, INBOX_SIZE, 1 << 20]),
)
def test_requests_arrive_whole_and_in_order_however_they_are_cut(sizes, piece):
    if piece < 1000:
        sizes = [min(size, 100) for size in sizes]

    async def conversation():
        door = Door()
        wire = door.connect(piece=piece)
        sent = [request(size, fill=n) for n, size in enumerate(sizes)]
        wire.send(b"".join(sent))
        for _ in range(len(sent) + 1):
            await settle()
        assert wire.answers() == [one[4:] for one in sent]
        assert door.budget.left == door.budget.size_max
        assert not wire.closed

    run(conversation())


def test_answers_keep_the_order_of_the_requests_whichever_is_done_first():
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(b"".join(request(10, fill=n) for n in range(4)))
        await settle()
        for place, done in ((2, 0), (2, 0), (0, 1), (0, 4)):
            door.release(place)
            await settle()
            assert len(wire.answers()) == done
        assert [answer[-1] for answer in wire.answers()] == [0, 1, 2, 3]

    run(conversation())


@pytest.mark.parametrize("size", [-1, 0, 7, (1 << 20) + 1, 2**31 - 1])
def test_a_size_that_cannot_be_closes_the_connection(size, caplog):
    async def conversation():
        wire = Door().connect()
        wire.send(LENGTH.pack(size) + bytes(50))
        assert wire.closed

    run(conversation())
    assert "10.0.0.1:5" in caplog.text


def test_a_request_that_is_refused_closes_the_connection_with_a_line(caplog):
    async def conversation():
        door = Door()

        def refuse(_frame):
            raise RefusedError(ErrorCode.invalid_request, "not a request that anybody speaks")

        door.answer_with = refuse
        wire = door.connect()
        wire.send(request(10))
        await settle()
        assert wire.closed
        assert not door.members

    with caplog.at_level(logging.WARNING):
        run(conversation())
    assert "not a request that anybody speaks" in caplog.text


def test_a_fault_of_the_broker_closes_the_connection_and_no_other(caplog):
    async def conversation():
        door = Door()
        other = door.connect()
        door.answer_with = lambda frame: 1 / 0 if frame[-1] else [b"fine"]
        wire = door.connect()
        wire.send(request(10, fill=1))
        await settle()
        assert wire.closed
        other.send(request(10))
        await settle()
        assert other.answers() == [b"fine"]

    run(conversation())
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("size", [1000, 500 * KB])
def test_a_request_whose_rest_does_not_come_is_given_up_in_time_though_it_trickles(size):
    async def conversation():
        door = Door()
        wire = door.connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        wire.send(request(size)[: min(size // 2, INBOX_SIZE)])
        while not wire.closed:
            wire.send(b"x")
            await asyncio.sleep(1)
            assert loop.time() - began < 40, "a byte a second is not in time"
        assert loop.time() - began > 29
        await settle()
        assert door.budget.left == door.budget.size_max

    run(conversation())


def test_requests_that_come_in_time_are_not_given_up_however_long_it_goes_on():
    async def conversation():
        wire = Door().connect()
        data = request(1000) * 100
        for at in range(0, len(data), 700):
            wire.send(data[at : at + 700])
            await asyncio.sleep(10)
        assert not wire.closed
        assert len(wire.answers()) == 100

    run(conversation())


def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not():
    async def conversation():
        door = Door(at_once=False)
        idle, waiting = door.connect(), door.connect()
        waiting.send(request(10))
        await asyncio.sleep(2000)
        assert idle.closed
        assert not waiting.closed

    run(conversation())


def test_unanswered_requests_of_a_connection_are_limited():
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(request(10) * 50)
        await settle()
        assert len(door.begun) == 20
        assert wire.paused
        door.release()
        await settle()
        assert len(door.begun) == 20
        for _ in range(49):
            door.release()
            await settle()
        assert len(wire.answers()) == 50

    run(conversation())


def test_connections_take_turns_however_much_one_has_sent():
    async def conversation():
        door = Door(in_flight_count_max=1000)
        greedy, modest = door.connect(), door.connect()
        order = []
        door.answer_with = lambda frame: order.append(bytes(frame)[-1]) or [b""]
        greedy.send(request(10, fill=1) * 500)
        modest.send(request(10, fill=2))
        for _ in range(100):
            await settle()
        assert order.index(2) <= BEGUN_AT_ONCE_COUNT
        assert len(order) == 501

    run(conversation())


def test_one_connection_too_many_is_closed_at_once():
    async def conversation():
        door = Door(connection_count_max=2)
        wires = [door.connect() for _ in range(3)]
        assert [wire.closed for wire in wires] == [False, False, True]
        wires[0].lost()
        await settle()
        assert not door.connect().closed

    run(conversation())


def test_one_address_takes_only_so_many_connections():
    async def conversation():
        door = Door(connection_count_per_host_max=2)
        wires = [door.connect(host=host) for host in ("a", "a", "a", "b")]
        assert [wire.closed for wire in wires] == [False, False, True, False]
        wires[0].lost()
        assert not door.connect(host="a").closed

    run(conversation())


def test_a_client_that_goes_gives_back_what_it_held():
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(request(300 * KB) + request(200 * KB)[: 150 * KB])
        await settle()
        assert door.budget.left < door.budget.size_max - 400 * KB
        wire.lost()
        await settle()
        assert door.budget.left == door.budget.size_max
        assert not door.members

    run(conversation())


def test_a_client_that_goes_before_its_request_is_begun_gives_back_what_it_held():
    """The request has come whole, and its task is cancelled before it has run."""

    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(request(300 * KB))
        assert wire.protocol.tasks
        wire.lost()
        await settle()
        assert not door.begun
        assert door.budget.left == door.budget.size_max
        assert len(door.budget.frames) == 1
        assert not wire.protocol.tasks

    run(conversation())


def produce(version=9, acks=0, client_id=b"me", transactional_id=None):
    """A Produce request behind its length."""
    fields = produce_fields(version, "t", 0, batch(b"x"), acks=acks, transactional_id=transactional_id)
    content = frame(ApiKey.PRODUCE, version, **fields)
    size = struct.pack(">h", -1 if client_id is None else len(client_id))
    content = content.replace(b"\0\2me", size + (client_id or b""), 1)
    return LENGTH.pack(len(content)) + content


def test_what_a_client_sent_that_awaits_no_response_is_processed_after_it_has_gone():
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        one_way = [produce(version) for version in (3, 8, 9, 12)]
        wire.send(request(10, api_key=FETCH) + one_way[0] + produce(acks=-1) + b"".join(one_way[1:]))
        wire.lost()
        await settle()
        assert [LENGTH.pack(len(frame)) + frame for frame, _ in door.begun] == one_way
        (member,) = door.members
        ending = asyncio.create_task(member.finish())
        for _ in one_way:
            await settle()
            assert not ending.done(), "the end of the broker waits for them"
            door.release()
        await ending
        assert not wire.protocol.tasks
        assert not door.members
        assert not wire.outbound
        assert door.budget.left == door.budget.size_max

    run(conversation())


def test_a_client_that_has_gone_counts_as_connected_as_long_as_its_requests_take_memory():
    async def conversation():
        door = Door(at_once=False, connection_count_max=2)
        for _ in range(5):
            wire = door.connect()
            wire.send(produce() * 8)
            await settle()
            if not wire.closed:
                wire.lost()
        await settle()
        assert len(door.members) == 2
        assert len(door.begun) == 16
        while door.begun:
            door.release()
        await settle()
        assert not door.members

    run(conversation())


@pytest.mark.parametrize("has_gone", [False, True])
def test_a_connection_that_the_broker_closes_processes_nothing_more(has_gone):
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(produce() * 3)
        await settle()
        if has_gone:
            wire.lost()
        wire.protocol.close("the broker stops")
        await settle()
        assert not wire.protocol.tasks
        assert not door.members

    run(conversation())


def test_it_is_processed_even_if_the_client_has_not_read_earlier_responses():
    async def conversation():
        door = Door()
        wire = door.connect(reads=False)
        wire.send(request(200 * KB) + produce() + request(10))
        await settle()
        assert len(door.begun) == 1
        wire.lost()
        await settle()
        assert [bytes(frame) for frame, _ in door.begun][1:] == [produce()[4:]]
        assert not wire.protocol.tasks

    run(conversation())


@pytest.mark.extended
@given(
    version=st.sampled_from(APIS[ApiKey.PRODUCE].served_versions),
    acks=st.sampled_from([-1, 0, 1]),
    client_id=st.sampled_from([None, b"", b"me", b"x" * 300]),
    transactional_id=st.sampled_from([None, "", "t", "x" * 200]),
)
def test_a_request_without_a_response_is_known_by_its_first_bytes(version, acks, client_id, transactional_id):
    content = produce(version, acks, client_id, transactional_id)[4:]
    assert is_one_way(content) == is_one_way(memoryview(content)) == (acks == 0 and transactional_id is None)
    assert not any(is_one_way(content[:size]) for size in range(12))
    assert not is_one_way(bytes([0, FETCH]) + content[2:])


def test_a_drained_connection_takes_nothing_more_and_answers_what_it_has():
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(request(10))
        await settle()
        wire.protocol.drain()
        wire.send(request(10))
        await settle()
        assert len(door.begun) == 1
        assert len(wire.protocol.tasks) == 1
        door.release()
        await settle()
        assert len(wire.answers()) == 1

    run(conversation())


@pytest.mark.parametrize("part", [900 * KB, 300 * KB], ids=["whole", "in part"])
def test_a_drained_connection_drops_what_it_has_not_begun(part):
    """One request holds all the room, another waits for it; with the first one's end it would be let in."""

    async def conversation():
        door = Door(size_max=1 << 20, at_once=False)
        first, second = door.connect(), door.connect()
        first.send(request(900 * KB))
        second.send(request(900 * KB)[:part])
        await settle()
        assert len(door.begun) == 1
        second.protocol.drain()
        door.release()
        await settle()
        second.send(request(900 * KB)[part:] + request(10))
        await settle()
        assert not door.begun
        assert not second.inbound, "it is read, and dropped"
        assert door.budget.left == door.budget.size_max

    run(conversation())


def test_a_finished_connection_closes_when_all_answers_are_sent():
    async def conversation():
        door = Door(at_once=False)
        door.answer_with = lambda _frame: [bytes(3 * WRITE_SIZE)]
        wire, idle = door.connect(reads=False), door.connect()
        wire.send(request(10) * 2)
        await settle()
        finishing = [asyncio.create_task(each.protocol.finish()) for each in (wire, idle)]
        await settle()
        assert idle.closed
        assert not wire.closed
        for _ in range(2):
            door.release()
            await settle()
        while not wire.closed:
            assert len(wire.outbound) < 2 * (3 * WRITE_SIZE + LENGTH.size), "all is sent"
            wire.read_on()
            await settle()
        assert [len(answer) for answer in wire.answers()] == [3 * WRITE_SIZE] * 2
        await asyncio.gather(*finishing)

    run(conversation())


# -- clients that do not read ------------------------------------------------------------------------------------


def test_for_a_client_that_does_not_read_nothing_more_is_begun():
    async def conversation():
        door = Door(in_flight_count_max=100)
        made = itertools.count()
        door.answer_with = lambda _frame: [bytes(1000 * KB), bytes([next(made)])]
        wire = door.connect(reads=False)
        wire.send(request(10) * 90)
        await settle()
        assert next(made) <= 1, "an answer is made when the one before has been read"
        for _ in range(90):
            wire.read_on()
            await settle()
        assert [answer[-1] for answer in wire.answers()] == [0, *range(2, 91)]

    run(conversation())


def test_a_large_answer_is_handed_over_in_parts_as_the_client_reads():
    async def conversation():
        door = Door()
        pieces = [b"a" * 300 * KB, b"", b"b" * (3 * WRITE_SIZE), b"c" * 10, b"d" * WRITE_SIZE]
        door.answer_with = lambda _frame: list(pieces)
        wire = door.connect(reads=False)
        wire.send(request(10))
        await settle()
        assert len(wire.outbound) <= WRITE_SIZE + 4
        parts = 1
        while len(wire.outbound) < sum(map(len, pieces)) + 4:
            before = len(wire.outbound)
            wire.read_on()
            await settle()
            assert 0 < len(wire.outbound) - before <= WRITE_SIZE
            parts += 1
        assert parts >= 5
        assert wire.answers() == [b"".join(pieces)]

    run(conversation())


def test_others_are_served_while_a_large_answer_goes_to_a_client_that_reads_at_once():
    async def conversation():
        door = Door()
        door.answer_with = lambda _frame: [bytes(5 * TURN_SIZE), b"end"]
        wire = door.connect()
        sizes = []

        write = wire.writelines

        def noted(buffers):
            """Note how much is sent in each turn of the loop."""
            sizes[-1] += sum(map(len, buffers))
            write(buffers)

        wire.writelines = noted
        wire.send(request(10) * 2)
        while len(wire.outbound) < 2 * (5 * TURN_SIZE + 3 + LENGTH.size):
            sizes.append(0)
            await asyncio.sleep(0)
        assert max(sizes) <= TURN_SIZE
        assert [len(answer) for answer in wire.answers()] == [5 * TURN_SIZE + 3] * 2

    run(conversation())


def test_a_client_that_never_reads_is_closed_in_the_end():
    async def conversation():
        door = Door()
        door.answer_with = lambda _frame: [bytes(5 << 20)]
        wire = door.connect(reads=False)
        wire.send(request(10))
        await asyncio.sleep(300)
        assert not wire.closed
        await asyncio.sleep(2000)
        assert wire.closed

    run(conversation())


# -- clients that take room --------------------------------------------------------------------------------------


def test_strangers_who_announce_large_requests_are_in_nobodys_way():
    async def conversation():
        door = Door(size_max=4 << 20)
        strangers = [door.connect() for _ in range(90)]
        for stranger in strangers:
            stranger.send(request(2 << 20)[:60_000])
        honest = door.connect()
        honest.send(request(3 << 20))
        await settle()
        assert len(honest.answers()) == 1
        assert not any(stranger.closed for stranger in strangers)
        await asyncio.sleep(31)
        assert all(stranger.closed for stranger in strangers)

    run(conversation())


@pytest.mark.parametrize(("part", "count"), [(INBOX_SIZE, 60), (1 << 20, 20)], ids=["a little", "a third"])
def test_strangers_who_send_a_part_and_stop_are_closed_when_another_needs_their_room(part, count):
    """The hostile case: all the room there is goes to requests that do not go on."""

    async def conversation():
        door = Door(size_max=16 << 20)
        strangers = [door.connect() for _ in range(count)]
        for stranger in strangers:
            stranger.send(request(3 << 20)[:part])
        honest = [door.connect() for _ in range(3)]
        for one in honest:
            one.send(request(3 << 20))
        await asyncio.sleep(0 if part == INBOX_SIZE else 10)
        await settle()
        assert [len(one.answers()) for one in honest] == [1, 1, 1]
        assert door.held_most <= 16 << 20

    run(conversation())


def test_small_requests_pass_by_large_ones_that_wait():
    async def conversation():
        door = Door(size_max=1 << 20, at_once=False)
        large = [door.connect() for _ in range(3)]
        for wire in large:
            wire.send(request(900 * KB))
        await settle()
        assert len(door.begun) == 1
        small = door.connect()
        small.send(request(100) * FREE_IN_FLIGHT_COUNT)
        await settle()
        assert len(door.begun) == 1 + FREE_IN_FLIGHT_COUNT

    run(conversation())


def test_small_requests_beyond_the_free_ones_wait_for_room_and_get_it():
    async def conversation():
        door = Door(size_max=100 * KB, at_once=False)
        wire, other = door.connect(), door.connect()
        wire.send(request(60 * KB) * (FREE_IN_FLIGHT_COUNT + 2))
        await settle()
        assert len(door.begun) == FREE_IN_FLIGHT_COUNT + 1
        other.send(request(20))
        await settle()
        assert len(door.begun) == FREE_IN_FLIGHT_COUNT + 2
        while door.begun:
            door.release(len(door.begun) - 1)
            await settle()
        assert len(wire.answers()) == FREE_IN_FLIGHT_COUNT + 2
        assert door.budget.left == door.budget.size_max

    run(conversation())


def test_a_long_poll_with_a_huge_request_gives_way_to_a_write():
    async def conversation():
        door = Door(size_max=1 << 20, at_once=False)
        poll = door.connect()
        poll.send(request(900 * KB, api_key=JOIN_GROUP))
        write = door.connect()
        write.send(request(900 * KB))
        await asyncio.sleep(5)
        assert poll.closed
        assert [len(frame) for frame, future in door.begun if not future.cancelled()] == [900 * KB]

    run(conversation())


def test_a_client_that_goes_while_it_waits_for_room_is_forgotten():
    async def conversation():
        door = Door(size_max=1 << 20, at_once=False)
        first, second, third = (door.connect() for _ in range(3))
        for wire in (first, second, third):
            wire.send(request(900 * KB))
        await settle()
        second.lost()
        door.release()
        await settle()
        assert len(door.begun) == 1
        door.release()
        await settle()
        assert len(third.answers()) == 1
        assert door.budget.left == door.budget.size_max

    run(conversation())


@pytest.mark.parametrize("api_key", [FETCH, METADATA])
def test_a_connection_has_one_request_that_takes_long_at_a_time(api_key):
    async def conversation():
        door = Door(at_once=False)
        wire = door.connect()
        wire.send(request(10, api_key=api_key) * 5 + request(10))
        await settle()
        assert [frame[1] for frame, _ in door.begun] == [api_key, 0], "a write does not wait behind them"
        door.release(1)
        for left in range(4, -1, -1):
            door.release()
            await settle()
            assert len(door.begun) == min(left, 1)
        assert len(wire.answers()) == 6

    run(conversation())


def not_logged_in():
    return Session(login=SimpleNamespace(principal=None, takes_bare_messages=False))


def test_before_the_login_requests_have_memory_of_their_own():
    """However much clients send before their logins, others find their whole budget."""

    async def conversation():
        door = Door(size_max=1 << 20, login_size_max=65_536)
        loop = asyncio.get_running_loop()
        own = MemoryBudget(256 << 10, 30, loop.time, loop.call_later, inbox_size=LOGIN_INBOX_SIZE)
        door.budgets = MemoryBudgets(door.budget, own)
        strangers = [door.connect(session=not_logged_in()) for _ in range(20)]
        for wire in strangers:
            wire.send(request(65_000)[:-1])
            await settle()
        assert door.budget.left == door.budget.size_max
        assert own.left < 64 << 10
        fresh = door.connect(session=not_logged_in())
        assert len(fresh.protocol.get_buffer(-1)) == LOGIN_INBOX_SIZE
        client = door.connect()
        client.send(request(900_000))
        await settle()
        assert len(client.answers()) == 1
        for wire in strangers:
            wire.lost()
        await settle()
        assert own.left == own.size_max

    run(conversation())


def test_a_connection_gets_a_large_inbox_with_its_login():
    async def conversation():
        door = Door(login_size_max=65_536)
        loop = asyncio.get_running_loop()
        own = MemoryBudget(256 << 10, 30, loop.time, loop.call_later, inbox_size=LOGIN_INBOX_SIZE)
        door.budgets = MemoryBudgets(door.budget, own)
        session = not_logged_in()
        wire = door.connect(session=session)
        first, second = request(5_000), request(40_000)
        wire.send(first)
        await settle()
        wire.send(second[:3_000])
        session.login.principal = ANONYMOUS
        wire.send(second[3_000:])
        await settle()
        assert [len(answer) for answer in wire.answers()] == [5_000, 40_000]
        assert (own.left, door.budget.left) == (own.size_max, door.budget.size_max)

    run(conversation())


def test_before_the_login_a_larger_request_closes_the_connection():
    async def conversation():
        door = Door(login_size_max=65_536)
        wire = door.connect(session=not_logged_in())
        wire.send(request(65_537)[:10])
        await settle()
        assert wire.closed

    run(conversation())


def test_a_listener_with_a_limit_leaves_connections_to_the_others():
    async def conversation():
        door = Door(connection_count_max=5)
        outer = replace(door.limits, listener="OUTER", listener_count_max=2)
        inner = replace(door.limits, listener="INNER")

        def connect(limits):
            session = Session(LOCAL._replace(name=limits.listener))
            return door.connect(session=session, limits=limits)

        assert not connect(inner).closed
        wires = [connect(outer) for _ in range(4)]
        assert [wire.closed for wire in wires] == [False, False, True, True]
        assert [connect(inner).closed for _ in range(4)] == [False, False, True, True]

    run(conversation())


def test_the_limit_of_an_address_may_be_its_own():
    async def conversation():
        door = Door(connection_count_per_host_max=1, host_count_max={"10.0.0.9": 2, "10.0.0.8": 0})
        closed = {
            host: [door.connect(host=host).closed for _ in range(3)] for host in ("10.0.0.9", "10.0.0.8")
        }
        assert closed == {"10.0.0.9": [False, False, True], "10.0.0.8": [True] * 3}
        assert [door.connect(host="10.0.0.7").closed for _ in range(2)] == [False, True]

    run(conversation())
