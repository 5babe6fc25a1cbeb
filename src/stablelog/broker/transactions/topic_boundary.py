"""Refuses a transaction's write to a topic of another transaction group (topics and producers with one order of
commits).

A transaction writes to the topics of its own group and to the offsets log. The commits in a partition therefore belong
to one group, and are numbered in one order. So each commit divides every partition of the group into the commits up to
this one and the later ones.
"""

import logging
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.topics.topic_list import TopicList
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC
from stablelog.errors import RefusedError
from stablelog.wire.extension.transaction_groups import crossing_in_words, group_of

log = logging.getLogger(__name__)

# The number of pairs (transaction group, topic of another group) for which the broker logs a refused write.
LOGGED_PAIRS_MAX: Final = 1000


class TopicBoundary:
    """Compares the transaction group of a transactional id (named before its first slash) with that of a topic (a
    setting): a transaction may only write to topics of its own group.

    Args:
        topics: the list of topics, which has the group of each topic.
    """

    def __init__(self, topics: TopicList) -> None:
        self._topics = topics
        self._logged: set[tuple[str, str]] = set()

    def check(self, transactional_id: str, topic_name: str) -> None:
        """Refuse a transaction's write to a topic, if the topic belongs to another transaction group (topics with one
        order of commits) than the transactional id. A topic names its group in a setting, a transactional id before its
        first slash.

        The error code is TOPIC_AUTHORIZATION_FAILED: after this code clients abort the transaction and keep the
        producer. The message is sent in responses that have a field for it, and the broker logs it once for each group
        and topic.

        Raises:
            RefusedError: the topic belongs to another group; the error code is topic_authorization_failed.
        """
        topic = self._topics.get(topic_name)
        own = group_of(transactional_id)
        if topic is None or topic.group == own or topic_name == CONSUMER_OFFSETS_TOPIC:
            return
        fitting_id = f"that begins with {topic.group + '/'!r}" if topic.group else "without a slash"
        fitting_group = own or "''"
        refused = RefusedError(
            ErrorCode.topic_authorization_failed,
            f"{crossing_in_words(transactional_id, topic_name, topic.group)}: a transaction writes to topics of its own "
            "group. "
            f"Use an id {fitting_id}, or a topic made with stablelog.group={fitting_group}",
        )
        if (own, topic_name) not in self._logged and len(self._logged) < LOGGED_PAIRS_MAX:
            self._logged.add((own, topic_name))
            log.warning("%s", refused)
        raise refused
