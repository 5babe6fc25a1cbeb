"""The throttling of one request: charging it to the quotas of its client, and muting the client's connection.

As in Kafka (KIP-219), the response is sent at once and names the throttle time. The connection begins no requests for
this time.
"""

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import replace
from datetime import timedelta
from time import thread_time_ns
from typing import Any, Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.security.quotas.entities import INT_MAX
from stablelog.security.quotas.rates import MS_PER_S, Rate, TokenBucket, Windows
from stablelog.security.quotas.table import QuotaTable
from stablelog.wire.quotas import QuotaKey

PERCENT_PER_NS: Final = 100 / 1e9  # of one processor, as in Kafka

Result = TypeVar("Result")


class StepTimer:
    """Measures the processor time of a request on the event loop, without the time of other tasks between its steps."""

    def __init__(self) -> None:
        self._ended_ns = 0
        self._since_ns = 0
        self._is_running = False

    @property
    def spent_ns(self) -> int:
        """The processor time up to now, in nanoseconds."""
        running_ns = thread_time_ns() - self._since_ns if self._is_running else 0
        return self._ended_ns + running_ns

    def run_timed(self, work: Coroutine[Any, Any, Result]) -> Awaitable[Result]:
        """Run a coroutine, and measure each of its steps (from one await to the next)."""
        return _Timed(self, work)

    def begin_step(self) -> None:
        """Start to measure a step of the request."""
        self._since_ns, self._is_running = thread_time_ns(), True

    def end_step(self) -> None:
        """Add the time of the step that has ended to the time of the request."""
        self._ended_ns, self._is_running = self.spent_ns, False


class _Timed(Awaitable[Result]):
    def __init__(self, timer: StepTimer, work: Coroutine[Any, Any, Result]) -> None:
        self._timer = timer
        self._work = work

    def __await__(self) -> Generator[Any, Any, Result]:
        step, argument = self._work.send, None
        while True:
            self._timer.begin_step()
            try:
                awaited = step(argument)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._timer.end_step()
            try:
                step, argument = self._work.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - as `yield from` does
                step, argument = self._work.throw, error


class ClientRates(Protocol):
    """The part of `BrokerQuotas` that the throttling of a request uses: the quotas, and the measured rates of
    clients.
    """

    table: QuotaTable
    windows: Windows
    now_ms: Callable[[], int]

    def client_rate(self, key: QuotaKey, measured: tuple[str, str]) -> Rate:
        """Return the rate that is measured for a client, or for several clients together, and compared with the quota
        of `key`. `measured` is the (user, client id) of these clients; "" stands for all users or all client ids.
        """

    def client_bucket(self, measured: tuple[str, str]) -> TokenBucket:
        """Return the token bucket that limits how many partitions are created and deleted by a client, or by several
        clients that are measured together. `measured` is the (user, client id) of these clients; "" stands for all
        users or all client ids.
        """

    def count_throttled(self, key: QuotaKey, ms: int) -> None:
        """Count a request that was throttled for `ms` milliseconds because of a quota."""


class RequestThrottle:
    """The throttling of one request.

    Args:
        quotas: the quotas of the broker, and the rates of its clients.
        user: the name of the client's principal.
        client_id: the client id of the request.
        size: bytes of the request.
        timer: measures the processor time of the request; None if no quota limits time.
        mute: called with a number of milliseconds, for which the client's connection then begins no requests.

    Attributes:
        ms: the throttle time so far, in ms.
    """

    def __init__(
        self,
        quotas: ClientRates,
        user: str,
        client_id: str,
        size: int,
        timer: StepTimer | None,
        mute: Callable[[int], None],
    ) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._size = size
        self.ms = 0
        self._timer = timer
        self._mute = mute
        self._charged_ns = 0

    def _throttle_client(self, key: QuotaKey, ms: int) -> None:
        if ms > 0:
            self._quotas.count_throttled(key, ms)
            if ms > self.ms:
                self.ms = ms
                # At once: while this request waits for the disk, the connection would begin many more.
                self._mute(ms)

    def charge_produce(self) -> None:
        """Charge the bytes of a Produce request to the client's quota of produced bytes."""
        key = QuotaKey.PRODUCER_BYTE_RATE
        applied = self._quotas.table.quota_of_client(key, self._user, self._client_id)
        if applied is not None:
            rate, now_ms = self._quotas.client_rate(key, applied.measured), self._quotas.now_ms()
            rate.record(self._size, now_ms)
            self._throttle_client(key, rate.throttle_ms(applied.limit, now_ms))

    def fetch_size_max(self) -> int:
        """Return the largest number of bytes that a Fetch response may have: as many as the client's quota allows in
        all the time windows over which its rate is measured.
        """
        applied = self._quotas.table.quota_of_client(QuotaKey.CONSUMER_BYTE_RATE, self._user, self._client_id)
        if applied is None:
            return INT_MAX
        windows = self._quotas.windows
        return max(
            math.floor(min(applied.limit * (windows.span_ms - windows.size_ms) / MS_PER_S, INT_MAX)), 1
        )

    def charge_fetch(self, size: int) -> bool:
        """Charge a Fetch response of `size` bytes to the client's quota, unless the client is above the quota already.

        If the client is above a quota, nothing is charged: the response has to be empty, and the client waits. A
        response that is larger than the quota of all windows is nevertheless sent to a client that has fetched nothing
        in these windows, and the client waits afterwards. Otherwise a client could never fetch a batch of this size.

        Returns:
            Whether the response may be sent with its records.
        """
        self.charge_time()
        key = QuotaKey.CONSUMER_BYTE_RATE
        applied = self._quotas.table.quota_of_client(key, self._user, self._client_id)
        if applied is None:
            return self.ms == 0
        rate, now_ms = self._quotas.client_rate(key, applied.measured), self._quotas.now_ms()
        is_first = rate.total(now_ms) <= 0
        rate.record(size, now_ms)
        throttle_ms = rate.throttle_ms(applied.limit, now_ms)
        may_fetch = self.ms == 0 and (not throttle_ms or is_first)
        if not may_fetch:
            rate.record(-size, now_ms)
        self._throttle_client(key, throttle_ms)
        return may_fetch

    def charge_partitions(self, count: int, *, is_strict: bool) -> None:
        """Charge the creation or deletion of partitions to the client's quota (KIP-599).

        Args:
            count: the number of partitions.
            is_strict: whether a client above its quota is refused, because it knows the error code. Otherwise the
                change is made, and the client waits afterwards.

        Raises:
            RefusedError: the client is above its quota already, and `is_strict`. Nothing is charged.
        """
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        applied = self._quotas.table.quota_of_client(key, self._user, self._client_id)
        if applied is None:
            return
        bucket, now_ms = self._quotas.client_bucket(applied.measured), self._quotas.now_ms()
        if is_strict:
            throttle_ms = bucket.throttle_ms(applied.limit, now_ms)
            if throttle_ms:
                self._throttle_client(key, throttle_ms)
                raise RefusedError(
                    ErrorCode.throttling_quota_exceeded,
                    f"the client creates and deletes more than {applied.limit:g} partitions per second: retry in {throttle_ms} ms",
                )
            bucket.draw(count, applied.limit, now_ms)
        else:
            bucket.draw(count, applied.limit, now_ms)
            self._throttle_client(key, bucket.throttle_ms(applied.limit, now_ms))

    def charge_time(self) -> int:
        """Charge the processor time that the request has taken since the last charge to the client's quota.

        The first charge may throttle the client, for at most the size of a window. The time in which the response is
        encoded is charged later. It does not change the throttle time, which the response contains already.

        Returns:
            The throttle time in ms.
        """
        if self._timer is None:
            return self.ms
        key = QuotaKey.REQUEST_PERCENTAGE
        applied = self._quotas.table.quota_of_client(key, self._user, self._client_id)
        spent_ns, charged_ns = self._timer.spent_ns, self._charged_ns
        self._charged_ns = spent_ns
        if applied is not None:
            rate, now_ms = self._quotas.client_rate(key, applied.measured), self._quotas.now_ms()
            rate.record((spent_ns - charged_ns) * PERCENT_PER_NS, now_ms)
            if not charged_ns:
                throttle_ms = rate.throttle_ms(applied.limit, now_ms)
                self._throttle_client(key, min(throttle_ms, self._quotas.windows.size_ms))
        return self.ms

    def with_throttle_time(self, response: Any) -> Any:
        """Charge the processor time of the request to the client's quota. Return the response with the throttle time,
        if the response has a field for it; otherwise return it unchanged.
        """
        if not self._charged_ns:
            self.charge_time()
        if self.ms and hasattr(response, "throttle_time"):
            return replace(response, throttle_time=timedelta(milliseconds=self.ms))
        return response
