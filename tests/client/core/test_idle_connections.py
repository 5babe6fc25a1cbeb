"""The idle connections of a client: those that were used last are kept."""

from stablelog.client.core.idle_connections import IDLE_MAX, IdleConnections
from tests.client.core.scripted import Brokers, Link


def links(count, host="one"):
    return [Link(host, Brokers()) for _ in range(count)]


def idle_with(*connections):
    idle = IdleConnections()
    for one in connections:
        idle.add(one)
    return idle


def test_the_connection_that_was_used_last_is_taken_first():
    first, second = links(2)
    idle = idle_with(first, second)
    assert idle.take("one:9092") is second
    assert idle.take("one:9092") is first
    assert idle.take("one:9092") is None
    assert not any(one.is_closed for one in (first, second))


def test_a_connection_is_taken_only_for_its_own_address():
    idle = idle_with(*links(1))
    assert idle.take("two:9092") is None


def test_a_connection_that_broke_or_awaits_a_response_is_closed_and_not_kept():
    broken, awaiting = links(2)
    broken.is_closed = awaiting.is_awaiting = True
    idle = idle_with(broken, awaiting)
    assert awaiting.is_closed
    assert idle.take("one:9092") is None


def test_a_few_connections_to_each_broker_are_kept_those_that_were_used_last():
    ones, twos = links(IDLE_MAX + 2), links(1, "two")
    idle = idle_with(*twos, *ones)
    assert [one.is_closed for one in ones] == [True, True] + [False] * IDLE_MAX
    assert not twos[0].is_closed
    idle.close()
    assert all(one.is_closed for one in (*ones, *twos))
    assert idle.take("two:9092") is None
