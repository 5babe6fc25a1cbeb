"""A broker whose next requests a test can delay, drop, duplicate or fail, and which a test can kill and start again."""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from stablelog.embedded import EmbeddedBroker, serve
from stablelog.errors import UsageError
from stablelog.testing.fault_proxy import HOST, FaultProxy
from stablelog.testing.faults import Faults

__all__ = ["FaultyBroker"]


class FaultyBroker:
    """A broker of `stablelog.serve` behind a proxy, in a `with` block. Any client library can use it.

    Args:
        data: the data directory; None for a temporary one.
        settings: settings of the broker by their names.
        more_settings: settings as keyword arguments, with `_` for each `.` of the name.

    Attributes:
        broker: the broker behind the proxy. Clients that connect to its own `bootstrap` get no faults.
        faults: the object by which a test requests faults: `faults.delay`, `faults.drop`, `faults.duplicate`,
            `faults.fail`.

    Raises:
        UsageError: a setting is unknown or out of range.

    Example:
        with FaultyBroker() as broker:
            fault = broker.faults.drop("Produce")  # the broker appends the records, and the response is lost
            with confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap}) as producer:
                producer.produce("greetings", b"hello")
            fault.wait()
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        **more_settings: object,
    ) -> None:
        given = {"advertised.listeners", "advertised_listeners", "host", "port"} & {
            *(settings or {}),
            *more_settings,
        }
        if given:
            raise UsageError(
                f"{min(given)} cannot be set for a faulty broker, which tells clients the address of its "
                "proxy"
            )
        self._proxy = FaultProxy()
        try:
            self.broker: EmbeddedBroker = serve(
                data,
                settings={**(settings or {}), "advertised.listeners": f"PLAINTEXT://{self._proxy.bootstrap}"},
                host=HOST,
                **more_settings,  # type: ignore[arg-type]
            )
        except BaseException:
            self._proxy.close()
            raise

    def __repr__(self) -> str:
        state = f"running as process {self.broker.pid}" if self.is_running else "not running"
        return f"<FaultyBroker at {self.bootstrap} on {self.broker.data}, {state}>"

    @property
    def bootstrap(self) -> str:
        """The address for clients, in the form of `bootstrap.servers`."""
        return self._proxy.bootstrap

    @property
    def faults(self) -> Faults:
        """The object by which a test requests faults for the next requests, such as `faults.drop("Produce")`."""
        return self._proxy.faults

    @property
    def is_running(self) -> bool:
        """Whether the broker's process runs."""
        return self.broker.is_running

    def start(self) -> None:
        """Start the broker, and wait until it accepts connections. Its address and its data stay the same.

        Raises:
            UnavailableError: the broker did not start; the message contains the end of its log.
            UsageError: it is running.
        """
        self.broker.start()
        self._proxy.target_port = self.broker.port

    def stop(self) -> None:
        """Stop the broker without a crash: it closes its partitions before it ends. Until `start`, the proxy closes
        each connection at once.
        """
        self._proxy.target_port = None
        self.broker.stop()
        self._proxy.disconnect()

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL, to simulate a crash. Until `start`, the proxy closes each connection
        at once.
        """
        self._proxy.target_port = None
        self.broker.kill()
        self._proxy.disconnect()

    def restart(self) -> None:
        """Kill the broker, and start it again on the same data."""
        self.kill()
        self.start()

    def reset(self) -> None:
        """Cancel all faults, close the connections of all clients, and start the broker if it does not run."""
        self.faults.clear()
        self._proxy.disconnect()
        if not self.is_running:
            self.start()

    def close(self) -> None:
        """Stop the broker, close the proxy, and remove a temporary data directory."""
        self._proxy.close()
        self.broker.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
