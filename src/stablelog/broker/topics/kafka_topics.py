"""The topics in a data directory of Apache Kafka, and the settings that they get in this broker."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stablelog.broker.settings.config import check_topic_configs
from stablelog.data_directory.catalog import ListedTopic
from stablelog.data_directory.kafka_import import find_topics
from stablelog.env.disk import Disk
from stablelog.errors import UsageError

log = logging.getLogger(__name__)


def adopt_topics(disk: Disk, directory: Path) -> list[ListedTopic]:
    """Find and return the topics of a data directory that has no list of topics. Nothing is written. Raises the errors
    of `find_topics`.
    """
    topics = []
    for topic in find_topics(disk, directory):
        configs = adopted_configs(topic.name, topic.configs)
        log.info("found topic %s with %d partitions, %s", topic.name, topic.partition_count, configs)
        topics.append(replace(topic, configs=configs))
    return topics


def adopted_configs(name: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a topic of Apache Kafka gets in this broker.

    The topic keeps the settings that Kafka has recorded, as far as they were found (`known`). If its retention is not
    known, it gets unlimited retention: the default retention of the Kafka broker is unknown, and data that retention
    deletes cannot be restored.
    """
    configs = {"retention.ms": "-1", "retention.bytes": "-1"}
    for setting, text in known.items():
        try:
            check_topic_configs({setting: text})
        except UsageError as error:
            log.warning("a setting of topic %s in Apache Kafka is not used by this broker: %s", name, error)
        else:
            configs[setting] = text
    return configs
