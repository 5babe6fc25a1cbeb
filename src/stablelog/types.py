"""Types that all packages of stablelog share."""

from typing import NamedTuple

TopicPartition = tuple[str, int]  # topic name, and number of the partition in the topic


class ObjectRange(NamedTuple):
    """A range of bytes of an object in an object store. A size of 0 stands for the whole object."""

    key: str
    start: int
    size: int


class InvalidRecord(NamedTuple):
    """Why one record of a batch is not valid. `number` counts the records of the batch from 0."""

    number: int
    why: str
