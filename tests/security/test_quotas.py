"""Quotas: rates and throttle times against a simple model, precedence, checks, and bounded memory."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.errors import RefusedError
from stablelog.security.quotas.entities import (
    Alteration,
    Component,
    Entity,
    Part,
    altered,
    check_filter,
    entity_of,
    selects,
)
from stablelog.security.quotas.rates import THROTTLE_MS_MAX, Rate, Sensors, TokenBucket, Windows
from stablelog.security.quotas.table import LEVELS, QuotaTable
from stablelog.wire.quotas import QuotaKey
from tests.scale import examples

DEFAULT, ABSENT = Part.DEFAULT, Part.ABSENT
RATE = QuotaKey.PRODUCER_BYTE_RATE
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


NAMES = st.sampled_from(["a", "b", ""])


@settings(deadline=None, max_examples=examples(300))
@given(
    levels=st.sets(st.sampled_from([(u, c) for u in ("a", DEFAULT, ABSENT) for c in ("a", DEFAULT, ABSENT)])),
    user=st.sampled_from(["a", "b"]),
    client=NAMES,
)
def test_the_most_specific_entity_has_the_quota(levels, user, client):
    levels = [pair for pair in levels if pair != (ABSENT, ABSENT)]
    table = QuotaTable({Entity(*pair): {RATE: n + 1.0} for n, pair in enumerate(levels)})
    order = [
        ("own", "own"), ("own", DEFAULT), ("own", ABSENT), (DEFAULT, "own"),
        (DEFAULT, DEFAULT), (DEFAULT, ABSENT), (ABSENT, "own"), (ABSENT, DEFAULT),
    ]  # fmt: skip
    fits = [(user if u == "own" else u, client if c == "own" else c) for u, c in order]
    expected = next((pair for pair in fits if pair in levels), None)
    found = table.of_client(RATE, user, client)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found.limit == levels.index(expected) + 1
        assert found.measured == (
            "" if expected[0] is ABSENT else user,
            "" if expected[1] is ABSENT else client,
        )
    assert table.of_client(QuotaKey.CONSUMER_BYTE_RATE, user, client) is None
    assert len(LEVELS) == 8


def test_an_address_has_its_own_quota_or_the_default_however_it_is_written():
    key = QuotaKey.CONNECTION_CREATION_RATE
    table = QuotaTable(
        {
            Entity(ip="10.0.0.1"): {key: 1.0},
            Entity(ip="0:0::1"): {key: 2.0},
            Entity(ip=DEFAULT): {key: 3.0},
        }
    )
    found = [table.of_address(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "::1", "10.0.0.2", "?")]
    assert found == [1, 1, 2, 3, 3]
    assert QuotaTable({}).of_address("10.0.0.1") is None


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "Invalid empty client quota entity"),
        ([("group", "x")], "Unhandled client quota entity type: 'group'"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("ip", None)], "ip cannot be combined"),
        ([("ip", "example.org")], "example.org is not a valid IP address"),
        ([("client-id", "x" * 1025)], "1025 characters"),
    ],
)
def test_an_entity_that_is_not_valid_is_refused(pairs, why):
    with pytest.raises(RefusedError, match=why) as caught:
        entity_of(pairs)
    assert caught.value.code.name == "invalid_request"


USER = Entity(user="a")
ADDRESS = Entity(ip=DEFAULT)


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        (USER, "retention.ms", 1.0, "Invalid configuration key 'retention.ms'"),
        (USER, "connection_creation_rate", 1.0, "Invalid configuration key"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key"),
        (USER, "producer_byte_rate", 0.0, "must be greater than 0"),
        (USER, "producer_byte_rate", -1.0, "must be greater than 0"),
        (USER, "request_percentage", math.nan, "must be greater than 0"),
        (USER, "request_percentage", math.inf, "must be finite"),
        (USER, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        (USER, "producer_byte_rate", 1e19, "too large"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "too large"),
    ],
)
def test_a_value_that_is_not_valid_is_refused_and_nothing_changes(entity, key, value, why):
    present = {RATE: 5.0}
    with pytest.raises(RefusedError, match=why):
        altered(present, Alteration(entity, {"consumer_byte_rate": None, key: value}))
    assert present == {RATE: 5.0}


def test_quotas_are_set_and_removed():
    change = Alteration(USER, {"request_percentage": 12.5, "producer_byte_rate": None, "nonsense": None})
    assert altered({RATE: 5.0}, change) == {QuotaKey.REQUEST_PERCENTAGE: 12.5}


ENTITIES = [
    Entity(*parts)
    for parts in itertools.product(("a", "b", DEFAULT, ABSENT), ("a", DEFAULT, ABSENT))
    if parts != (ABSENT, ABSENT)
] + [Entity(ip="::1"), Entity(ip=DEFAULT)]


@pytest.mark.parametrize(
    ("components", "strict", "count"),
    [
        ([], False, 13),
        ([], True, 0),
        ([("user", 0, "a")], False, 3),
        ([("user", 0, "a")], True, 1),
        ([("user", 1, None)], False, 3),
        ([("user", 2, None)], False, 9),
        ([("user", 2, None)], True, 3),
        ([("user", 2, None), ("client-id", 2, None)], True, 6),
        ([("user", 2, None), ("client-id", 0, "a")], False, 3),
        ([("ip", 2, None)], True, 2),
        ([("ip", 0, "::1")], False, 1),
    ],
)
def test_a_filter_selects_as_kafkas(components, strict, count):
    components = [Component(*one) for one in components]
    check_filter(components)
    assert sum(selects(components, entity, strict=strict) for entity in ENTITIES) == count


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


def test_a_long_client_id_is_told_apart_by_few_bytes():
    table = QuotaTable({Entity(client_id=DEFAULT): {RATE: 1.0}})
    long, other = "x" * 30_000, "x" * 29_999
    measured = [table.of_client(RATE, "u", name).measured[1] for name in (long, long, other)]
    assert measured[0] == measured[1] != measured[2]
    assert max(map(len, measured)) <= 256
