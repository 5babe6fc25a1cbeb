"""What becomes of a transaction that nobody ends: its futures fail at its deadline, though nobody asks."""

import threading
import time
from typing import Final

from stablelog.client.writing import Writing

AGAIN_S: Final = 0.1  # for what somebody is at


class Deadlines:
    """The transactions of a client that are open, and a thread that waits for their deadlines while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Writing, float] = {}
        self._next = 0.0  # when the thread wakes up
        self._is_watched = False

    def add(self, writing: Writing) -> None:
        """It is open."""
        with self._changed:
            self._due[writing] = writing.deadline
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="stablelog-deadlines", daemon=True).start()
            elif writing.deadline < self._next:
                self._changed.notify()

    def remove(self, writing: Writing) -> None:
        """It has ended."""
        with self._changed:
            self._due.pop(writing, None)

    def wake(self) -> None:
        """Have the thread end now, if nothing is open, and not at the deadline of what was."""
        with self._changed:
            self._changed.notify()

    def _watch(self) -> None:
        while (overdue := self._wait()) is not None:
            for writing in overdue:
                is_settled = writing.expire()
                with self._changed:
                    if is_settled:
                        self._due.pop(writing, None)
                    elif writing in self._due:
                        self._due[writing] = time.monotonic() + AGAIN_S

    def _wait(self) -> list[Writing] | None:
        """What is overdue, once something is; None if nothing is open any more."""
        with self._changed:
            while self._due:
                now = time.monotonic()
                overdue = [writing for writing, due in self._due.items() if due <= now]
                if overdue:
                    return overdue
                self._next = min(self._due.values())
                self._changed.wait(self._next - now)
            self._is_watched = False
            return None
