"""The error classes of stablelog.

    StablelogError
    ├── UsageError               an argument or a setting is unknown or outside its valid range
    │   └── NothingStoredError   an object store that a read names has no object yet
    ├── RefusedError             the broker cannot carry out a request; nothing changed; it has Kafka's error code
    │   ├── RecordsRefusedError  some records of a batch are not valid; the client is told which
    │   ├── OffsetOutOfRangeError the requested offset is not in the log; the reader must choose another one
    │   ├── AuthenticationError  client and broker do not accept each other: a password, a certificate, a protocol
    │   ├── ProducerFencedError  the transaction has ended, or another producer has taken it over; also a FencedError
    │   └── TransactionAbortedError the transaction is aborted: write it again; also an UnavailableError
    ├── UnavailableError         the disk or the broker failed; nothing was acknowledged: retry later
    │   ├── DiskError            one call to the disk failed; it has the operating system's error number
    │   └── StoreError           one call to an object store failed
    ├── OutcomeUnknownError      it is unknown whether a transaction is committed: call its `commit` again
    ├── DataLossError            records that the caller asked for were removed
    ├── DamageError              bytes have changed since they were written: stop, and restore the named file
    │   └── DecompressedSizeError the records of a batch decompress to more bytes than the caller accepts
    ├── FencedError              another broker or producer has taken over: stop
    └── UnknownFormatError       a file or record in a form that this release does not read: stop

`stablelog` exports these classes, except for `NothingStoredError`, `DiskError` and `StoreError`. Other classes stay inside the broker:

    StablelogError
    ├── ObjectMissingError       an object store has no object with this key
    ├── ObjectExistsError        an object with this key exists: another writer was first
    ├── UnprovenError            a log file was not checked since the broker's start: check it, and read it again
    └── NotLoadedError           bytes are in the object store and not in the cache: load them, and retry

An error has a class of its own only if some caller treats it in a different way. Every other error for a Kafka client
is a `RefusedError` with Kafka's error code. Any other exception is a bug: the broker logs it and closes the connection
that caused it.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from stablelog.types import InvalidRecord, ObjectRange

FULL = (errno.ENOSPC, errno.EDQUOT)
NEWER_MAX: Final = 100  # a version number above the highest known one by more than this counts as damage


class StablelogError(Exception):
    """The base class of all errors of stablelog. Errors can be pickled, so that they can pass from one process to
    another.
    """

    def __reduce__(self) -> Any:
        # Exception would call the class with the message only, and most classes have more arguments.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[StablelogError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StablelogError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class RefusedError(StablelogError):
    """The broker has refused a request, or a transaction is aborted. A refused request has changed nothing.

    What to do: correct what the message names.

    Args:
        code: Kafka's error code, such as 3 for UNKNOWN_TOPIC_OR_PARTITION.
        message: what was wrong and what to do, for the user.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def code_name(self) -> str:
        """The name of the error in Kafka's protocol, such as "UNKNOWN_TOPIC_OR_PARTITION"."""
        return ErrorCode(self.code).name.upper()


class RecordsRefusedError(RefusedError):
    """A client's batch was refused because of some of its records.

    Attributes:
        errors: the records that are not valid, each with the reason, in the order of the batch. If very many are not
            valid, only the first of them.
    """

    def __init__(self, code: ErrorCode, message: str, errors: Sequence[InvalidRecord]) -> None:
        super().__init__(code, message)
        self.errors = errors


class OffsetOutOfRangeError(RefusedError):
    """The requested offset is before the log's start or past its end.

    What to do: choose another offset.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.offset_out_of_range, message)


class AuthenticationError(RefusedError):
    """Client and broker do not accept each other: the password is wrong, a certificate is not trusted, or the security
    protocol of the client is not that of the listener. The message contains no secret. A retry cannot help.

    What to do: correct the setting that the message names.
    """


class DamageError(StablelogError):
    """Stored bytes are not the ones that were written: a checksum or another check has found this. The message names
    the file and the position, or the partition and the offset.

    What to do: stop, and restore the file.
    """


class DecompressedSizeError(DamageError):
    """The records of a batch decompress to more bytes than the caller accepts. The decompression was stopped at this
    number of bytes.
    """


class UnknownFormatError(StablelogError):
    """This release cannot read a file or record, because another version of the program has written it in another form:
    a later release, or a version from before the first release. The message tells which. Nothing of the file was
    changed.

    What to do: start the later release, or copy the records with the old version, as the message says.

    This error is not a `DamageError`: code that gets a `DamageError` may rebuild the damaged file, but this file must
    stay as it is.

    Args:
        what: the kind of file or record, such as "a segment summary".
        found: the format version in that file or record; None if it contains no version number, and `what` names the
            form.
        known: the greatest version that this release reads.
        place: the path of the file, with the offset if it is a record; empty if the code that raises the error does not
            know the path.
    """

    def __init__(self, what: str, found: int | None, known: int, place: str = "") -> None:
        if found is not None and found > known:
            told = (
                f"{what} of version {found}; this release reads versions up to {known}. Start the release that wrote it, or "
                "a later one"
            )
        else:
            form = what if found is None else f"{what} of version {found}"
            told = (
                f"{form}; no release has written this form, and no release reads it. To keep the records, read them with a "
                "broker of the version that wrote this directory, and produce them to a broker with a new directory"
            )
        super().__init__(f"{f'{place}: ' if place else ''}{told}")
        self.what = what
        self.found = found
        self.known = known
        self.place = place


def refuse_unknown_version(what: str, found: int, known: int, least: int = 0) -> None:
    """Raise `UnknownFormatError` if the version number of a file or record is that of a later release, or one that only
    programs from before the first release have written.

    Any other version that this release does not read raises nothing here: the caller must treat the number as damaged.

    Args:
        what: the kind of file or record.
        found: the version number in the file or record.
        known: the greatest version that this release reads.
        least: the least version that this release reads. Programs from before the first release have written the
            smaller ones.

    Raises:
        UnknownFormatError: the version is greater than `known` by at most `NEWER_MAX`, or it is less than `least`.
    """
    if known < found <= known + NEWER_MAX or 0 <= found < least:
        raise UnknownFormatError(what, found, known)


@contextlib.contextmanager
def adding_path(place: object) -> Iterator[None]:
    """Context manager that adds the path of a file (`place`) to an `UnknownFormatError` that is raised inside the
    `with` block without a path.
    """
    try:
        yield
    except UnknownFormatError as newer:
        if newer.place:
            raise
        raise UnknownFormatError(newer.what, newer.found, newer.known, str(place)) from None


class UnavailableError(StablelogError):
    """No broker answered within the deadline, or the disk or the broker failed, or a broker could not be started.

    What to do: repeat the call later. No transaction is committed; a call of `client.admin` or of `reader.commit` may
    have been carried out.
    """


class DiskError(UnavailableError):
    """A call to the disk failed. The methods of `Disk` and `File`, through which the broker uses its disk, raise this
    error and FileNotFoundError, and no other ones.

    Args:
        what: the call and its path, such as "writing 12 bytes to /log/t-0/x.log failed".
        number: the operating system's error number (`errno`).
        undone: whether the file or directory is as it was before the failed call.
        size: the number of bytes that the call was to write; 0 if it writes no bytes or their number is unknown.
    """

    def __init__(self, what: str, number: int, *, undone: bool = True, size: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
        self.number = number
        self.undone = undone
        self.size = size

    @property
    def is_full(self) -> bool:
        """Whether the call failed because the disk or the user's quota is full. The same call may succeed once there is
        free space.
        """
        return self.number in FULL


class StoreError(UnavailableError):
    """A call to an object store failed. If the store has not rejected the call (`is_rejected`), it may still carry the
    call out, now or later.

    Args:
        message: the call, the URL and key, and the cause.
        is_rejected: whether the store rejected the call and will reject it again, because the access rights, the
            bucket or the address are wrong.
    """

    def __init__(self, message: str, *, is_rejected: bool = False) -> None:
        super().__init__(message)
        self.is_rejected = is_rejected


class ObjectMissingError(StablelogError):
    """An object store has no object with this key: it was never written, or was deleted."""


class ObjectExistsError(StablelogError):
    """An object was not created, because the store has an object with this key and other content: another writer was
    first.
    """


class DataLossError(StablelogError):
    """Records that the caller asked for were removed: by retention, by DeleteRecords, or because their topic was
    deleted. The message names the offsets, or the commit sequences (numbers of commits), of which records are left.

    What to do: continue with the records that are left. If `commit` raises this error, the transaction is committed: do
    not write its records again.
    """


class FencedError(StablelogError):
    """Another broker has taken over the object store, or another producer the transactional id. The later broker has a
    greater broker epoch, a number that each start of a broker takes in the store; the later producer has a greater
    producer epoch. The process has changed nothing since it was replaced.

    What to do: stop.
    """


class ProducerFencedError(RefusedError, FencedError):
    """The producer cannot continue its transaction, which has ended before the producer ended it: another producer has
    taken the transactional id over, or the transaction was open for longer than its timeout. A transaction of
    `client.transaction` raises `TransactionAbortedError` instead.

    What to do: stop.
    """


class TransactionAbortedError(RefusedError, UnavailableError):
    """A transaction of the native client is aborted, and the reason does not lie in its records: its timeout, a broker
    that did not respond, another producer that has fenced it, or a call of `abort`. None of its records is committed.

    What to do: write the transaction again.
    """


class OutcomeUnknownError(StablelogError):
    """The client has requested the commit of a transaction, and does not know whether it is committed.

    What to do: do not write the records again, which may write them twice. Call `commit` of the attribute `transaction`
    again, until it returns or raises another error. So the error is no `UnavailableError`.

    Attributes:
        transaction: the transaction, whose `commit` can be called again; None in a copy of the error that was sent to
            another process.
    """

    transaction: Any = None

    def __reduce__(self) -> Any:
        return _restore, (type(self), self.args, {**self.__dict__, "transaction": None})


class UnprovenError(StablelogError):
    """A log file was not checked since the start of the broker, so the broker must not serve reads from it.

    The check, called *proof*, compares the file's batch headers with checksums in the segment's summary (a small file
    beside the log file) or in a snapshot of the producer state.

    Args:
        path: the path of the log file.
        prove: a function that returns a generator. The caller must run this generator to its end, and then read again.
            Each step checks a part of the file, in any thread, and raises DamageError or DiskError.
    """

    def __init__(self, path: Path, prove: Callable[[], Iterator[None]]) -> None:
        super().__init__(f"the log file {path} was not checked since the start of the broker")
        self.path = path
        self.prove = prove


class NotLoadedError(StablelogError):
    """A read needs bytes of the object store that are not in the cache of the broker. The caller loads them, and reads
    again.

    Args:
        ranges: the byte ranges that the caller must load.
        size: how many bytes the read needs in memory at the same time: the bytes of `ranges`, and bytes that are in the
            cache already.
    """

    def __init__(self, ranges: Sequence[ObjectRange], size: int) -> None:
        super().__init__(
            f"{len(ranges)} ranges of objects are not in the cache; the first is of {ranges[0].key}"
        )
        self.ranges = tuple(ranges)
        self.size = size


class UsageError(StablelogError):
    """An argument or a setting is unknown or out of range. The message names it, and its valid range or the nearest valid
    name. Nothing was done.

    What to do: correct the program.
    """


class NothingStoredError(UsageError):
    """A read names an object store that has no object: nothing was copied to it yet, or its URL is wrong. A read that
    also has brokers needs no object.
    """


def in_words(error: Exception) -> str:
    """Return an error's message for the user, without the names of Python's exceptions."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    if isinstance(error, (TypeError, AttributeError)):
        return "a value in it is of another type than expected"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def named(names: Sequence[str], count_max: int) -> str:
    """Join names to a text for a message: at most `count_max` names, and how many more there are."""
    more = f" and {len(names) - count_max} more" if len(names) > count_max else ""
    return ", ".join(names[:count_max]) + more


def did_you_mean(name: str, known: Iterable[str], count_max: int = 1) -> str:
    """Return a hint to end a message about an unknown name: "; did you mean topic?". It is empty if no known name is
    similar.

    Args:
        name: the unknown name. Its case does not matter.
        known: the names that are valid.
        count_max: the maximum number of names in the hint.
    """
    import difflib  # imported here, because few processes need it

    spellings = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), spellings, n=count_max)
    return f"; did you mean {' or '.join(spellings[one] for one in near)}?" if near else ""
