"""One attempt of a request to an object store, and what can come of it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from stablelog.env.disk import Buffer

KEY_SIZE_MAX = 900  # Stores allow 1,024 bytes; the prefix of the URL also takes some.
PART_SIZE_MAX = 255  # A part of a key is a file name in a directory store.
KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=")


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class Exists(Exception):
    """The store says that the key is taken. Some stores also say so of a request that was not applied."""


class Missing(Exception):
    """There is no object of this key."""


class Unclear(Exception):
    """No answer, or one that says nothing of the request: it may have been applied, or may be later. Try again."""


class Rejected(Exception):
    """The store rejects the request and will reject it again: the rights, the bucket or the address are wrong."""


class TooShort(Exception):
    """The object ends before the range does."""


class StoreRequests(Protocol):
    """An object store, one attempt at a time. Each call blocks and may be made in any thread.

    Every call may raise Unclear or Rejected.
    """

    @property
    def url(self) -> str:
        """The address of the store, without credentials."""

    def create(self, key: str, content: Buffer) -> None:
        """Create an object; raise Exists if there is one. Durable on return."""

    def upload(self, key: str, pieces: Iterable[Buffer]) -> None:
        """Write an object of any size, which replaces one of this key. Durable and visible as a whole on return."""

    def get(self, key: str) -> bytes:
        """Return the content of an object; raise Missing."""

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on; raise Missing or TooShort."""

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Return the objects whose keys begin with `directory/` and are greater than `after`, in the order of keys."""

    def delete(self, key: str) -> None:
        """Delete an object; no error if it is missing."""


def check_key(key: str) -> None:
    """Assert that every store takes this key: parts of ASCII letters, digits and `._-=`, with slashes between them."""
    parts = key.split("/")
    assert len(key) <= KEY_SIZE_MAX, key
    for part in parts:
        assert 0 < len(part) <= PART_SIZE_MAX, key
        assert KEY_CHARACTERS.issuperset(part), key
        assert not part.startswith("."), (
            f"{key}: a part that begins with a dot is hidden in a directory store"
        )
