"""The calls of `stablelog produce` to its broker: what is reported of an error, and of a full disk."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType

from stablelog.cli.disk_watch import WaitReporter, disk_watch, fail_if_full
from stablelog.cli.exit_codes import NoBrokerError
from stablelog.cli.output import fail
from stablelog.errors import RefusedError, UnavailableError


class BrokerCalls(contextlib.AbstractContextManager[None]):
    """Context in which the command makes all its calls to the broker. It reports their errors, and that the disk of the
    broker is full.

    Args:
        bootstrap: the addresses of the broker.

    Attributes:
        watch: reports that the broker's disk is full, if the command waits for a long time.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_waiting = threading.Event()
        self.watch: WaitReporter = disk_watch(bootstrap, self._is_waiting.is_set)

    def __enter__(self) -> None:
        self.watch.mark_progress()
        self._is_waiting.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_waiting.clear()
        self.watch.mark_progress()

    def make_call(self, work: Callable[[], None], what: str) -> None:
        """Make a call to the broker that concerns no single record, such as the commit of a transaction.

        Args:
            work: a function that makes the call.
            what: names the work in messages.

        Raises:
            NoBrokerError: no broker responds.
        """
        try:
            with self:
                work()
        except RefusedError as refused:
            fail(f"{what}: {refused}")
        except UnavailableError as failure:
            fail_if_full(self._bootstrap, what)
            raise NoBrokerError(f"{what}: {failure}") from failure
