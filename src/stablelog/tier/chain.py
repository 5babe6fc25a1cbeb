"""The chain of a partition's manifests, the lists of its segments in the store: objects that are created and never
overwritten, by one broker epoch at a time.

Two brokers may use one object store at the same time, for example because a stalled process wakes up, or a virtual
machine was copied. The chain then lets only one of them publish manifests. For this, the store has to give one
guarantee: if several brokers create an object with the same key, only one of them succeeds. A *broker epoch* is a
number that each start of a broker takes; a later start takes a greater number.

The name of an object in the chain contains the broker epoch of its writer and a number. There are three kinds of
objects:

- A *claim* has the number 0. A broker creates its claim before any other object. A broker of a lower epoch that lists
  the chain later finds the claim, and stops.
- A *manifest* has the payload. A broker publishes its manifests under the numbers 1, 2, 3, ... of its own epoch.
- A *fence* has the number after the last manifest of a lower epoch. The broker of that lower epoch cannot create its
  next manifest, because the fence has the key of that manifest.

A broker takes over the chain by these steps. None of the steps can be left out:

1. List the chain, and check whether its last manifest and the local log have the same history, that is, whether the
   manifest describes segments of this log. If not, stop: a broker with another log must not stop the broker that owns
   the chain.
2. Create the claim, then list the chain. If the chain has an object of a greater epoch, this broker is fenced. If the
   last manifest is another one than in step 1, check it.
3. For each lower epoch that does not end with a fence, create a fence with the number after its last object.
4. List the chain again. Go on only if every lower epoch ends with a fence; otherwise repeat step 3. A fence may have
   come too late. For example, step 2 lists manifest 5 as the last one. Before step 3 creates the fence with number 6,
   the other broker publishes the manifests 6 to 20 and deletes manifest 6. The fence can then be created, but it does
   not stop the other broker, whose next manifest has the number 21.
5. Begin with the content of the last manifest of the lower epochs: no lower epoch can publish another manifest now. If
   it is another one than in step 2, check it.

The last manifest of an epoch, its claim and its fence are never deleted, and a fenced broker deletes nothing.

The functions are generators. They yield requests (`List`, `Create`, `Get`, `Delete`), and the caller sends the answer
to each request into the generator. If the store fails, the caller drops the generator. The chain can be used after
that: the next `publish` first repeats a publication whose result is unknown.

Format: docs/reference/formats.md, "The chain of manifests".
"""

import struct
from collections.abc import Callable, Collection, Generator
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, FencedError, adding_path, refuse_unknown_version
from stablelog.tier.names import (
    EPOCH_END,
    EPOCHS,
    ChainName,
    RemotePartition,
    chain_name_of,
    epoch_key,
    epoch_of,
)

Result = TypeVar("Result")

VERSION: Final = 1
NONCE_SIZE: Final = 16
LINK = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "b"  # kind: 0 claim, 1 manifest, 2 fence
    "q"  # epoch of the broker that wrote the object
    "16s"  # nonce of the broker that wrote the object
)
CRC_END = 6
MANIFESTS_KEPT: Final = 10  # How many newest manifests of this epoch are kept: readers may fetch them.


class LinkKind(IntEnum):
    """The kind of an object in the chain of a partition's manifests: a manifest (a list of segments), or an object that
    lets only one broker publish manifests.
    """

    CLAIM = 0
    MANIFEST = 1
    FENCE = 2


class List(NamedTuple):
    """A request to list the objects of a directory. The caller of the generator sends it the answer: (key, size) of
    each object, in the order of keys.
    """

    directory: str


class Create(NamedTuple):
    """A request to create an object. The caller of the generator that yields it sends the answer: True if the store has
    the object now; False if an object with this key and another content exists.
    """

    key: str
    content: bytes


class Get(NamedTuple):
    """A request for an object. The caller of the generator that yields it sends the answer: the content of the object,
    or None if the object does not exist.
    """

    key: str


class Delete(NamedTuple):
    """A request to delete an object. There is no answer, and no error if the object does not exist."""

    key: str


Request = List | Create | Get | Delete
Steps = Generator[Request, Any, Result]


def claim_epoch(nonce: bytes) -> Steps[int]:
    """Take the next broker epoch by creating an object in the store, and return it: a number greater than every epoch
    that was taken before. It identifies this start of the broker. This is a generator: it yields its requests to the
    store, and the caller sends them.

    Args:
        nonce: 16 bytes that no other start of a broker has.
    """
    assert len(nonce) == NONCE_SIZE
    while True:
        epoch = 1 + max([epoch_of(key) or 0 for key, _ in (yield List(EPOCHS))], default=0)
        if (yield Create(epoch_key(epoch), nonce)):
            return epoch


class Chain:
    """The chain of one partition's manifests, for the broker of one epoch, which wants to be the chain's only writer. A
    manifest lists the segments that the partition has in the store; each change creates a new one.

    Args:
        partition: the partition.
        epoch: the broker's epoch, a number greater than that of each earlier start of a broker.
        nonce: 16 random bytes of this start of the broker. Each object that it creates contains them.
    """

    def __init__(self, partition: RemotePartition, epoch: int, nonce: bytes) -> None:
        assert len(nonce) == NONCE_SIZE
        self._partition = partition
        self._epoch = epoch
        self._nonce = nonce
        self._next = 0  # The number of this broker's next object.
        self._is_owner = False  # Whether the take-over is complete.
        # The payload of the manifest that may have been created with the number `_next`; None if that is not in doubt.
        self._unsettled: bytes | None = None

    def take_over(
        self, check: Callable[[bytes | None], Result], void: Collection[bytes] = ()
    ) -> Steps[Result]:
        """Make this broker the only writer of the chain of a partition's manifests (lists of its segments in the
        store): fence all brokers of lower epochs. Return the result of `check` for the last manifest. This is a
        generator: it yields its requests to the store, and the caller sends them.

        After a failure of the store, the caller calls this method again, until the method returns.

        Args:
            check: called with the payload of the last manifest, or with None if there is none: before anything is
                created, and again if the last manifest has changed. It raises DamageError if the manifest does not
                describe the local log.
            void: the nonces of interrupted restores (bytes that each object of a writer contains), whose manifests are
                ignored.

        Raises:
            FencedError: a broker of a greater epoch has taken over.
            DamageError: the last manifest is damaged or missing, or `check` has refused it.
        """
        assert not self._is_owner, "take_over was called again after it had returned"
        checked = yield from _check_last_manifest(self._partition, self._epoch, None, check, void)
        if self._next == 0:
            yield from self._create(0, LinkKind.CLAIM, b"")
            self._next = 1
        while True:
            checked = yield from _check_last_manifest(self._partition, self._epoch, checked, check, void)
            links = checked.links
            last = {name.epoch: name for name in links if name.epoch < self._epoch}.values()
            unfenced = [name for name in last if links[name] is not LinkKind.FENCE]
            if not unfenced:
                break
            for name in unfenced:
                key = self._partition.chain_key(ChainName(name.epoch, name.number + 1))
                yield Create(key, encode_link(LinkKind.FENCE, self._epoch, self._nonce))
        for name in last:
            # `links[name]` is derived from the size in the listing. An object of this size is a fence only if its content
            # is undamaged, so read it: `_signed` raises DamageError if it is not.
            key = self._partition.chain_key(name)
            _signed(key, (yield Get(key)), LinkKind.FENCE)
        self._is_owner = True
        return checked.result

    def publish(self, payload: bytes) -> Steps[None]:
        """Publish a manifest, the list of the partition's segments in the store. It replaces all earlier manifests of
        the partition. `payload` is the encoded manifest. This is a generator: it yields its requests to the store, and
        the caller sends them.

        Raises:
            FencedError: a broker of a greater epoch has taken over. No reader will use this manifest.
        """
        assert self._is_owner, "take over first"
        assert payload, "only a manifest has a payload, and its size tells its kind"
        doubtful = self._unsettled
        for one in [payload] if doubtful in (None, payload) else [doubtful, payload]:
            self._unsettled = one
            yield from self._create(self._next, LinkKind.MANIFEST, one)
            self._unsettled = None
            self._next += 1

    @property
    def is_settled(self) -> bool:
        """Whether this broker knows which manifest (list of the partition's segments in the store) is the last one.
        False before the take-over, and after a publication whose result is unknown because the store did not answer.
        """
        return self._is_owner and self._unsettled is None

    def removable_manifests(self, kept: int = MANIFESTS_KEPT) -> Steps[list[str]]:
        """Return the keys of old manifests (lists of the partition's segments in the store), which the caller may
        delete: of this broker's epoch all but the last `kept`, and of each lower epoch all but the last one. This is a
        generator: it yields its requests to the store, and the caller sends them.

        Raises:
            FencedError: a broker of a greater epoch has taken over. A fenced broker deletes nothing.
        """
        assert self._is_owner, "take over first"
        by_epoch: dict[int, list[ChainName]] = {}
        links = yield from _list_links(self._partition, self._epoch)
        for name in links:
            if links[name] is LinkKind.MANIFEST:
                by_epoch.setdefault(name.epoch, []).append(name)
        return [
            self._partition.chain_key(name)
            for epoch, names in by_epoch.items()
            for name in names[: -(max(kept, 1) if epoch == self._epoch else 1)]
        ]

    def delete_objects(self) -> Steps[None]:
        """Delete all objects of the chain of a partition whose topic was deleted: first the manifests (lists of
        segments), then the claims and fences, by which a broker stops those of lower epochs.

        The topic's object `deleted`, which says that the topic was deleted, must exist before this call. After the
        fences are deleted, a stalled broker may still create a manifest of the partition. Because of the object
        `deleted`, no reader and no restore uses this manifest.

        Raises:
            FencedError: a broker of a greater epoch has taken over. Nothing was deleted.
        """
        assert self._is_owner, "take over first"
        links = yield from _list_links(self._partition, self._epoch)
        for name in sorted(links, key=lambda one: links[one] is not LinkKind.MANIFEST):
            yield Delete(self._partition.chain_key(name))

    # -- objects -----------------------------------------------------------------------------------------------

    def _create(self, number: int, kind: LinkKind, payload: bytes) -> Steps[None]:
        key = self._partition.chain_key(ChainName(self._epoch, number))
        if not (yield Create(key, encode_link(kind, self._epoch, self._nonce, payload))):
            raise FencedError(
                "another broker has taken over the manifests (the lists of remote segments) of "
                f"{self._partition.directory}, and has created {key}"
            )


class _Checked(NamedTuple, Generic[Result]):
    """The result of a check of the chain of a partition's manifests, the lists of its segments in the store.

    Attributes:
        links: the kind of each object of the chain, by name and in the order of names.
        manifests: the names of the manifests that brokers of lower epochs have published.
        result: what the function `check` of the caller has returned for the last of these manifests.
    """

    links: dict[ChainName, LinkKind]
    manifests: list[ChainName]
    result: Result


def _list_links(partition: RemotePartition, epoch: int) -> Steps[dict[ChainName, LinkKind]]:
    """List the objects of the chain of a partition's manifests (lists of its segments): the kind of each, by name and
    in the order of names. The kind of an object follows from its size, because a manifest has a payload, and the
    objects by which one broker excludes another, claims and fences, have none.

    Raises:
        FencedError: the chain has an object of a broker that has started later: its epoch is greater than `epoch`.
        DamageError: an object is too small.
    """
    links = {}
    for key, size in (yield List(partition.chain)):
        name = chain_name_of(key)
        if name is None or partition.chain_key(name) != key:
            continue
        if size < LINK.size:
            raise DamageError(
                f"the object {key} is damaged: it has {size} bytes, but must have at least {LINK.size}"
            )
        empty = LinkKind.FENCE if name.number else LinkKind.CLAIM
        links[name] = LinkKind.MANIFEST if size > LINK.size else empty
    last = max(links, default=None)
    if last is not None and last.epoch > epoch:
        raise FencedError(
            f"a broker of epoch {last.epoch} has taken over the manifests (the lists of remote "
            f"segments) of {partition.directory}, and has created {partition.chain_key(last)}; this "
            f"broker has epoch {epoch}"
        )
    return links


def _check_last_manifest(
    partition: RemotePartition,
    epoch: int,
    before: _Checked[Result] | None,
    check: Callable[[bytes | None], Result],
    void: Collection[bytes],
) -> Steps[_Checked[Result]]:
    """List the chain of a partition's manifests, and call `check` with the last one.

    The broker that owns the chain may delete the manifest after it was listed and before it is read. It has then
    published a later manifest, so the function lists the chain again.

    Args:
        partition: the partition.
        epoch: the epoch of this broker. Only manifests of lower epochs are checked. If the chain has an object of a
            greater epoch, FencedError is raised.
        before: the result of an earlier call of this function; None at the first one. If it is a check of the same
            manifest, its result is used, and `check` is not called again.
        check: called with the payload of the last manifest; see `Chain.take_over`.
        void: the nonces of interrupted restores (bytes that each object of a writer contains), whose manifests are
            ignored.

    Returns:
        The kinds of the listed objects by name, the names of the manifests of lower epochs, and the result of `check`.
    """
    missing = None
    while True:
        links = yield from _list_links(partition, epoch)
        names = [one for one, kind in links.items() if kind is LinkKind.MANIFEST and one.epoch < epoch]
        if before is not None and before.manifests == names:
            return before._replace(links=links)
        for name in reversed(names):
            key = partition.chain_key(name)
            content = yield Get(key)
            if content is None and key != missing:
                missing = key
                break
            nonce, payload = _signed(key, content, LinkKind.MANIFEST)
            if nonce not in void:
                return _Checked(links, names, check(payload))
        else:
            return _Checked(links, names, check(None))


def last_manifest(partition: RemotePartition, void: Collection[bytes] = ()) -> Steps[bytes | None]:
    """Return the payload of a partition's last manifest (the encoded list of its segments in the store), for readers;
    None if there is none. This is a generator: it yields its requests to the store, and the caller sends them.

    Args:
        partition: the partition.
        void: the nonces of interrupted restores (bytes that each object of a writer contains), whose manifests are
            ignored.

    Raises:
        DamageError: the last manifest is damaged or missing.
    """
    return (yield from _check_last_manifest(partition, EPOCH_END, None, same_payload, void)).result


def same_payload(payload: bytes | None) -> bytes | None:
    """Return the payload of the last manifest (encoded list of a partition's segments in the store) unchanged; None if
    there is no manifest. A caller that has no local log, with which the manifest could be compared, passes this
    function as `check` to `Chain.take_over`.
    """
    return payload


def _signed(key: str, content: bytes | None, kind: LinkKind) -> tuple[bytes, bytes]:
    """Check an object of the chain of a partition's manifests (lists of its segments) after its download.

    Args:
        key: the key of the object, for messages.
        content: the content of the object; None if it does not exist.
        kind: the kind that the object must have.

    Returns:
        A pair: the nonce (random bytes) of the start of the broker that wrote the object, and the payload of the
        object.

    Raises:
        DamageError: the object is damaged, missing or of another kind.
    """
    if content is None:
        raise DamageError(f"the object store lists {key}, but does not return it: restore the object")
    try:
        with adding_path(key):
            found, payload = decode_link(content)
    except DamageError as error:
        raise DamageError(f"{key}: {error}") from None
    if found is not kind:
        raise DamageError(
            f"the object {key} contains a {found.name.lower()}, but its size or number is that of a "
            f"{kind.name.lower()}: restore the object"
        )
    return content[LINK.size - NONCE_SIZE : LINK.size], payload


def encode_link(kind: LinkKind, epoch: int, nonce: bytes, payload: bytes = b"") -> bytes:
    """Return the content of an object of the chain of a partition's manifests: a manifest, the list of its segments; a
    claim, by which a broker shows its epoch; or a fence, which keeps a broker of a lower epoch from publishing. Only a
    manifest has a payload.
    """
    assert bool(payload) is (kind is LinkKind.MANIFEST), (
        "only a manifest has a payload: readers tell the kind of an object by its size"
    )
    content = LINK.pack(VERSION, 0, kind, epoch, nonce) + payload
    return content[:2] + crc32c(content[CRC_END:]).to_bytes(4, "big") + content[CRC_END:]


def decode_link(content: bytes) -> tuple[LinkKind, bytes]:
    """Decode an object of the chain of a partition's manifests, the lists of its segments in the store. Return a pair:
    the kind of the object and its payload, which is empty if the object is not a manifest.

    Raises:
        UnknownFormatError: a later release has written the object.
        DamageError: the object is damaged.
    """
    refuse_unknown_version("an object of a chain of manifests", int.from_bytes(content[:2], "big"), VERSION)
    if len(content) < LINK.size:
        raise DamageError(
            f"the object is damaged: it has {len(content)} bytes, but must have at least {LINK.size}"
        )
    version, crc, kind, _epoch, _nonce = LINK.unpack_from(content)
    if version != VERSION or crc != crc32c(content[CRC_END:]) or kind not in list(LinkKind):
        raise DamageError("the object is damaged: its CRC does not match its bytes")
    return LinkKind(kind), content[LINK.size :]
