"""The two faces of the native client under one set of calls, so that a scenario is told once and both live through it."""

import asyncio
import contextlib
import threading
from concurrent.futures import Future

import pytest

import stablelog
from stablelog.client import internals
from tests.client.transactions import async_through, through

TIMEOUT_S = 90


class Threads:
    """The client as it is.

    Attributes:
        client: the client.
    """

    name = "threads"

    def __init__(self, client):
        self.client = client
        self.transaction, self.read = client.transaction, client.read
        self.subscribe = client.subscribe

    @classmethod
    def connect(cls, bootstrap, deadline):
        return cls(stablelog.connect(bootstrap, deadline=deadline))

    @classmethod
    def through(cls, proxy, broker):
        return cls(through(proxy, broker))

    def __enter__(self):
        self.client.__enter__()
        return self

    def __exit__(self, *error):
        self.client.__exit__(*error)

    def set_deadline(self, txn, deadline):
        internals.set_deadline(self.client, txn, deadline)


class Asyncio:
    """The asyncio client, in a loop of its own in a thread of its own."""

    name = "asyncio"

    def __init__(self, client):
        self.client = client
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(False)
        self._thread = threading.Thread(target=self._loop.run_forever)

    @classmethod
    def connect(cls, bootstrap, deadline):
        return cls(stablelog.aio.connect(bootstrap, deadline=deadline))

    @classmethod
    def through(cls, proxy, broker):
        return cls(async_through(proxy, broker))

    def __enter__(self):
        self._thread.start()
        return self

    def set_deadline(self, txn, deadline):
        async def change():
            internals.set_deadline_in_loop(txn.inner, deadline)

        self.run(change())

    def __exit__(self, *_):
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def transaction(self, *args, offsets_of=None, **more):
        async def begin():
            given = {} if offsets_of is None else {"offsets_of": getattr(offsets_of, "inner", offsets_of)}
            return self.client.transaction(*args, **more, **given)

        return _Transaction(self, self.run(begin()))

    def read(self, *args, **more):
        return _Reader(self, self.client.read(*args, **more))

    def subscribe(self, *args, **more):
        async def begin():
            return self.client.subscribe(*args, **more)

        return _GroupReader(self, self.run(begin()))


class _Reader:
    def __init__(self, face, reader):
        self._face, self.inner = face, reader

    def __iter__(self):
        return self

    def __next__(self):
        async def following():
            return await anext(self.inner, None)

        if (one := self._face.run(following())) is None:
            raise StopIteration
        return one

    @property
    def position(self):
        return self.inner.position

    def batches(self, *args):
        batches = self.inner.batches(*args)

        async def following():
            return await anext(batches, None)

        return iter(lambda: self._face.run(following()), None)

    def __getattr__(self, name):
        """The calls that wait for nothing."""
        return getattr(self.inner, name)

    def close(self):
        self._face.run(self.inner.close())


class _GroupReader:
    def __init__(self, face, reader):
        self._face, self.inner = face, reader

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        record = self._face.run(_next(self.inner))
        if record is None:
            raise StopIteration
        return record

    def batches(self, **more):
        rows = self.inner.batches(**more)
        while (one := self._face.run(_next(rows))) is not None:
            yield one

    @property
    def assignment(self):
        return self.inner.assignment

    def pause(self, *args):
        self.inner.pause(*args)

    def resume(self, *args):
        self.inner.resume(*args)

    def __getattr__(self, name):
        """The calls that wait for a broker."""
        call = getattr(self.inner, name)
        return lambda *args, **more: self._face.run(call(*args, **more))


def reading(reader):
    """What decides what a reader of a consumer group reads and commits."""
    return internals.reading_of(getattr(reader, "inner", reader))


async def _next(reader):
    return await anext(reader, None)


class _Transaction:
    def __init__(self, face, txn):
        self._face, self.inner = face, txn

    def flush(self):
        self._face.run(internals.flush_soon(self.inner))

    def __enter__(self):
        self._face.run(self.inner.__aenter__())
        return self

    def __exit__(self, kind, error, traceback):
        return self._face.run(self.inner.__aexit__(kind, error, traceback))

    def write(self, *args, **more):
        mirror = Future()
        mirror.set_running_or_notify_cancel()

        def copy(future):
            if future.exception() is None:
                mirror.set_result(future.result())
            else:
                mirror.set_exception(future.exception())

        async def write():
            (await self.inner.write(*args, **more)).add_done_callback(copy)

        self._face.run(write())
        return mirror

    def write_many(self, *args, **more):
        return self._face.run(self.inner.write_many(*args, **more))

    def commit(self):
        return self._face.run(self.inner.commit())

    def abort(self):
        self._face.run(self.inner.abort())


FACES = (Threads, Asyncio)


@contextlib.contextmanager
def connected(face, bootstrap, deadline=60):
    """A client of this face."""
    with face.connect(bootstrap, deadline) as client:
        yield client


# For tests of seconds, whose fixture `connect` has a face as its parameter.
ONE_BY_DAY = pytest.mark.parametrize(
    "connect",
    [Threads, pytest.param(Asyncio, marks=pytest.mark.night)],
    indirect=True,
    ids=lambda face: face.name,
)
