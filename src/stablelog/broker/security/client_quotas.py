"""The quotas of clients: their file, changes of quotas, and the measured rates.

A change is durable before it takes effect. Changes are made one after another. The file is written in a thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.monitoring.metrics import Sample
from stablelog.broker.network.connection_limits import AT_ONCE, Arrival
from stablelog.broker.runtime import Runtime
from stablelog.broker.security.file_writer import store_in_thread
from stablelog.broker.security.request_throttle import RequestThrottle, StepTimer
from stablelog.data_directory.quota_file import encode_quotas, quota_file
from stablelog.errors import RefusedError
from stablelog.security.quotas.entities import Alteration, altered_values
from stablelog.security.quotas.rates import MS_PER_S, Rate, Sensors, TokenBucket, Windows
from stablelog.security.quotas.table import QuotaTable
from stablelog.settings import INT_MAX
from stablelog.wire.quotas import QuotaKey

ENTITY_COUNT_MAX: Final = 10_000
# No limit for the whole broker: the default of max.connection.creation.rate.
UNLIMITED: Final = INT_MAX


class BrokerQuotas:
    """The quotas of a broker, and the rates of its clients.

    Args:
        runtime: the settings, the disk and the tasks of the broker.
        threads: the threads that write the file.

    Attributes:
        table: the quotas.
        limits_clients: whether there is a quota that may apply to a client. If not, requests are not measured.
        limits_time: whether there is a quota of request time that may apply to a client.
        throttled: the number of throttled requests and connections, by the key of the quota.
        throttled_ms: the sum of their throttle times in ms, by the key of the quota.

    Raises:
        UnknownFormatError: a later release has written the file of quotas.
        DamageError: the file is damaged, or missing although the broker had written it.
    """

    def __init__(self, runtime: Runtime, *, threads: Executor) -> None:
        config = self._config = runtime.config
        self.now_ms = runtime.clock.now_ms
        self._file = quota_file(runtime.disk, runtime.directory, runtime.reserve)
        self._threads = threads
        self._tasks = runtime.tasks
        self._lock = asyncio.Lock()
        self.windows = Windows(config["quota.window.num"], config["quota.window.size.seconds"] * MS_PER_S)
        bursts = Windows(
            config["controller.quota.window.num"], config["controller.quota.window.size.seconds"] * MS_PER_S
        )
        self.throttled: Counter[QuotaKey] = Counter()
        self.throttled_ms: Counter[QuotaKey] = Counter()
        self._rates = {key: Sensors(lambda: Rate(self.windows)) for key in QuotaKey}
        self._buckets = Sensors(lambda: TokenBucket(bursts))
        self._arrivals = Rate(self.windows)
        self._use_table(QuotaTable(self._file.load()))

    def _use_table(self, table: QuotaTable) -> None:
        self.table = table
        self.limits_clients = bool(table.keys - {QuotaKey.CONNECTION_CREATION_RATE})
        self.limits_time = QuotaKey.REQUEST_PERCENTAGE in table.keys

    # -- requests ----------------------------------------------------------------------------------------------

    def begin_request(
        self,
        user: str,
        client_id: str | None,
        size: int,
        timer: StepTimer | None,
        mute: Callable[[int], None],
    ) -> RequestThrottle:
        """Begin to measure one request of a client, and return its throttle, the object that charges the request to the
        quotas.

        Args:
            user: the name of the client's principal.
            client_id: the client id of the request.
            size: bytes of the request.
            timer: measures the processor time of the request; None if no quota limits time.
            mute: called with a number of milliseconds, for which the client's connection then begins no requests.
        """
        return RequestThrottle(self, user, client_id or "", size, timer, mute)

    def client_rate(self, key: QuotaKey, measured: tuple[str, str]) -> Rate:
        """Return the rate that is measured for a client, or for several clients together, and compared with a quota.

        Args:
            key: the key of the quota.
            measured: (user, client id) of the clients that are measured together; "" stands for all users or all client
                ids.
        """
        return self._rates[key].get(measured, self.now_ms())

    def client_bucket(self, measured: tuple[str, str]) -> TokenBucket:
        """Return the token bucket that limits how many partitions are created and deleted by a client, or by several
        clients that are measured together.

        Args:
            measured: (user, client id) of these clients; "" stands for all users or all client ids.
        """
        return self._buckets.get(measured, self.now_ms())

    def count_throttled(self, key: QuotaKey, ms: int) -> None:
        """Count a request or connection that was throttled for `ms` milliseconds because of a quota."""
        self.throttled[key] += 1
        self.throttled_ms[key] += ms

    # -- connections -------------------------------------------------------------------------------------------

    def count_connection(self, host: str) -> Arrival:
        """Count a new connection from a host, and return the delay after which it is served or closed; a delay of 0
        means at once.

        A connection above the quota of its IP address is closed after the delay. A connection above the rate of the
        whole broker is served after the delay. The delay is at most the size of a window, as in Kafka.
        """
        now_ms = self.now_ms()
        key = QuotaKey.CONNECTION_CREATION_RATE
        limit = self.table.quota_of_address(host)
        if limit is not None:
            own = self._rates[key].get(host, now_ms)
            own.record(1, now_ms)
            delay_ms = min(own.throttle_ms(limit, now_ms), self.windows.size_ms)
            if delay_ms:
                own.record(-1, now_ms)  # the connection is not served
                self.count_throttled(key, delay_ms)
                return Arrival(delay_ms, f"its address opens more than {limit:g} connections per second")
        broker_limit: int = self._config["max.connection.creation.rate"]
        if broker_limit == UNLIMITED:
            return AT_ONCE
        self._arrivals.record(1, now_ms)
        delay_ms = min(self._arrivals.throttle_ms(broker_limit, now_ms), self.windows.size_ms)
        if delay_ms:
            self.count_throttled(key, delay_ms)
        return Arrival(delay_ms)

    # -- changes -----------------------------------------------------------------------------------------------

    async def alter_quotas(
        self, changes: Sequence[Alteration], *, validate_only: bool
    ) -> list[RefusedError | None]:
        """Change the quotas of entities. The new quotas are durable and in effect on return.

        Args:
            changes: the changes.
            validate_only: whether the changes are only checked.

        Returns:
            For each change, why it was refused; None if it was made.

        Raises:
            RefusedError: the disk refused the write; nothing changed.
        """
        return await self._tasks.run_for_request("quotas", lambda: self._alter(changes, validate_only))

    async def _alter(self, changes: Sequence[Alteration], validate_only: bool) -> list[RefusedError | None]:
        async with self._lock:
            before = self.table.entities
            after = dict(before)
            outcomes: list[RefusedError | None] = []
            async for change in in_turns(changes):
                try:
                    after[change.entity] = altered_values(after.get(change.entity, {}), change)
                    if not after[change.entity]:
                        del after[change.entity]
                    elif len(after) > ENTITY_COUNT_MAX and change.entity not in before:
                        del after[change.entity]
                        raise RefusedError(
                            ErrorCode.policy_violation,
                            f"at most {ENTITY_COUNT_MAX} entities may have quotas: set default quotas for the others",
                        )
                    outcomes.append(None)
                except RefusedError as refused:
                    outcomes.append(refused)
            if not validate_only and after != before:
                content, table = await in_thread_to_its_end(
                    self._threads, lambda: (encode_quotas(after), QuotaTable(after))
                )
                await store_in_thread(self._threads, self._file, content)
                self._use_table(table)
            return outcomes

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of quotas: how many requests were throttled and for how long, and how many rates are
        measured.
        """
        for key, count in self.throttled.items():
            yield Sample("stablelog_throttled", (key.value,), count)
            yield Sample("stablelog_throttle_seconds", (key.value,), self.throttled_ms[key] / MS_PER_S)
        measured = sum(map(len, self._rates.values())) + len(self._buckets)
        yield Sample("stablelog_measured_clients", (), measured)
