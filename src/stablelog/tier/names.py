"""The keys of the objects of tiered storage.

A *manifest* is the list of a partition's segments in the store. Each change creates a new one, and the manifests of a
partition form a *chain*. A *broker epoch* is a number that each start of a broker takes.

    cluster                                                  the id of the cluster, and the version of this layout
    epoch/<epoch>                                            a broker epoch that is taken
    settings/<epoch>-<n>                                     the dynamic settings of the broker
    t.<topic>/<topic id>/deleted                             the topic was deleted
    t.<topic>/<topic id>/<partition>/<base>-<segment id>.log      a segment's log file
    t.<topic>/<topic id>/<partition>/<base>-<segment id>.indexes
    t.<topic>/<topic id>/<partition>/manifest/<epoch>-<n>         one object of a chain
    t.<topic>/<topic id>/<partition>/part/<base>-<part id>        segments of a long manifest
    t.<topic>/<topic id>/<partition>/pins/<pin id>                a reader that keeps segments from deletion

Numbers have leading zeros, so that the order of keys is that of numbers. Ids are written as Kafka writes them (base 64
without padding, `-` and `_`), each with a `=` before it. The prefix `t.` distinguishes topics from the other
directories. Without it, a topic whose name begins with a dot would be a hidden directory in a store on a local disk.
"""

import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

CLUSTER: Final = "cluster"
EPOCHS: Final = "epoch"
SETTINGS: Final = "settings"
LOG: Final = "log"
INDEXES: Final = "indexes"
DELETED: Final = "deleted"
TOPIC_PREFIX: Final = "t."
EPOCH_DIGITS, NUMBER_DIGITS, OFFSET_DIGITS = 10, 12, 20
EPOCH_END: Final = 10**EPOCH_DIGITS  # greater than every broker epoch
CHAIN_NAME = re.compile(rf"(\d{{{EPOCH_DIGITS}}})-(\d{{{NUMBER_DIGITS}}})")


class ChainName(NamedTuple):
    """The last part of the key of an object in the chain of a partition's manifests, the lists of its segments
    (`tier.chain`), or of an object with dynamic settings: the epoch of the broker that wrote the object, and a number.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch:0{EPOCH_DIGITS}}-{self.number:0{NUMBER_DIGITS}}"


class RemotePartition(NamedTuple):
    """A partition in the object store, with methods that return the keys of its objects. `topic_id` distinguishes its
    topic from a later topic of the same name.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int

    @property
    def directory(self) -> str:
        """The directory of the partition's objects."""
        return f"{TOPIC_PREFIX}{self.topic}/={text_of_id(self.topic_id)}/{self.partition}"

    @property
    def deleted_key(self) -> str:
        """The key of the object `deleted`, whose existence says that the partition's topic was deleted."""
        return f"{self.directory.rpartition('/')[0]}/{DELETED}"

    @property
    def chain(self) -> str:
        """The directory of the partition's manifests (lists of its segments in the store), and of the objects that let
        only one broker write them.
        """
        return f"{self.directory}/manifest"

    def segment_key(self, base_offset: int, segment_id: uuid.UUID, kind: str) -> str:
        """Return the key of an object of a segment: of its log file (`kind` is LOG) or its indexes (INDEXES)."""
        return f"{self.directory}/{base_offset:0{OFFSET_DIGITS}}-={text_of_id(segment_id)}.{kind}"

    def is_segment(self, key: str) -> bool:
        """Return whether a key is that of a segment's log file or of its indexes."""
        directory, _, name = key.rpartition("/")
        return directory == self.directory and name.endswith((f".{LOG}", f".{INDEXES}"))

    def part_key(self, base_offset: int, part_id: uuid.UUID) -> str:
        """Return the key of a part of a manifest, an object that lists consecutive older segments. The first of them
        has this base offset.
        """
        return f"{self.directory}/part/{base_offset:0{OFFSET_DIGITS}}-={text_of_id(part_id)}"

    @property
    def pins(self) -> str:
        """The directory of the partition's pins, objects by which readers of the store keep segments from deletion."""
        return f"{self.directory}/pins"

    def pin_key(self, pin_id: uuid.UUID) -> str:
        """Return the key of the pin with this id, an object by which a reader of the store keeps segments from
        deletion.
        """
        return f"{self.pins}/={text_of_id(pin_id)}"

    def chain_key(self, name: ChainName) -> str:
        """Return the key of an object in the chain of the partition's manifests, the lists of its segments in the
        store. `name` has the broker epoch of the writer and a number.
        """
        return f"{self.chain}/{name}"


def epoch_key(epoch: int) -> str:
    """Return the key of the object that a broker creates at its start to take this broker epoch, a number greater than
    those of all earlier starts.
    """
    return f"{EPOCHS}/{epoch:0{EPOCH_DIGITS}}"


def epoch_of(key: str) -> int | None:
    """Return the broker epoch (the number of a start of a broker) in a key that `epoch_key` has made; None for any
    other key.
    """
    name = key.removeprefix(f"{EPOCHS}/")
    return int(name) if len(name) == EPOCH_DIGITS and name.isascii() and name.isdecimal() else None


def chain_name_of(key: str) -> ChainName | None:
    """Return the broker epoch (the number of a start of a broker) and the number at the end of a key; None if the key
    is neither that of an object in a chain of manifests (lists of a partition's segments), nor that of dynamic settings
    of the broker.
    """
    match = CHAIN_NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else ChainName(int(match[1]), int(match[2]))


def partition_of(directory: str) -> RemotePartition | None:
    """Return the partition whose objects are in this directory of the store; None if the directory has another form."""
    parts = directory.split("/")
    if len(parts) != 3:
        return None
    try:
        partition = RemotePartition(
            parts[0].removeprefix(TOPIC_PREFIX), id_of_text(parts[1][1:]), int(parts[2])
        )
    except ValueError:
        return None
    return partition if partition.topic and partition.directory == directory else None


def id_of_text(text: str) -> uuid.UUID:
    """Return the id that Kafka writes as this text (base 64 without padding). Raises ValueError if the text has
    another form.
    """
    return uuid.UUID(bytes=urlsafe_b64decode(f"{text}=="))


def text_of_id(identity: uuid.UUID) -> str:
    """Return the text of an id as Kafka writes it: in base 64 without padding, with `-` and `_`."""
    return urlsafe_b64encode(identity.bytes).decode().rstrip("=")
