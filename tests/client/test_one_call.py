"""One call of a reader runs at a time: another one is refused, and only `close` ends the running one."""

import threading

import pytest

from stablelog.client import internals
from stablelog.errors import UsageError
from tests.client.test_seeking import write
from tests.client.transactions import create
from tests.waiting import until

IN_USE = "in use by another thread or task"


def waiting(reader):
    """Begin a call that waits. Return how to get its end."""
    ended = []

    def call():
        try:
            ended.append(next(reader))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    inner = getattr(reader, "inner", reader)
    until(lambda: internals.is_in_use(inner), "the call does not begin")

    def end():
        thread.join(60)
        return ended[0]

    return end


@pytest.fixture
def topic(stablelog_broker):
    return create(stablelog_broker.bootstrap)


def refused(*calls):
    for call in calls:
        with pytest.raises(UsageError, match=IN_USE):
            call()


def test_a_second_call_of_a_reader_is_refused(client, topic):
    reader = client.read(topic, after=0, cut=False)
    end = waiting(reader)
    refused(
        lambda: reader.pause(topic),
        lambda: reader.resume(topic),
        lambda: reader.seek(0),
        lambda: reader.seek_to_time(0),
        lambda: reader.seek_to_offset(topic, 0, 0),
        lambda: next(reader),
        lambda: next(reader.batches()),
    )
    write(client, topic, (0, b"a"))
    assert end().records[0].value == b"a"
    reader.pause(topic)
    end = waiting(reader)
    reader.close()
    assert isinstance(end(), UsageError)
    assert "closed" in str(end())


def test_a_second_call_of_a_reader_of_a_group_is_refused(client, topic):
    reader = client.subscribe(topic, group=f"of-{topic}")
    end = waiting(reader)
    refused(
        lambda: reader.pause(topic),
        lambda: reader.resume(topic),
        lambda: reader.seek(topic, 0, 0),
        reader.seek_to_end,
        lambda: reader.seek_to_time(0),
        reader.commit,
        lambda: next(reader),
        lambda: next(reader.batches()),
    )
    write(client, topic, (0, b"a"))
    assert end().value == b"a"
    reader.commit()
    end = waiting(reader)
    reader.close()
    assert isinstance(end(), UsageError)
    assert "closed" in str(end())
    with client.subscribe(topic, group=f"of-{topic}", wait=60) as later:
        write(client, topic, (0, b"b"))
        assert next(later).value == b"b"
