"""What a manifest says about its partition and topic besides the list of segments. A restore reads it.

Format: docs/formats.md, "The manifest", the field `published`.
"""

from typing import Any, NamedTuple

from stablelog.errors import Corrupt, in_words


class Published(NamedTuple):
    """What the broker knew of a partition and its topic when it published a manifest.

    Attributes:
        log_end: the log end offset of the partition.
        time_ms: the time of the broker's clock.
        partition_count: the number of partitions of the topic.
        configs: the settings of the topic itself, by Kafka's names.
    """

    log_end: int
    time_ms: int
    partition_count: int
    configs: dict[str, str]


def published_of(head: dict[str, Any]) -> Published | None:
    """Read the field `published` of the head of a manifest; None if the head has none.

    Raises:
        Corrupt: the field has another content.
    """
    if "published" not in head:
        return None
    found = head["published"]
    try:
        published = Published(*(found[name] for name in Published._fields))
        texts = [text for setting in published.configs.items() for text in setting]
    except (KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"the head of a manifest describes its topic wrongly: {in_words(error)}") from error
    numbers = published.log_end, published.time_ms, published.partition_count
    if any(type(number) is not int or number < 0 for number in numbers) or not all(
        isinstance(text, str) for text in texts
    ):
        raise Corrupt(f"the head of a manifest describes its topic with other values: {found}")
    return published
