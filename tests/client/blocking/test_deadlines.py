"""Whoever is overdue is told so, soon, once, and nobody else."""

import logging
import sys
import threading
import time

import pytest

import stablelog
from stablelog.client.blocking.deadlines import TransactionDeadlines
from stablelog.errors import RefusedError
from tests.client.transactions import create
from tests.waiting import until


class Open:
    """What is open until its deadline; `busy` times somebody is at it then."""

    def __init__(self, in_s, busy=0):
        self.deadline = time.monotonic() + in_s
        self.busy = busy
        self.expired = threading.Event()

    def expire(self):
        assert not self.expired.is_set()
        assert time.monotonic() >= self.deadline
        self.busy -= 1
        if self.busy < 0:
            self.expired.set()
        return self.busy < 0


@pytest.mark.extended
def test_each_at_its_deadline_whatever_came_first():
    deadlines = TransactionDeadlines()
    late, early, ended = Open(1.2), Open(0.02), Open(1)
    deadlines.add_transaction(late.expire, late.deadline)
    deadlines.add_transaction(ended.expire, ended.deadline)
    deadlines.remove_transaction(ended.expire)
    deadlines.add_transaction(early.expire, early.deadline)
    assert early.expired.wait(30)
    assert late.expired.wait(30)
    assert not ended.expired.is_set()


def test_what_somebody_is_at_is_asked_again():
    deadlines = TransactionDeadlines()
    busy = Open(0, busy=2)
    deadlines.add_transaction(busy.expire, busy.deadline)
    assert busy.expired.wait(30)


def watchers():
    return {thread for thread in threading.enumerate() if thread.name == "stablelog-deadlines"}


def test_the_thread_ends_with_the_last_and_comes_back():
    before = watchers()
    deadlines = TransactionDeadlines()
    for _ in range(3):
        one = Open(0)
        deadlines.add_transaction(one.expire, one.deadline)
        assert one.expired.wait(30)
        until(lambda: watchers() <= before, "its thread stays")
    one = Open(3600)
    deadlines.add_transaction(one.expire, one.deadline)
    deadlines.remove_transaction(one.expire)
    deadlines.wake_thread()
    until(lambda: watchers() <= before, "its thread stays")


def test_clients_that_are_not_closed_leave_one_thread_at_most(stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    before = watchers()
    clients = [stablelog.connect(stablelog_broker.bootstrap) for _ in range(5)]
    for client in clients:
        with client.transaction(timeout=60) as txn:
            txn.write(topic, "v")
    assert len(watchers() - before) <= 1
    clients.pop().close()
    until(lambda: watchers() <= before, "its thread stays")
    for client in clients:
        client.close()


def test_one_that_fails_ends_no_other(caplog):
    deadlines = TransactionDeadlines()
    last = Open(0.05)

    def fail():
        sys.exit("no deadline any more")

    with caplog.at_level(logging.ERROR, "stablelog.client"):
        deadlines.add_transaction(fail, 0.0)
        deadlines.add_transaction(last.expire, last.deadline)
        assert last.expired.wait(30)
    assert "could not be aborted at its deadline" in caplog.text


def test_a_callback_that_exits_ends_no_deadline_and_no_other_callback(stablelog_broker, caplog):
    topic = create(stablelog_broker.bootstrap)
    called = threading.Event()
    with (
        stablelog.connect(stablelog_broker.bootstrap) as one,
        stablelog.connect(stablelog_broker.bootstrap) as other,
    ):
        future = one.transaction(timeout=0.2).write(topic, b"v")
        future.add_done_callback(lambda _: sys.exit())
        future.add_done_callback(lambda _: called.set())
        assert called.wait(30)
        later = other.transaction(timeout=0.2).write(topic, b"v")
        assert isinstance(later.exception(30), RefusedError)
    assert "a callback of a future has failed" in caplog.text


@pytest.mark.extended
def test_a_callback_that_waits_delays_no_other_deadline(stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    found, outcome = threading.Event(), []
    with (
        stablelog.connect(stablelog_broker.bootstrap) as one,
        stablelog.connect(stablelog_broker.bootstrap) as other,
    ):
        later = other.transaction(timeout=1).write(topic, b"v")

        def wait(_):
            outcome.append(later.exception(30))
            found.set()

        one.transaction(timeout=0.2).write(topic, b"v").add_done_callback(wait)
        assert found.wait(60)
    assert isinstance(outcome[0], RefusedError)
