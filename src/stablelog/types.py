"""Types that all packages of stablelog share."""

import re
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]  # topic name, and number of the partition in the topic


TOPIC_NAME_SIZE_MAX: Final = 249
TOPIC_NAME_RULE: Final = (
    f"use 1 to {TOPIC_NAME_SIZE_MAX} characters of a-z A-Z 0-9 . _ -, but not . or .. alone"
)

_LEGAL_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts this name of a topic, by TOPIC_NAME_RULE."""
    return (
        len(name) <= TOPIC_NAME_SIZE_MAX
        and name not in {".", ".."}
        and _LEGAL_TOPIC_NAME.fullmatch(name) is not None
    )


class ObjectRange(NamedTuple):
    """A range of bytes of an object in an object store. A size of 0 stands for the whole object."""

    key: str
    start: int
    size: int


class InvalidRecord(NamedTuple):
    """Why one record of a batch is not valid. `number` counts the records of the batch from 0."""

    number: int
    why: str
