"""Tests whether an object store keeps the promises on which stablelog relies, and measures its speed.

Some stores ignore the condition "only if the key does not exist" of a put. Two brokers could then overwrite each
other's objects, so stablelog must not use such a store. Each test writes below a key prefix of its own.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.env.objects.window import MIB
from stablelog.errors import DamageError, ObjectExistsError, ObjectMissingError, StablelogError, StoreError

RACER_COUNT = 16
RACES = 3
DIRECTORY = "check"
FAST, SLOW, LEAST = 8 * MIB, 0.5 * MIB, 64 << 10  # Rates in bytes a second.
LISTINGS = 5
UPLOADS_MAX = 12
UPLOAD_COUNT = 20  # Pieces of 1 MiB of the upload in parts.
# Pieces of 1 MiB by which the rates are measured: first, and again if the store is fast.
FEW_COUNT, MANY_COUNT = 4, 32
LIST_S_MAX = 1.0
# Names in the order of their bytes: "-" comes before "0", and capitals come before small letters.
IN_ORDER = ("-", "0-1", "00", "1", "10", "2", "A", "B", "a")


class StoreCheckResult(NamedTuple):
    """The result of one test of a store, or of one measurement.

    Attributes:
        promise: the promise of the store that was tested, or what was measured, in words.
        fault: how the store breaks the promise; empty if the store keeps it.
        measured: the result of a measurement in words; empty for a promise.
        slow: what the store is too slow for; empty if it is fast enough.
    """

    promise: str
    fault: str
    measured: str = ""
    slow: str = ""


def check(store: ObjectStore, now_s: Callable[[], float] = time.monotonic) -> Iterator[StoreCheckResult]:
    """Test each promise of a store, and measure its speed. The objects of the tests are deleted at the end.

    Args:
        store: the store.
        now_s: returns the time in seconds of a clock that is never set back.

    Yields:
        The result of each test and of each measurement, as soon as it is known. If the store breaks a promise, this is
        a result and not an error.

    Raises:
        StoreError: the store rejects requests, or does not answer.
    """
    directory = f"{DIRECTORY}/{uuid.uuid4().hex}"
    try:
        for promise, trial in TRIALS.items():
            try:
                fault = trial(store, f"{directory}/{trial.__name__.strip('_')}")
            except (ObjectExistsError, ObjectMissingError, DamageError) as error:
                fault = str(error)
            yield StoreCheckResult(promise, fault)
        yield from _rates(store, f"{directory}/rates", now_s)
    finally:
        for one in store.list_after(directory):
            store.delete(one.key)


def _rates(store: ObjectStore, directory: str, now_s: Callable[[], float]) -> Iterator[StoreCheckResult]:
    """Measure the throughput of writes and reads, and the time of a listing. Yield the result of each measurement."""

    def rate(size: int, work: Callable[[], object]) -> float:
        begun_s = now_s()
        work()
        return size / max(now_s() - begun_s, 1e-6)

    key, piece = f"{directory}/x", bytes(range(256)) * 4096
    count = FEW_COUNT
    written = rate(len(piece) * count, lambda: _send(store, key, piece, count))
    if written > FAST:
        # The time of the requests themselves counts less.
        count = MANY_COUNT
        written = rate(len(piece) * count, lambda: _send(store, key, piece, count))
    per_day = written * 86_400 / 1e9
    yield StoreCheckResult(
        "rate of writes",
        "",
        f"{_in_words(written)}: the broker copies at most {per_day:,.0f} GB a day",
        _slow_writes(written),
    )
    size = len(piece) * count
    read = rate(size, lambda: store.get_range(key, 0, size))
    yield StoreCheckResult("rate of reads", "", _in_words(read), _slow_reads(read))
    listings = [1 / rate(1, lambda: store.list_after(directory)) for _ in range(LISTINGS)]
    list_s = sorted(listings)[LISTINGS // 2]
    slow = f"a start: the first copy of 1,000 partitions lists 2,000 times, and takes {2_000 * list_s / 600:.0f} minutes"
    yield StoreCheckResult(
        "time of a listing", "", f"{list_s * 1000:.0f} ms", slow if list_s > LIST_S_MAX else ""
    )


def _send(store: ObjectStore, key: str, piece: bytes, count: int) -> None:
    """Upload an object of `count` equal pieces. If the link to the store is slow, the first attempts may fail. Each of
    them makes the requests smaller, until they suit the link.
    """
    for attempt in range(1, UPLOADS_MAX + 1):
        try:
            return store.upload(key, lambda: [piece] * count, len(piece) * count)
        except StoreError as error:
            if error.is_rejected or attempt == UPLOADS_MAX:
                raise
    raise AssertionError("unreachable: the last attempt to upload the object returns or raises")


def _in_words(rate: float) -> str:
    return f"{rate / MIB:,.2f} MiB/s"


def _slow_writes(rate: float) -> str:
    if rate < LEAST:
        return "copies: a part of a segment may never be sent within its time limit. At least 0.06 MiB/s are needed"
    if rate < SLOW:
        return (
            f"large segments: the copy of a segment of 1 GiB takes {1024 * MIB / rate / 3600:.1f} hours, and the local "
            "disk keeps what is not copied. Use a smaller segment.bytes"
        )
    return ""


def _slow_reads(rate: float) -> str:
    if rate < LEAST:
        return "reads: a chunk of 4 MiB takes longer than a minute. At least 0.06 MiB/s are needed"
    if rate < SLOW:
        return (
            f"lookups by time: a chunk of 4 MiB takes {4 * MIB / rate:.0f} s, and a request without a time limit of its "
            "own waits 10 s. Use a smaller stablelog.remote.chunk.bytes"
        )
    return ""


def require_conditions(store: ObjectStore, name: str) -> None:
    """Raise an error if the store lets a `create` replace an existing object.

    Args:
        store: the store.
        name: a name that no other caller uses. A caller that repeats a failed call uses the same name again, so that
            this call deletes what the failed one has left.

    Raises:
        StoreError: the store rejects requests, or does not answer. A small object may be left, which the repeated call
            deletes.
        StablelogError: the store ignores the condition of a conditional put.
    """
    key = f"{DIRECTORY}/{name}"
    fault = _created_once(store, key)
    store.delete(f"{key}/x")
    if fault:
        raise StablelogError(
            f"the object store {store.url} is not safe, because it ignores the condition of "
            f"conditional puts: {fault}. Use another store, or enable conditional puts in this one"
        )


def _created_once(store: ObjectStore, directory: str) -> str:
    key = f"{directory}/x"
    store.create(key, b"first")
    try:
        store.create(key, b"second")
    except ObjectExistsError:
        return "" if store.get(key) == b"first" else "a refused create replaced the object"
    return "a second create of a key replaced its object: the store ignores If-None-Match"


def _race(store: ObjectStore, directory: str) -> str:
    def create(key: str, content: bytes) -> bool:
        try:
            store.create(key, content)
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(RACER_COUNT) as threads:
        for race in range(RACES):
            key = f"{directory}/{race}"
            racers = [b"%d" % number for number in range(RACER_COUNT)]
            won = list(threads.map(create, [key] * RACER_COUNT, racers))
            if sum(won) != 1:
                return f"of {RACER_COUNT} writers that created a key at the same time {sum(won)} succeeded"
            if store.get(key) != racers[won.index(True)]:
                return "the object of a create race is not that of the writer who was told to have won"
    return ""


def _ranges(store: ObjectStore, directory: str) -> str:
    content, key = bytes(range(256)) * 16, f"{directory}/x"
    store.create(key, content)
    for start, size in ((0, 1), (1000, 100), (len(content) - 1, 1), (0, len(content))):
        if store.get_range(key, start, size) != content[start : start + size]:
            return f"the range of {size} bytes from {start} on has other bytes than the object"
    try:
        store.get_range(key, len(content) - 1, 2)
    except DamageError:
        return ""
    return "a range that goes past the end of an object was answered"


def _listing(store: ObjectStore, directory: str) -> str:
    for name in reversed(IN_ORDER):
        store.create(f"{directory}/{name}", name.encode())
        if f"{directory}/{name}" not in {one.key for one in store.list_after(directory)}:
            return "an object was not listed right after it was created"
    found = [one.key.rpartition("/")[2] for one in store.list_after(directory)]
    if tuple(found) != IN_ORDER:
        return f"a listing has the order {' '.join(found)}, and not that of bytes: {' '.join(IN_ORDER)}"
    after = [one.key.rpartition("/")[2] for one in store.list_after(directory, f"{directory}/1")]
    if tuple(after) != IN_ORDER[4:]:
        return f"a listing after 1 has {' '.join(after)}, and not {' '.join(IN_ORDER[4:])}"
    return ""


def _upload(store: ObjectStore, directory: str) -> str:
    piece, count, key = bytes(range(256)) * 4096, UPLOAD_COUNT, f"{directory}/x"
    _send(store, key, piece, count)
    if [one.size for one in store.list_after(directory)] != [len(piece) * count]:
        return "an upload in several parts has another size than its parts"
    middle = len(piece) * (count - 3) - 5
    return (
        ""
        if store.get_range(key, middle, 10) == piece[-5:] + piece[:5]
        else "the parts of an upload are mixed up"
    )


def _deletion(store: ObjectStore, directory: str) -> str:
    key = f"{directory}/x"
    store.create(key, b"1")
    store.delete(key)
    store.delete(key)
    if store.list_after(directory):
        return "an object was listed after it was deleted"
    try:
        store.get(key)
    except ObjectMissingError:
        store.create(key, b"2")
        return "" if store.get(key) == b"2" else "a key that was created again has its old content"
    return "an object was returned after it was deleted"


TRIALS: dict[str, Callable[[ObjectStore, str], str]] = {
    "a key is created once": _created_once,
    f"of {RACER_COUNT} writers that create a key at the same time one succeeds": _race,
    "ranges of an object": _ranges,
    "a listing is complete, at once, in the order of keys": _listing,
    f"an upload of {UPLOAD_COUNT} MiB in parts is whole": _upload,
    "a deleted object is gone, and its key is free": _deletion,
}
