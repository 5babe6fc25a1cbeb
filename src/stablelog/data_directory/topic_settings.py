"""Those settings of a topic in the list of topics that decide how the files of its partitions are read: the order of
its records, and its transaction group, the topics whose commits have one order.
"""

from collections.abc import Mapping

from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP


def order_of(topic_configs: Mapping[str, str]) -> str:
    """Return the order in which read-committed readers get the records of a topic: `offset` or `commit`."""
    return topic_configs.get("stablelog.order", "offset")


def group_of_topic(topic_configs: Mapping[str, str]) -> str:
    """Return the name of a topic's transaction group (the topics whose commits have one order); empty for the default
    group.
    """
    return topic_configs.get("stablelog.group", DEFAULT_GROUP)
