"""The chain of a partition's manifests: only ever created, by one broker epoch at a time.

Two brokers may use one store at the same time: a stalled process that wakes up, or a copied virtual machine. The chain
keeps each of them from publishing over the other, with one operation of the store: of all that create a key, one wins.

The objects of a chain are named by the broker epoch of their writer and a number, and are of three kinds:

- A *claim* has the number 0. A broker creates it before anything else: every broker of a lower epoch that lists the chain
  later sees it, and stops.
- A *manifest* has the payload. A broker publishes its manifests under 1, 2, 3, ... of its own epoch.
- A *fence* stands at the number after the last manifest of a lower epoch. Its broker, which publishes number after
  number, never gets past it.

The rules of a take-over, of which none can be left out:

1. Create the claim, then list. If there is a greater epoch, this broker is fenced.
2. Create a fence behind the last object of each lower epoch that does not end with one.
3. List again, and go on only if every lower epoch ends with a fence: an owner may delete old manifests, so a fence may
   have been created at a name that was free because it was deleted, and the owner is past it.
4. The last manifest before all fences is the base: nothing can be published before this broker's own manifests.

The last manifest of an epoch, its claim and its fence are never deleted.

The functions yield requests and take their answers: a list of (key, size), whether the object was created, or the content
or None. They make no request themselves. An exception that is thrown in, because the store failed, leaves the chain
usable: `publish` first repeats a publication whose result is unknown.

Format: docs/formats.md, "The chain of manifests".
"""

import struct
from collections.abc import Generator, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from stablelog.errors import Corrupt, Fenced, refuse_newer
from stablelog.tier.names import EPOCHS, ChainName, RemotePartition, chain_name_of, epoch_key, epoch_of

Result = TypeVar("Result")

VERSION: Final = 1
NONCE_SIZE: Final = 16
LINK = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "b"  # kind: 0 claim, 1 manifest, 2 fence
    "q"  # epoch: of the broker that wrote the object
    "16s"  # nonce: of the broker that wrote the object
)
CRC_END = 6
MANIFESTS_KEPT: Final = 10  # of an epoch: readers that have listed the chain may still read them


class Kind(IntEnum):
    """The kind of an object of the chain."""

    CLAIM = 0
    MANIFEST = 1
    FENCE = 2


class List(NamedTuple):
    """List the objects of a directory. The answer: (key, size) of each, in the order of keys."""

    directory: str


class Create(NamedTuple):
    """Create an object. The answer: False if the key holds another content."""

    key: str
    content: bytes


class Get(NamedTuple):
    """Get an object. The answer: its content, or None."""

    key: str


Request = List | Create | Get
Steps = Generator[Request, Any, Result]


def claim_epoch(nonce: bytes) -> Steps[int]:
    """Take the next broker epoch.

    Args:
        nonce: 16 bytes that no other start of a broker has.
    """
    assert len(nonce) == NONCE_SIZE
    while True:
        listed = yield List(EPOCHS)
        epoch = 1 + max((taken for key, _ in listed if (taken := epoch_of(key)) is not None), default=0)
        if (yield Create(epoch_key(epoch), nonce)):
            return epoch


class Chain:
    """The chain of one partition, as the broker of one epoch changes it.

    Args:
        partition: the partition.
        epoch: the broker's epoch.
        nonce: 16 bytes that no other start of a broker has.
    """

    def __init__(self, partition: RemotePartition, epoch: int, nonce: bytes) -> None:
        assert len(nonce) == NONCE_SIZE
        self._partition = partition
        self._epoch = epoch
        self._nonce = nonce
        self._next = 0  # The number of this broker's next object.
        self._unsettled: bytes | None = None  # A manifest of this number that may have been created.

    def take_over(self) -> Steps[bytes | None]:
        """Fence all lower epochs, and return the payload of the last manifest; None if there is none.

        It is called again after a failure of the store, until it returns.

        Raises:
            Fenced: a broker of a greater epoch has taken over.
            Corrupt: the last manifest is damaged or missing.
        """
        if self._next == 0:
            yield from self._create(0, Kind.CLAIM, b"")
            self._next = 1
        is_final = False
        while not is_final:
            last = yield from self._last_of_lower_epochs()
            unfenced = [link.name for link in last if link.kind is not Kind.FENCE]
            for name in unfenced:
                key = self._partition.chain_key(ChainName(name.epoch, name.number + 1))
                yield Create(key, encode_link(Kind.FENCE, self._epoch, self._nonce))
            is_final = not unfenced
        links = yield from self._links()
        manifests = [link for link in links if link.kind is Kind.MANIFEST and link.name.epoch < self._epoch]
        if not manifests:
            return None
        return (yield from read_manifest(self._partition.chain_key(manifests[-1].name)))

    def publish(self, payload: bytes) -> Steps[None]:
        """Publish a manifest. It is the truth from then on.

        Raises:
            Fenced: a broker of a greater epoch has taken over. This manifest will never count.
        """
        assert self._next > 0, "take over first"
        if self._unsettled is not None and self._unsettled != payload:
            yield from self._publish(self._unsettled)
        yield from self._publish(payload)

    def _publish(self, payload: bytes) -> Steps[None]:
        self._unsettled = payload
        yield from self._create(self._next, Kind.MANIFEST, payload)
        self._unsettled = None
        self._next += 1

    def removable(self, kept: int = MANIFESTS_KEPT) -> Steps[list[str]]:
        """The keys of old manifests, which the caller may delete."""
        links = yield from self._links()
        own = [link.name for link in links if link.name.epoch == self._epoch and link.kind is Kind.MANIFEST]
        if not own:
            return []  # A lower epoch may have the last manifest.
        lower = [link.name for link in links if link.name.epoch < self._epoch and link.kind is Kind.MANIFEST]
        last = {name.epoch: name for name in lower}
        old = [*(name for name in lower if last[name.epoch] != name), *own[: -max(kept, 1)]]
        return [self._partition.chain_key(name) for name in old]

    # -- objects -----------------------------------------------------------------------------------------------

    def _create(self, number: int, kind: Kind, payload: bytes) -> Steps[None]:
        name = ChainName(self._epoch, number)
        content = encode_link(kind, self._epoch, self._nonce, payload)
        if not (yield Create(self._partition.chain_key(name), content)):
            raise Fenced(f"another broker has taken over the manifests of {self._partition.directory}")

    def _links(self) -> Steps[list["_Link"]]:
        listed = yield List(self._partition.chain)
        return _links_of(listed)

    def _last_of_lower_epochs(self) -> Steps[list["_Link"]]:
        links = yield from self._links()
        if links and links[-1].name.epoch > self._epoch:
            raise Fenced(
                f"a broker of epoch {links[-1].name.epoch} has taken over the manifests of {self._partition.directory}; "
                f"this broker has epoch {self._epoch}"
            )
        last = {link.name.epoch: link for link in links if link.name.epoch < self._epoch}
        return list(last.values())


class _Link(NamedTuple):
    name: ChainName
    kind: Kind


def _links_of(listed: Iterable[tuple[str, int]]) -> list[_Link]:
    """The objects of a listing, in their order. Only a fence has the size of nothing but its head, and is not first."""
    links = []
    for key, size in listed:
        name = chain_name_of(key)
        if name is not None:
            kind = Kind.MANIFEST if size > LINK.size else Kind.FENCE if name.number else Kind.CLAIM
            links.append(_Link(name, kind))
    return links


def last_manifest(partition: RemotePartition) -> Steps[bytes | None]:
    """Return the payload of the last manifest, for readers; None if there is none.

    Raises:
        Corrupt: it is damaged or missing.
    """
    listed = yield List(partition.chain)
    manifests = [link for link in _links_of(listed) if link.kind is Kind.MANIFEST]
    if not manifests:
        return None
    return (yield from read_manifest(partition.chain_key(manifests[-1].name)))


def read_manifest(key: str) -> Steps[bytes]:
    """Return the payload of a manifest.

    Raises:
        Corrupt: it is damaged or missing.
    """
    content = yield Get(key)
    if content is None:
        raise Corrupt(f"{key} is listed and missing")
    try:
        kind, payload = decode_link(content)
    except Corrupt as error:
        raise Corrupt(f"{key}: {error}") from None
    if kind is not Kind.MANIFEST:
        raise Corrupt(f"{key} is a {kind.name.lower()} and no manifest")
    return payload


def encode_link(kind: Kind, epoch: int, nonce: bytes, payload: bytes = b"") -> bytes:
    """Encode an object of the chain."""
    assert bool(payload) is (kind is Kind.MANIFEST), "only a manifest has a payload, so its size tells it"
    content = LINK.pack(VERSION, 0, kind, epoch, nonce) + payload
    return content[:2] + crc32c(content[CRC_END:]).to_bytes(4, "big") + content[CRC_END:]


def decode_link(content: bytes) -> tuple[Kind, bytes]:
    """Decode an object of the chain to its kind and payload.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is damaged.
    """
    refuse_newer("an object of a chain of manifests", int.from_bytes(content[:2], "big"), VERSION)
    if len(content) < LINK.size:
        raise Corrupt(
            f"an object of a chain of manifests has {len(content)} bytes, and at least {LINK.size} are expected"
        )
    version, crc, kind, _epoch, _nonce = LINK.unpack_from(content)
    if version != VERSION or crc != crc32c(content[CRC_END:]):
        raise Corrupt("the CRC of an object of a chain of manifests does not match its bytes")
    return Kind(kind), content[LINK.size :]
