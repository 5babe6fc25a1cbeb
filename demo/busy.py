"""A time limit that has passed: because the machine is too busy, or because something is wrong.

A scene, or a process that it has started, raises `LateError` when one of its own limits has passed. The clients of Kafka
and Spark have limits of their own, and raise errors of their own; `is_late` knows them. At the end, one place decides: if
the machine was busy, the scene has proved nothing, and has not failed; if not, it has failed.
"""

import os
import subprocess
import sys
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
LOAD_MAX = 1.5  # processes for each core; a scene that waits for what never comes causes far less
LATE_CODES = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 - its name in the library
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._FENCED,  # noqa: SLF001 - the broker has aborted the transaction after its timeout
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
# Errors that say only in their text that they were late: those of Spark, and of a broker's start.
COULD_NOT_CONNECT = (
    "Python worker failed to connect back",
    "error occurred while trying to connect to the Java server",
)
LATE_WORDS = (*COULD_NOT_CONNECT, "was not ready within", "TimeoutError", "SocketTimeoutException")


class LateError(SystemExit):
    """A time limit of the scene has passed. Its argument says in a sentence what did not happen."""


def is_late(error: BaseException) -> bool:
    """Return whether an error says that a time limit has passed."""
    if isinstance(error, LateError | TimeoutError | subprocess.TimeoutExpired):
        return True
    if isinstance(error, KafkaException):
        cause = error.args[0]
        return isinstance(cause, KafkaError) and cause.code() in LATE_CODES
    return any(words in str(error) for words in LATE_WORDS)


def load() -> float:
    """Return how many processes ran, or waited for a core or the disk, for each core: the mean of the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def is_busy() -> bool:
    """Return whether so much runs on the machine that a time limit may have passed for this reason alone."""
    return load() >= LOAD_MAX


def too_busy(error: BaseException) -> str:
    """Return what a user is told of a scene that the machine was too busy for."""
    first_line = str(error).partition("\n")[0]
    return (
        f"the machine is too busy: {first_line}. In the last minute, {load():.1f} processes ran or waited for each of its "
        f"{os.cpu_count()} cores. The scene has neither failed nor proved anything: run it again when less runs beside it"
    )


def run_child(work: Callable[[], None]) -> int:
    """Run a process that the scene has started. Return its exit code, which is EXIT_CODE if a time limit has passed."""
    try:
        work()
    except (Exception, LateError) as error:
        if not is_late(error):
            raise
        sys.stderr.write(f"{error}\n")
        return EXIT_CODE
    return 0
