"""What a task reads is what a read-committed client reads, also where the tail is no record."""

import pytest

from stablelog.errors import Unavailable
from stablelog.spark.fetch import plan, read
from stablelog.spark.options import read_options
from tests.clients.drivers import Confluent, unique


def options(broker, topic, isolation="read_committed"):
    return read_options({"bootstrap": broker.bootstrap, "subscribe": topic, "isolation": isolation})


def rows(broker, topic, isolation="read_committed"):
    asked = options(broker, topic, isolation)
    return [m.value() for wanted in plan(asked) for messages in read(asked, wanted) for m in messages]


@pytest.mark.parametrize("fates", [(True, False), (False, False), (False, True, True), ()])
def test_a_range_ends_by_position(stablelog_broker, fates):
    topic = unique("range")
    client = Confluent(stablelog_broker.bootstrap)
    client.produce(topic, [b"first"])
    with client.transactions(unique("t")) as run:
        for n, commit in enumerate(fates):
            run(topic, [b"%d-%d" % (n, i) for i in range(10)], commit=commit)
    wanted = [b"first"] + [b"%d-%d" % (n, i) for n, commit in enumerate(fates) for i in range(10) if commit]
    assert rows(stablelog_broker, topic) == wanted
    assert len(rows(stablelog_broker, topic, "read_uncommitted")) == 1 + 10 * len(fates)


def test_a_topic_that_is_not_there_is_named(stablelog_broker):
    with pytest.raises(Unavailable, match="there is no topic 'nowhere'"):
        plan(options(stablelog_broker, "nowhere"))
