"""A thread whose failure is the scene's."""

import threading
from abc import abstractmethod

from demo.busy import LateError, is_late


class Task(threading.Thread):
    """A thread that is asked whether it has failed."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work, and keep what went wrong."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody looks
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """What the thread does, until it is done or stopping."""

    def is_running(self) -> bool:
        """Whether it still is.

        Raises:
            LateError: a time limit of its has passed.
            SystemExit: it has failed otherwise. Both end the scene.
        """
        if self._error is not None:
            kind = LateError if is_late(self._error) else SystemExit
            raise kind(f"{self.name} failed: {self._error}") from self._error
        return self.is_alive()

    def stop(self) -> None:
        """Stop, and wait for it."""
        self.stopping.set()
        self.join()
