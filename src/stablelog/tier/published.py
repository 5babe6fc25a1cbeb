"""What a manifest, the list of a partition's segments in the store, also says about the partition and its topic. A
restore reads it.

Format: docs/reference/formats.md, "The manifest", the field `published`.
"""

import uuid
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from stablelog.errors import DamageError, UnknownFormatError, in_words
from stablelog.log.files.restored import Restored, restored_from_fields

# The greatest number of partitions of a topic. A greater one in an object is damage, or hostile.
PARTITION_COUNT_MAX: Final = 100_000
REQUIRED: Final = ("log_end", "time_ms", "partition_count", "configs")


class Published(NamedTuple):
    """What the broker knew of a partition and its topic when it published a manifest, the list of the partition's
    segments in the store.

    Attributes:
        log_end: the offset after the last durable record of the partition. A later state of the same log does not end
            before this offset. A log that ends before it is therefore another one, for example that of an old copy of
            the directory.
        time_ms: when the manifest was published, by the broker's clock, in ms since 1970.
        partition_count: the number of partitions of the topic.
        configs: the settings that were made for this topic, without the broker's defaults, by Kafka's names.
        topic_id: the id of the topic.
        partition: the index of the partition.
        restored: the offsets and commits that restores of the partition have lost; None if it was never restored.
        view_start: the first position in commit order (the offset that read-committed readers see) whose record is not
            deleted. It may be greater than the log start offset: in the log, records of transactions that committed
            later may stand before deleted ones. 0 if the topic is not commit-ordered.
    """

    log_end: int
    time_ms: int
    partition_count: int
    configs: dict[str, str]
    topic_id: uuid.UUID
    partition: int
    restored: Restored | None = None
    view_start: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary, which the manifest (the list of a partition's segments in the store)
        contains as JSON. `published_of` reads it.
        """
        return {
            "log_end": self.log_end,
            "time_ms": self.time_ms,
            "partition_count": self.partition_count,
            "configs": self.configs,
            "restored": None if self.restored is None else asdict(self.restored),
            **({"view_start": self.view_start} if self.view_start else {}),
            "topic_id": str(self.topic_id),
            "partition": self.partition,
        }

    def check_partition(self, topic_id: uuid.UUID, partition: int) -> None:
        """Check that the manifest with these statements is that of this partition. In a manifest that lists no
        segments, nothing else says of which partition it is.

        Raises:
            DamageError: the manifest is that of another partition.
        """
        if (self.topic_id, self.partition) != (topic_id, partition):
            raise DamageError(
                f"a manifest is stored at the wrong place: it is that of partition {self.partition} of "
                f"the topic with the id {self.topic_id}, and is stored as that of partition {partition} "
                f"of the topic with the id {topic_id}"
            )


def published_of(head: dict[str, Any]) -> Published | None:
    """Return the content of the field `published` in the head (first record) of a manifest, the list of a partition's
    segments in the store; None if the head does not have this field.

    Raises:
        UnknownFormatError: the field does not name the partition.
        DamageError: a value in the field has a wrong type or is not possible.
    """
    if "published" not in head:
        return None
    found = head["published"]
    try:
        if "topic_id" not in found:
            raise UnknownFormatError("a manifest that does not name its partition", None, head["version"])
        restored = found.get("restored")
        log_end, time_ms, partition_count, configs = (found[name] for name in REQUIRED)
        published = Published(
            log_end,
            time_ms,
            partition_count,
            configs,
            uuid.UUID(found["topic_id"]),
            found["partition"],
            None if restored is None else restored_from_fields(restored),
            found.get("view_start", 0),
        )
        texts = [text for setting in published.configs.items() for text in setting]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamageError(
            f"a manifest is damaged: its field `published` cannot be decoded: {in_words(error)}"
        ) from error
    numbers = [
        published.log_end,
        published.time_ms,
        published.partition_count,
        published.partition,
        published.view_start,
    ]
    if any(type(number) is not int or number < 0 for number in numbers) or not all(
        isinstance(text, str) for text in texts
    ):
        raise DamageError(
            f"a manifest is damaged: its field `published` has a value of a wrong type: {found}"
        )
    if partition_count > PARTITION_COUNT_MAX:
        raise DamageError(
            f"a manifest says that its topic has {partition_count} partitions; at most {PARTITION_COUNT_MAX} are possible, so the manifest is damaged"
        )
    return published
