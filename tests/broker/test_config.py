"""The settings of brokers and topics: a wrong one is refused by name."""

import pytest

from stablelog.broker.config import BrokerConfig, check_topic_configs
from stablelog.errors import UsageError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log.segment.byte": "1"}, "did you mean log.segment.bytes"),
        ({"log.segment.bytes": "12"}, "1024 to"),
        ({"listeners": "SSL://x:1"}, "PLAINTEXT"),
        ({"stablelog.flush": "never"}, "fsync or os"),
    ],
)
def test_a_bad_setting_is_refused_by_name_with_the_valid_range(given, message):
    with pytest.raises(UsageError, match=message):
        BrokerConfig(given)


def test_a_topic_setting_that_cannot_be_had_is_refused():
    check_topic_configs({"min.insync.replicas": "1", "retention.ms": "-1"})
    for configs in ({"min.insync.replicas": "2"}, {"compression.type": "brotli"}, {"retention": "1"}):
        with pytest.raises(UsageError):
            check_topic_configs(configs)


def test_a_new_topic_keeps_what_the_broker_says_of_its_order_and_its_group():
    assert BrokerConfig({}).creation_configs() == {}
    given = BrokerConfig({"stablelog.order": "commit", "stablelog.group": "", "log.retention.ms": "5"})
    assert given.creation_configs() == {"stablelog.order": "commit"}
