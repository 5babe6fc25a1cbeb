"""Each wrong argument of the client raises at the call: TypeError for a wrong type, UsageError for a value that is not valid.
The message has what was given and what is right.
"""

import asyncio
import datetime as dt
import decimal
import math
import re

import numpy as np
import pytest

import stablelog
from stablelog.errors import RefusedError, UsageError
from tests.client.faces import Threads
from tests.client.transactions import create, visible

NOWHERE = "localhost:1"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HUGE = 10**5000  # Python refuses to write it as text
LONE = "\ud800"  # a surrogate, which UTF-8 cannot encode

CONNECT = [
    *(
        ({"bootstrap": one}, TypeError, "bootstrap must be text")
        for one in (None, 9092, [NOWHERE], b"localhost:1")
    ),
    *(
        ({"bootstrap": one}, UsageError, "write host:port")
        for one in ("", "localhost", "localhost:", "9092", "http://h:1")
    ),
    *(
        ({"bootstrap": f"h:{port}"}, UsageError, "a number from 1 to 65535")
        for port in (0, 65536, "1" * 5000)
    ),
    *(({"deadline": one}, TypeError, "deadline must be a number of seconds") for one in ("5", True, [])),
    *(({"deadline": one}, UsageError, "from 0 to 2147483") for one in (-1, math.nan, math.inf, 3e6, 10**400)),
    *(({"settings": one}, TypeError, "must be") for one in ({"client.id"}, "client.id", {1: "a"})),
    ({"settings": {"client.name": "a"}}, UsageError, r"client\.name is unknown"),
    ({"settings": {"client.id": 5}}, UsageError, r"client\.id=5 is not valid"),
]

TRANSACTION = [
    *(
        ({"timeout": one}, TypeError, "timeout must be a number")
        for one in ("30", None, True, dt.timedelta(1))
    ),
    *(
        ({"timeout": one}, UsageError, "greater than 0, up to 2147483")
        for one in (0, -1, math.nan, math.inf, 3e6, 10**400, HUGE)
    ),
    *(
        ({"group": one}, TypeError, "group must be the name of a transaction group")
        for one in (None, 5, b"g")
    ),
    ({"group": "a b"}, UsageError, "group 'a b' is not valid"),
    ({"offsets_of": "reader"}, TypeError, "offsets_of must be a reader that subscribe"),
]

TOPICS = [
    *(
        ({"topics": one}, TypeError, "topics must be the name of a topic")
        for one in (None, 5, b"t", ["t", 5], [None])
    ),
    *(
        ({"topics": one}, UsageError, "not a valid topic name: use")
        for one in ("", "bad name!", ["t", ".."], "x" * 250)
    ),
    *(({"topics": one}, UsageError, "name one topic or several") for one in ([], (), iter([]))),
    *(({"wait": one}, TypeError, "wait must be a number of seconds") for one in ("5", True, dt.timedelta(1))),
    *(({"wait": one}, UsageError, "from 0 to 2147483") for one in (-1, math.nan, 3e6)),
]

READ = [
    *TOPICS,
    *(
        ({"after": one}, TypeError, "after must be the position of a reader")
        for one in (1.5, True, b"1", NOW)
    ),
    *(({"after": one}, UsageError, "is no commit sequence") for one in (-1, 1 << 63, 10**30)),
    ({"after": "3"}, UsageError, "not the text of a position"),
    *(({"cut": one}, TypeError, "cut must be True or False") for one in ("yes", 1, None)),
    ({"skip_unreadable": "no"}, TypeError, "skip_unreadable must be True or False"),
    ({"order": "log"}, UsageError, "only be read with order='commit'"),
    ({"order": None}, TypeError, "order must be text"),
    ({"group": 5}, TypeError, "group must be the name of a transaction group"),
    ({"group": "a b"}, UsageError, "group 'a b' is not valid"),
]

SUBSCRIBE = [
    *TOPICS,
    *(({"group": one}, TypeError, "group must be the name of a consumer group") for one in (None, 5, b"g")),
    ({"group": ""}, UsageError, "group is empty"),
    *(({name: "x"}, UsageError, f"{name}='x' is not valid: use") for name in ("isolation", "start")),
    *(({name: None}, TypeError, f"{name} must be text") for name in ("isolation", "start")),
    ({"instance_id": 5}, TypeError, "instance_id must be a text"),
    ({"instance_id": ""}, UsageError, "instance_id is empty"),
    *(
        ({name: one}, UsageError, f"{name}.* {words}")
        for one, words in (
            (LONE, "is no text that UTF-8 can encode"),
            ("é" * 20_000, "40000 bytes: at most 32767"),
        )
        for name in ("group", "instance_id")
    ),
    ({"topics": re.compile(LONE)}, UsageError, "topics is no text that UTF-8 can encode"),
    ({"topics": re.compile("a" * 100_000)}, UsageError, "100000 bytes: at most 32767"),
]

BATCHES = [
    *(
        ({"max_records": one}, TypeError, "max_records must be a number of records")
        for one in ("5", 1.5, None, True)
    ),
    *(({"max_records": one}, UsageError, "at least one record") for one in (0, -1)),
    *(({"max_wait": one}, TypeError, "max_wait must be a number of seconds") for one in ("5", None, True)),
    *(({"max_wait": one}, UsageError, "from 0 to 2147483") for one in (-1, math.nan)),
]

WRITE = [
    *(({"topic": one}, TypeError, "topic must be the name of a topic") for one in (None, 5, b"t", ["t"], {})),
    *(
        ({"topic": one}, UsageError, "not a valid topic name: use")
        for one in ("", "bad name!", ".", "x" * 250)
    ),
    ({"topic": "nope"}, RefusedError, "topics create nope` creates it"),
    ({"topic": "__consumer_offsets"}, RefusedError, "internal topic"),
    *(
        ({name: one}, TypeError, f"{name} must be bytes, text or None, and not")
        for name in ("key", "value")
        for one in (5, 1.5, {"a": 1}, ["a"], bytearray(b"a"), memoryview(b"a"))
    ),
    *(({name: LONE}, UsageError, f"{name} is no text that UTF-8 can encode") for name in ("key", "value")),
    *(
        ({"partition": one}, TypeError, "partition must be the number of a partition")
        for one in (1.0, 0.5, "1", True, decimal.Decimal(1))
    ),
    *(({"partition": one}, RefusedError, "only 0 to 1") for one in (-1, 2, 10**30)),
    ({"partition": HUGE}, UsageError, "partition=.* is out of range: the number of a partition"),
    *(
        ({"timestamp_ms": one}, TypeError, "timestamp_ms must be a whole number of milliseconds")
        for one in (NOW, NOW.timestamp(), "2020", math.nan, True, dt.timedelta(1))
    ),
    *(({"timestamp_ms": one}, UsageError, "out of range: from 0 to") for one in (-1, 1 << 62, 10**20)),
    ({"timestamp_ms": HUGE}, UsageError, "out of range: a whole number of milliseconds"),
    *(({"headers": one}, TypeError, "a mapping from names to values") for one in ("ab", b"ab", None, 5)),
    *(({"headers": one}, TypeError, "is no pair") for one in ([("a",)], ["ab"], [("a", b"1", b"2")], [5])),
    ({"headers": {"a": 1}}, TypeError, "the value of the header 'a' must be bytes, text or None"),
    ({"headers": {b"a": b"1"}}, TypeError, "the name of a header must be text"),
    ({"headers": {LONE: b"1"}}, UsageError, "the name of a header is no text that UTF-8 can encode"),
    ({"headers": {"a": LONE}}, UsageError, "the value of the header 'a' is no text that UTF-8 can encode"),
    ({"headers_": 1}, TypeError, "headers_"),
]


WRITE_MANY = [
    *(one for one in WRITE if not {"key", "value", "headers_"} & one[0].keys()),
    *(
        ({name: one}, TypeError, f"{name} must be a list")
        for name in ("values", "keys")
        for one in ("ab", b"ab", 5, {"ab": 1})
    ),
    ({"values": [b"a", 5]}, TypeError, r"values\[1\] must be bytes, text or None, and not int"),
    ({"keys": [LONE]}, UsageError, r"keys\[0\] is no text"),
    ({"keys": []}, UsageError, "1 values and 0 keys"),
]


def refused(call, cases, **right):
    for wrong, error, words in cases:
        with pytest.raises(error, match=words) as raised:
            call(**(right | wrong))
        assert type(raised.value) is error or error is RefusedError, wrong


@pytest.mark.parametrize("connect", [stablelog.connect, stablelog.aio.connect], ids=["threads", "asyncio"])
def test_connect_names_a_wrong_argument(connect):
    refused(connect, CONNECT, bootstrap=NOWHERE)


def test_calls_that_begin_something_name_a_wrong_argument(client):
    refused(client.transaction, TRANSACTION)
    refused(client.read, READ, topics="t")
    refused(client.subscribe, SUBSCRIBE, topics="t", group="g")
    reader, group = client.read("t"), client.subscribe("t", group="g")
    # Of the inner ones, because the batches of a face begin with the first one that is asked for.
    for one in (reader, group) if isinstance(client, Threads) else (reader.inner, group.inner):
        refused(one.batches, BATCHES)
    with pytest.raises(TypeError, match="after must be the position of a reader"):
        reader.seek(1.5)
    reader.close()
    group.close()


@pytest.mark.extended
def test_write_names_a_wrong_argument_and_the_transaction_goes_on(stablelog_broker, client):
    topic = create(stablelog_broker.bootstrap)
    with client.transaction() as txn:
        refused(txn.write, WRITE, topic=topic, value=b"v")
        refused(txn.write_many, WRITE_MANY, topic=topic, values=[b"v"])
        txn.write(
            topic, "after", headers={"a": None, "": "b"}, partition=np.int32(1), timestamp_ms=np.int64(1)
        )
    assert list(visible(stablelog_broker.bootstrap, topic).values()) == [b"after"]
    (read,) = client.read(topic, wait=5)
    assert read.records[0].headers == (("a", None), ("", b"b"))
    assert read.records[0].timestamp_ms == 1


TIMEOUTS = [
    *(
        ({"timeout": one}, TypeError, "timeout must be a number of seconds, or None")
        for one in (True, "5", [])
    ),
    ({"timeout": math.nan}, UsageError, "the timeout nan is not valid"),
    *(({"timeout": one}, TimeoutError, "has not ended within the timeout") for one in (0, -1, -HUGE)),
]
CALLBACKS = [({"callback": one}, TypeError, "callback must be a function") for one in (None, 5, "f")]


def test_a_future_names_a_wrong_argument(stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    with stablelog.connect(stablelog_broker.bootstrap) as client, client.transaction() as txn:
        future = txn.write(topic, b"v")
        refused(future.result, TIMEOUTS)
        refused(future.exception, TIMEOUTS)
        refused(future.add_done_callback, CALLBACKS)
        txn.commit()
        for timeout in (HUGE, math.inf, -1):
            assert future.result(timeout).topic == topic

    async def in_loop():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client, client.transaction() as txn:
            refused((await txn.write(topic, b"v")).add_done_callback, CALLBACKS)

    asyncio.run(in_loop())


def test_the_longest_expression_reaches_the_broker(stablelog_broker):
    """A longer one would end the connection."""
    longest = re.compile("x" * 32_767)
    with (
        stablelog.connect(stablelog_broker.bootstrap) as client,
        client.subscribe(longest, group="longest", wait=0) as reader,
        pytest.raises(RefusedError, match="the pattern has 32767 characters"),
    ):
        next(reader)


def test_a_closed_client_refuses_at_the_call(face):
    with face.connect(NOWHERE, 5) as client:
        pass
    for begin in (client.transaction, client.read, client.subscribe) if face is Threads else (client.read,):
        with pytest.raises(RefusedError, match="is closed: make another one"):
            begin(
                *(["t"] if begin != client.transaction else []),
                **({"group": "g"} if begin == client.subscribe else {}),
            )
