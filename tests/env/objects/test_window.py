"""Requests to a store over a slow link: they end, and what has come is kept."""

import threading
import time

import pytest

from stablelog.env.objects import cloud
from stablelog.env.objects.attempts import SlowError, UnclearError
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import PART_SIZE_MIN, RANGE_SIZE_MIN, ObjectStore, Patience
from stablelog.env.objects.window import IDLE_S, LONG_S, QUICK_S, RATE_MAX, RATE_MIN, TransferWindow
from stablelog.errors import DamageError, StoreError
from stablelog.testing.s3 import serve_s3
from stablelog.testing.s3_faults import S3Fault
from stablelog.testing.sim_objects import SimObjects, StoreFaults

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RATES = [65 * KIB, 200 * KIB, MIB, 3 * MIB, 30 * MIB]


class Sizes(SimObjects):
    """A store that keeps only the sizes of what it gets by uploads, over a link with a rate."""

    def __init__(self, rate):
        super().__init__(faults=StoreFaults(latency_s=0), rate=rate)
        self.sizes = {}

    def upload(self, key, pieces, pace):
        size = sum(map(len, pieces))
        self.send(size, min(pace.part_size * pace.parts_at_once, size), pace.limit_s)
        self.sizes[key] = size


def of(objects):
    return ObjectStore(objects, now_s=objects.now_s, sleep=objects.sleep)


@pytest.mark.parametrize("size", [16 * MIB, GIB], ids=["16 MiB", "1 GiB"])
@pytest.mark.parametrize("rate", RATES)
def test_segments_are_uploaded_one_after_another_at_any_rate(rate, size):
    objects, piece = Sizes(rate), bytes(16 * MIB)
    store, failed = of(objects), 0
    for number in range(3):
        # The copier repeats a copy that has failed, under another key.
        while f"a/{number}" not in objects.sizes:
            try:
                store.upload(f"a/{number}", lambda: (piece for _ in range(size // len(piece))), size)
            except StoreError:
                failed += 1
                assert failed < 12
    assert list(objects.sizes.values()) == [size] * 3
    # What is lost until the window fits the link does not depend on the size of the segments.
    assert objects.moved_size <= 3 * size + 64 * MIB
    assert objects.now_s() <= 3 * size / rate + 20 * IDLE_S


@pytest.mark.parametrize("rate", RATES)
def test_ranges_come_over_a_slow_link_without_a_loss(rate):
    objects = SimObjects(faults=StoreFaults(latency_s=0), rate=rate)
    objects.objects["a/b"] = content = bytes(range(256)) * (32 * KIB)
    store = of(objects)
    for start in range(0, len(content), 4 * MIB):
        assert store.get_range("a/b", start, 4 * MIB) == content[start : start + 4 * MIB]
    assert objects.moved_size == len(content)


def test_the_ranges_that_have_come_are_kept_when_one_fails():
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    objects.objects["a/b"] = bytes(range(256)) * (4 * KIB)
    asked = []

    class Broken(SimObjects):
        def get_range(self, key, start, size):
            asked.append((start, size))
            if size > 256 * KIB or len(asked) == 5:
                raise SlowError("no byte has come")
            return objects.get_range(key, start, size)

    store = of(Broken(faults=StoreFaults(latency_s=0)))
    assert store.get_range("a/b", 0, MIB) == objects.objects["a/b"]
    begins = [start for start, _ in asked]
    assert begins == sorted(begins), "no range is requested again that has come"
    assert max(size for _, size in asked[2:]) <= 256 * KIB


def test_a_range_never_becomes_smaller_than_the_least_size():
    asked = []

    class Dead(SimObjects):
        def get_range(self, _key, _start, size):
            asked.append(size)
            raise SlowError("no byte has come")

    objects = Dead(faults=StoreFaults(latency_s=0))
    store = ObjectStore(objects, Patience(limit_s=10_000), now_s=objects.now_s, sleep=objects.sleep)
    with pytest.raises(StoreError):
        store.get_range("a/b", 0, 4 * MIB)
    assert min(asked) == RANGE_SIZE_MIN
    asked.clear()
    with pytest.raises(StoreError):
        store.get_range("a/b", 0, 100)
    assert set(asked) == {100}


def test_a_range_beyond_the_end_is_damage_also_in_small_ranges():
    objects = SimObjects(faults=StoreFaults(latency_s=0))
    objects.objects["a/b"] = bytes(20 * MIB)
    with pytest.raises(DamageError, match=f"has fewer than {30 * MIB} bytes"):
        of(objects).get_range("a/b", 0, 30 * MIB)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def window(size=64):
    """A window of so many MiB."""
    clock = Clock()
    return TransferWindow(4 * MIB, size * MIB, 256 * MIB, clock), clock


def take(one, clock, size, took_s, *, times_out=False, total=None):
    try:
        with one.reserve(size, lambda: 1e9, total=total) as timed_out:
            clock.now_s += took_s
            if times_out:
                timed_out()
                raise UnclearError
    except UnclearError:
        pass


def test_the_window_follows_the_time_of_the_requests():
    one, clock = window()
    take(one, clock, 40 * MIB, QUICK_S / 2)
    assert one.size == 128 * MIB
    take(one, clock, 40 * MIB, QUICK_S / 2)
    assert one.size == 128 * MIB, "the window was not used"
    take(one, clock, 100 * MIB, (QUICK_S + LONG_S) / 2)
    assert one.size == 128 * MIB
    take(one, clock, 100, 2 * LONG_S)
    assert one.size == 128 * MIB, "a small request waits for the store, and not for the link"
    take(one, clock, 100 * MIB, LONG_S + 1)
    assert one.size == 64 * MIB
    for _ in range(10):
        take(one, clock, 4, 30, times_out=True)
    assert one.size == 4 * MIB
    for _ in range(10):
        take(one, clock, 300 * MIB, 0.1)
    assert one.size == 256 * MIB
    take(one, clock, MIB, 10 * LONG_S, total=GIB)
    assert one.size == 256 * MIB, "the bytes that were under way together took little time"


def test_the_time_limit_follows_the_rate():
    one, clock = window()
    assert one.limit_s(RATE_MAX) == IDLE_S + 1
    take(one, clock, 40, 30, times_out=True)
    assert one.rate == RATE_MAX // 2
    for took_s in (0.01, 10):
        take(one, clock, 100, took_s)
        assert one.rate == RATE_MAX // 2, "a small request does not show the rate"
    take(one, clock, 4 * MIB, 4)
    assert one.rate == MIB // 4
    take(one, clock, 4 * MIB, 2, total=GIB)
    assert one.rate == RATE_MAX
    for _ in range(20):
        take(one, clock, 40, 30, times_out=True)
    assert one.rate == RATE_MIN
    assert one.limit_s(PART_SIZE_MIN) > PART_SIZE_MIN / (64 * KIB)


def test_requests_that_were_under_way_together_change_the_window_once():
    one, clock = window()
    with one.reserve(20 * MIB, lambda: 1e9) as first:
        with one.reserve(20 * MIB, lambda: 1e9) as second:
            clock.now_s = 1.5
            second()
        first()
    assert one.size == 32 * MIB


def test_a_request_waits_for_room_and_not_longer_than_the_process():
    one = TransferWindow(4, 64, 256, time.monotonic)
    waited = threading.Event()

    def other():
        with one.reserve(40, lambda: 1e9):
            waited.set()

    thread = threading.Thread(target=other)
    with one.reserve(40, lambda: 1e9):
        thread.start()
        with pytest.raises(StoreError, match="the broker stops"), one.reserve(40, lambda: 0):
            pass
        assert not waited.is_set()
    thread.join(60)
    assert waited.is_set()


@pytest.mark.extended
def test_eight_readers_share_a_slow_link_and_nothing_is_sent_twice(monkeypatch):
    """The times are those of a link of 1 MiB a second, divided by 50. The chunks together take longer than the limit."""
    monkeypatch.setattr(cloud, "IDLE_S", IDLE_S / 50)
    chunk_size, rate = 256 * KIB, 4 * MIB
    with serve_s3() as s3:
        store = open_store("s3://bucket/prefix", allow_http=True, options=s3.options)
        s3.objects["prefix/a"] = bytes(chunk_size)
        store.get_range("a", 0, 1)
        s3.down.rate, moved_size = rate, s3.down.moved_size
        got = []

        def read():
            got.append(len(store.get_range("a", 0, chunk_size)))

        threads = [threading.Thread(target=read) for _ in range(16)]
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        took_s = time.monotonic() - begun_s
    assert got == [chunk_size] * 16
    assert took_s > IDLE_S / 50, "together they take longer than the limit of one of them"
    assert s3.down.moved_size - moved_size == sum(got)


def test_a_slow_upload_goes_on_after_a_failed_part(monkeypatch):
    with serve_s3() as s3:
        store = open_store("s3://bucket/prefix", allow_http=True, options=s3.options)
        s3.fail(S3Fault("part", status=503))
        content = bytes(range(256)) * (80 * KIB)
        store.upload("a", lambda: [content], len(content))
        assert s3.objects["prefix/a"] == content
        assert s3.counts["begin"] == 1
        assert s3.counts["part"] == 3, "the other part is not sent again"
