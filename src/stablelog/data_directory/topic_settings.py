"""The settings of a topic that the list of topics has, as far as they decide how the topic's files are read."""

from collections.abc import Mapping

from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP


def order_of(topic_configs: Mapping[str, str]) -> str:
    """The order in which read-committed readers get the records of a topic: `offset` or `commit`."""
    return topic_configs.get("stablelog.order", "offset")


def group_of_topic(topic_configs: Mapping[str, str]) -> str:
    """The transaction group that a topic belongs to; empty for the default one."""
    return topic_configs.get("stablelog.group", DEFAULT_GROUP)
