"""The interface of single attempts of requests to an object store, and the errors of an attempt."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from stablelog.env.disk import Buffer

KEY_SIZE_MAX = 900  # Stores allow keys of 1,024 bytes, but the prefix in the URL is a part of the key.
PART_SIZE_MAX = 255  # In a store in a directory, each part of a key is a file name.
KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=")


class StoredObject(NamedTuple):
    """An object in a listing.

    Attributes:
        key: its key.
        size: its size in bytes.
        modified_ms: the time at which it was written, by the clock of the store.
    """

    key: str
    size: int
    modified_ms: int


class ExistsError(Exception):
    """The store responds that an object with this key exists. A store may respond so by mistake, when the request has
    failed for another reason and no object exists.
    """


class MissingError(Exception):
    """The response of the store says that it has no object with this key."""


class UnclearError(Exception):
    """The result of a request is unknown: the store did not respond, or the response does not tell the result. The
    store may have carried the request out, or may do so later. The caller can repeat it.
    """


class SlowError(UnclearError):
    """The request has reached its time limit."""


class RejectedError(Exception):
    """The store rejects the request and would reject it again, because the access rights, the bucket or the address are
    wrong.
    """


class TooShortError(Exception):
    """An object ends before the end of the range of bytes that was requested."""


class UploadPace(NamedTuple):
    """The size and the number of the parts in which an object is uploaded.

    Attributes:
        part_size: the size of a part in bytes. An object that is not larger is written by one put.
        parts_at_once: the number of parts that are sent at the same time.
        limit_s: the time limit of each request, in seconds.
    """

    part_size: int
    parts_at_once: int
    limit_s: float


class StoreRequests(Protocol):
    """The interface of an object store in which each call makes one attempt of a request. The calls block. They may be
    made in any thread.

    Every call may raise UnclearError or RejectedError.
    """

    @property
    def url(self) -> str:
        """The address of the store, without credentials."""

    def create(self, key: str, content: Buffer) -> None:
        """Create an object; raise ExistsError if the key has an object already. The new object is durable on return."""

    def upload(self, key: str, pieces: Iterable[Buffer], pace: UploadPace) -> None:
        """Write an object of any size, and replace an existing object of this key. On return, the object is durable,
        and readers see all of it.
        """

    def get(self, key: str) -> bytes:
        """Return the content of an object. Raises MissingError if there is none."""

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return `size` bytes of an object, from byte `start` on. Raises MissingError or TooShortError."""

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with `directory/` and are greater than `after`, in the order of keys."""

    def directories(self, directory: str) -> Iterator[str]:
        """Yield the names of the directories in a directory, in the order of their bytes. A directory is a part of a
        key that a slash follows. If `directory` is empty, yield those with which keys begin.
        """

    def delete(self, key: str) -> None:
        """Delete an object; no error if it is missing."""


def check_key(key: str) -> None:
    """Assert that all stores accept this key: parts of ASCII letters, digits and `._-=`, with slashes between them."""
    parts = key.split("/")
    assert len(key) <= KEY_SIZE_MAX, key
    for part in parts:
        assert 0 < len(part) <= PART_SIZE_MAX, key
        assert KEY_CHARACTERS.issuperset(part), key
        assert not part.startswith("."), (
            f"{key}: a part that begins with a dot is hidden in a directory store"
        )
