"""Rates, throttle times and token buckets against a simple model, and bounded memory."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.security.quotas.rates import THROTTLE_MS_MAX, Rate, Sensors, TokenBucket, Windows
from tests.scale import examples

WINDOWS = Windows(11, 1000)


class Model:
    """All values ever recorded, and the windows in which they lie."""

    def __init__(self, windows):
        self.windows = windows
        self.samples = []  # [begin, [(time, value)]]

    def record(self, value, now):
        if not self.samples or now >= self.samples[-1][0] + self.windows.size_ms:
            self.samples.append((now, []))
        self.samples[-1][1].append((now, value))

    def measured(self, now):
        kept = [
            (begin, events) for begin, events in self.samples if now - events[-1][0] < self.windows.span_ms
        ]
        total = sum(value for _, events in kept for _, value in events)
        elapsed = now - kept[0][0] if kept else 0
        full = elapsed // self.windows.size_ms
        if full < self.windows.number - 1:
            elapsed += (self.windows.number - 1 - full) * self.windows.size_ms
        return total, max(elapsed, 1)

    def throttle_ms(self, quota, now):
        total, elapsed = self.measured(now)
        rate = total / (elapsed / 1000)
        return max(0, min(math.floor((rate - quota) / quota * elapsed + 0.5), THROTTLE_MS_MAX))


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 10, 500, 999, 1000, 3000, 10_999, 11_000, 30_000]), st.integers(0, 10**7)
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=examples(300))
@given(
    steps=STEPS, quota=st.floats(0.5, 10**6), count=st.integers(2, 12), size_ms=st.sampled_from([1000, 5000])
)
def test_a_rate_and_its_throttle_time_are_those_of_the_model(steps, quota, count, size_ms):
    windows, now = Windows(count, size_ms), 1_700_000_000_000
    rate, model = Rate(windows), Model(windows)
    for wait, value in steps:
        now += wait
        rate.record(value, now)
        model.record(value, now)
        total, elapsed = model.measured(now)
        assert rate.total(now) == total
        assert rate.measured_ms(now) == elapsed
        # A sum in another order may be rounded to the other millisecond.
        assert abs(rate.throttle_ms(quota, now) - model.throttle_ms(quota, now)) <= 1
        assert rate.is_idle(now) is False
        assert rate.is_idle(now + windows.span_ms)


@settings(deadline=None, max_examples=examples(50))
@given(seconds=st.floats(0.01, 2), quota=st.integers(10, 10**6), latency_ms=st.integers(1, 300))
def test_a_client_that_waits_for_its_throttle_times_gets_its_quota_and_no_more(seconds, quota, latency_ms):
    rate, begin = Rate(WINDOWS), 1_700_000_000_000
    size, now, total = max(int(seconds * quota), 1), begin, 0
    while now - begin < 600_000:
        rate.record(size, now)
        total += size
        now += latency_ms + rate.throttle_ms(quota, now)
    allowed = quota * (now - begin) / 1000
    # Samples are forgotten as a whole, so a client may be above its quota by about one window in ten, as in Kafka.
    assert total <= 1.15 * allowed + quota * 11 + size
    fastest = size / (latency_ms / 1000)
    assert total >= 0.8 * min(allowed, fastest * (now - begin) / 1000) - size


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(200))
@given(
    draws=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 500)), min_size=1, max_size=40),
    quota=st.floats(0.1, 50),
)
def test_a_bucket_is_never_fuller_than_its_burst_and_refuses_as_long_as_it_is_below_zero(draws, quota):
    bucket, now, tokens = TokenBucket(WINDOWS), 1_700_000_000_000, quota * 11
    for wait, count in draws:
        now += wait
        tokens = min(quota * 11, tokens + quota * wait / 1000)
        throttle_ms = bucket.throttle_ms(quota, now)
        if tokens < -1e-6:
            assert throttle_ms == pytest.approx(-tokens / quota * 1000, abs=1)
        elif tokens > 1e-6:
            assert throttle_ms == 0
        if not throttle_ms:
            bucket.draw(count, quota, now)
            tokens = min(quota * 11, tokens - count)
        full_in = (quota * 11 - tokens) / quota * 1000
        assert bucket.is_idle(now + math.ceil(full_in) + 1)
        assert not bucket.is_idle(now + math.floor(full_in) - 2) or full_in < 3


@pytest.mark.extended
def test_a_client_that_changes_its_client_id_takes_no_memory_by_it():
    sensors = Sensors(lambda: Rate(WINDOWS), count_max=1000)
    now = 1_700_000_000_000
    for n in range(100_000):
        sensors.get(("", f"client-{n}"), now).record(1, now)
        assert len(sensors) <= 1000
    later = now + WINDOWS.span_ms
    sensors.get("last", later).record(1, later)
    assert len(sensors) == 1


def test_a_client_that_is_active_keeps_its_rate_while_others_come_and_go():
    sensors = Sensors(lambda: Rate(WINDOWS), count_max=10)
    now = 1_700_000_000_000
    for n in range(1000):
        sensors.get(("", f"client-{n}"), now).record(1, now)
        sensors.get("steady", now).record(1, now)
    assert sensors.get("steady", now).total(now) == 1000
