"""Types that all packages of stablelog share."""

import re
from enum import StrEnum
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]  # topic name, and number of the partition in the topic


TOPIC_NAME_SIZE_MAX: Final = 249
TOPIC_NAME_RULE: Final = (
    f"use 1 to {TOPIC_NAME_SIZE_MAX} characters of a-z A-Z 0-9 . _ -, but not . or .. alone"
)

_LEGAL_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Return whether Kafka accepts this name for a topic; the text TOPIC_NAME_RULE states the rule."""
    return (
        len(name) <= TOPIC_NAME_SIZE_MAX
        and name not in {".", ".."}
        and _LEGAL_TOPIC_NAME.fullmatch(name) is not None
    )


class RangeProof(NamedTuple):
    """The checksums that a range of bytes of a stored object must have. They come from a manifest, the list of a
    partition's segments in the store. By them, the code that loads the bytes checks that these belong to the right
    object and begin at the right position.

    Attributes:
        crc: the CRC-32C of the bytes of the range. If the range consists of record batches of a log file, it is instead
            the CRC-32C over the headers of all batches from the beginning of the file to the end of the range.
        crc_before: the CRC-32C over the headers of all batches of the file before the range; None if the range does not
            consist of batches.
    """

    crc: int
    crc_before: int | None = None


class ObjectRange(NamedTuple):
    """A range of bytes of an object in an object store. A size of 0 means the whole object.

    Attributes:
        key: the key of the object.
        start: the position of the first byte.
        size: the number of bytes.
        proof: the checksums with which the bytes are compared when they are loaded; None if no manifest (a list of a
            partition's segments in the store) has checksums of them.
    """

    key: str
    start: int
    size: int
    proof: RangeProof | None = None


class InvalidRecord(NamedTuple):
    """A record of a batch that is not valid, and the reason. `number` is its place in the batch, counted from 0."""

    number: int
    why: str


class SecurityProtocol(StrEnum):
    """The security protocol of a listener, with Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted with TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        """Whether clients log in with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @classmethod
    def from_flags(cls, *, is_tls: bool, is_sasl: bool) -> "SecurityProtocol":
        """Return the security protocol that uses TLS if `is_tls`, and SASL if `is_sasl`."""
        return next(one for one in cls if (one.is_tls, one.is_sasl) == (is_tls, is_sasl))
