"""The measured rates of clients, and the time that brings a rate back to its quota.

A rate is computed as Kafka's `Rate` over a `SampledStat`: rate = S / max(T, L). S is the sum of the values in the last
n time windows. T is the time since the first of these windows began. L is the length of n - 1 windows, so that a few
values after a start do not look like a high rate. A token bucket is Kafka's `TokenBucket` (KIP-599).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

MS_PER_S: Final = 1000
# A throttle time is a field of four bytes in a response.
THROTTLE_MS_MAX: Final = 2**31 - 1
SENSOR_COUNT_MAX: Final = 10_000


class Windows(NamedTuple):
    """The time windows over which a rate is measured: their number and their size."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        """The length of all windows together, in ms. A rate does not count values that are older than this."""
        return self.number * self.size_ms


class _Sample:
    __slots__ = ("begin_ms", "last_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.begin_ms = self.last_ms = now_ms
        self.value = 0.0


class Sensor(Protocol):
    """What measures the activity of one client: a rate or a token bucket."""

    def is_idle(self, now_ms: int) -> bool:
        """Return whether the client was inactive for so long that the sensor is in the same state as a new one, and can
        be dropped.
        """


class Rate:
    """The rate of a client, such as its bytes per second. It is measured over the last time windows: `record` adds a
    value to the present window, and values older than all windows do not count.

    Args:
        windows: the number of the windows and their size.
    """

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []

    def record(self, value: float, now_ms: int) -> None:
        """Add a value to the rate. A negative value cancels an earlier one."""
        samples = self._samples
        if not samples or now_ms - samples[-1].begin_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
            self._forget(now_ms)
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def _forget(self, now_ms: int) -> None:
        since_ms = now_ms - self._windows.span_ms
        while self._samples and self._samples[0].last_ms <= since_ms:
            del self._samples[0]

    def is_idle(self, now_ms: int) -> bool:
        """Return whether the last windows contain no value."""
        return not self._samples or now_ms - self._samples[-1].last_ms >= self._windows.span_ms

    def measured_ms(self, now_ms: int) -> int:
        """Return the number of milliseconds by which the sum of the values is divided to get the rate."""
        self._forget(now_ms)
        elapsed_ms = now_ms - self._samples[0].begin_ms if self._samples else 0
        missing = self._windows.number - 1 - elapsed_ms // self._windows.size_ms
        return max(elapsed_ms + max(missing, 0) * self._windows.size_ms, 1)

    def total(self, now_ms: int) -> float:
        """Return the sum of the values in the last windows."""
        self._forget(now_ms)
        return sum(sample.value for sample in self._samples)

    def per_second(self, now_ms: int) -> float:
        """Return the rate per second."""
        return self.total(now_ms) * MS_PER_S / self.measured_ms(now_ms)

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return for how many milliseconds the client must wait until its rate is down to a quota; 0 if the rate is
        not above the quota.
        """
        rate = self.per_second(now_ms)
        if rate <= quota:
            return 0
        return _whole_ms((rate - quota) / quota * self.measured_ms(now_ms))


class TokenBucket:
    """A token bucket, which measures a client that may exceed its quota for a short time. Tokens flow into the bucket
    at the rate of the quota, up to a greatest level (the burst). Each operation takes some out, also below zero; the
    client is throttled until the level is zero again.
    """

    __slots__ = ("_full_ms", "_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._updated_ms = 0  # so long ago that the bucket is full
        self._full_ms = 0

    def _fill(self, quota: float, now_ms: int) -> float:
        """Fill the bucket: add the tokens for the time since the last call, at the rate of the quota. Return the burst,
        which is the greatest level of the bucket.
        """
        burst = quota * self._windows.span_ms / MS_PER_S
        self._tokens = min(burst, self._tokens + quota * (now_ms - self._updated_ms) / MS_PER_S)
        self._updated_ms = now_ms
        return burst

    def draw(self, count: float, quota: float, now_ms: int) -> None:
        """Take `count` tokens out of the bucket. The level may fall below zero. `quota` is the number of tokens that
        flow in each second.
        """
        burst = self._fill(quota, now_ms)
        self._tokens = min(burst, self._tokens - count)
        self._full_ms = now_ms + math.ceil((burst - self._tokens) / quota * MS_PER_S)

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return how many milliseconds pass until the level of the bucket is zero or more; 0 if it is so already."""
        self._fill(quota, now_ms)
        return 0 if self._tokens >= 0 else max(_whole_ms(-self._tokens / quota * MS_PER_S), 1)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether the bucket is full, as a new one is, so that it can be dropped."""
        return now_ms >= self._full_ms


def _whole_ms(ms: float) -> int:
    return min(math.floor(ms + 0.5), THROTTLE_MS_MAX) if ms < THROTTLE_MS_MAX else THROTTLE_MS_MAX


Kind = TypeVar("Kind", bound=Sensor)


class Sensors(Generic[Kind]):
    """The sensors (rates or token buckets) of recently active clients, at most `count_max`.

    An idle sensor is removed. If more clients are active, the sensor that was not used for the longest time is removed.
    A client that changes its client id with each request therefore gets a new sensor each time, but cannot use up the
    memory.
    """

    def __init__(self, make: Callable[[], Kind], count_max: int = SENSOR_COUNT_MAX) -> None:
        self._make = make
        self._count_max = count_max
        self._sensors: OrderedDict[Hashable, Kind] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sensors)

    def get(self, key: Hashable, now_ms: int) -> Kind:
        """Return the sensor (rate or token bucket) of a client; a new one if the client has none. `key` identifies the
        client.
        """
        sensor = self._sensors.get(key)
        if sensor is None:
            self.expire(now_ms)
            if len(self._sensors) >= self._count_max:
                self._sensors.popitem(last=False)
            sensor = self._sensors[key] = self._make()
        else:
            self._sensors.move_to_end(key)
        return sensor

    def expire(self, now_ms: int) -> None:
        """Remove the sensors of clients that were inactive for so long that a new sensor would have the same state."""
        while self._sensors:
            key, oldest = next(iter(self._sensors.items()))
            if not oldest.is_idle(now_ms):
                return
            del self._sensors[key]

    def clear(self) -> None:
        """Remove all sensors."""
        self._sensors.clear()
