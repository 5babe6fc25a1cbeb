"""No call of `client.admin` takes longer than its deadline, with all its requests, whatever the network does."""

import asyncio
import contextlib
import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import stablelog
from stablelog.client.blocking import admin
from stablelog.client.core.admin.topics import create_topic
from stablelog.client.core.steps import NOW
from stablelog.errors import StablelogError, UnavailableError
from stablelog.wire.acls import AclFilter
from stablelog.wire.sasl.scram import Mechanism
from tests.client.test_time import PATIENCE_S, black_hole, silent, standing_still, trickle

DEADLINE_S = 0.5
T0 = ("t", 0)
# For each method, the arguments of a call.
CALLS = {
    "brokers.list": (),
    "brokers.log_directories": (),
    "topics.list": (),
    "topics.describe": ("t",),
    "topics.create": ("t",),
    "topics.add_partitions": ("t", 2),
    "topics.delete": ("t",),
    "topics.delete_records": ({T0: 1},),
    "topics.offsets": ({T0: -1},),
    "configs.describe": ("broker", "1"),
    "configs.alter": ("topic", "t", {"retention.ms": "1"}),
    "groups.list": (),
    "groups.describe": ("g",),
    "groups.offsets": ("g",),
    "groups.commit_offsets": ("g", {T0: 1}),
    "groups.delete_offsets": ("g", [T0]),
    "groups.delete": ("g",),
    "transactions.list": (),
    "transactions.describe": ("x",),
    "transactions.producers": ([T0],),
    "transactions.abort": ("x",),
    "transactions.abort_hanging": ("t", 0, 5),
    "users.list": (),
    "users.set_password": ("alice", "secret"),
    "users.remove_password": ("alice", Mechanism.SHA_256),
    "acls.list": (),
    "acls.add": ([],),
    "acls.remove": ([AclFilter()],),
    "quotas.list": (),
    "quotas.alter": ({"user": "alice"}, {"producer_byte_rate": 1.0}),
}
FIRST = "brokers.log_directories"  # it uses the connections with the metadata that are idle


def method_of(client, name):
    area, method = name.split(".")
    return getattr(getattr(client.admin, area), method)


def durations(bootstrap, before=None):
    """Call each method, all at the same time, after a function was called with the client. Return how long each took, and its error."""

    def timed(name):
        began, error = time.monotonic(), None
        try:
            method_of(client, name)(*CALLS[name])
        except StablelogError as raised:
            error = raised
        return name, time.monotonic() - began, error

    with stablelog.connect(bootstrap, deadline=DEADLINE_S) as client:
        if before is not None:
            before(client)
        first = [timed(FIRST)] if before is not None else []
        with ThreadPoolExecutor(len(CALLS)) as threads:
            return [*first, *threads.map(timed, CALLS)]


async def async_durations(bootstrap, before=None):
    async def timed(name):
        began, error = time.monotonic(), None
        try:
            await method_of(client, name)(*CALLS[name])
        except StablelogError as raised:
            error = raised
        return name, time.monotonic() - began, error

    async with stablelog.aio.connect(bootstrap, deadline=DEADLINE_S) as client:
        if before is not None:
            await before(client)
        first = [await timed(FIRST)] if before is not None else []
        return [*first, *await asyncio.gather(*map(timed, CALLS))]


def check(found):
    others = {name for name, _, error in found if not isinstance(error, UnavailableError)}
    assert others <= {FIRST}, "a broker that does not respond is left out of the list of directories"
    assert [(name, took) for name, took, _ in found if took > PATIENCE_S] == []


def test_each_method_has_a_call():
    areas = [
        area for area in vars(admin).values() if inspect.isclass(area) and admin.AdminArea in area.__bases__
    ]
    methods = {
        f"{area.__name__.removesuffix('Admin').lower()}s.{name}"
        for area in areas
        for name in vars(area)
        if not name.startswith("_")
    }
    assert methods == CALLS.keys()


@pytest.mark.extended
@pytest.mark.parametrize("network", [silent, black_hole, trickle], ids=lambda network: network.__name__)
def test_no_call_to_a_broker_that_cannot_be_reached_takes_longer(network):
    with network() as address:
        check(durations(address))
        check(asyncio.run(async_durations(address)))


@pytest.mark.extended
def test_no_call_to_a_broker_that_stands_still_takes_longer():
    """The metadata is known: what is asked then is outside the retries of a request."""
    with stablelog.serve() as broker:
        with contextlib.ExitStack() as still:

            def stop(client):
                client.admin.brokers.list()
                still.enter_context(standing_still(broker))

            found = durations(broker.bootstrap, stop)
        check(found)
        with contextlib.ExitStack() as still:

            async def async_stop(client):
                await client.admin.brokers.list()
                still.enter_context(standing_still(broker))

            found = asyncio.run(async_durations(broker.bootstrap, async_stop))
        check(found)


def test_a_broker_may_work_on_a_change_until_the_deadline():
    """A topic with thousands of partitions takes longer than the 10 s that were asked for once."""
    asked = []

    class Connection:
        def request_steps(self, request):
            asked.append(request)
            raise UnavailableError("enough")
            yield

    class Cluster:
        def any_connection(self):
            return Connection()
            yield

        def time_left_s(self, now):
            return 120.0 - now

        def retrying(self, _what, attempt):
            return attempt()

    steps = create_topic(Cluster(), "t")
    assert steps.send(None) is NOW
    with pytest.raises(UnavailableError, match="enough"):
        steps.send(20.0)
    assert asked[0].timeout == timedelta(seconds=100)
