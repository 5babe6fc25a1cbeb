"""The settings of a topic that decide how its files are read."""

import pytest

from stablelog.data_directory.topic_settings import group_of_topic, order_of


@pytest.mark.parametrize(
    ("configs", "order", "group"),
    [
        ({}, "offset", ""),
        ({"stablelog.order": "commit", "retention.ms": "5"}, "commit", ""),
        ({"stablelog.order": "commit", "stablelog.group": "payments"}, "commit", "payments"),
        ({"order": "commit", "group": "payments"}, "offset", ""),
    ],
    ids=str,
)
def test_a_topic_is_in_offset_order_and_of_the_default_group_unless_its_settings_say_more(
    configs, order, group
):
    assert (order_of(configs), group_of_topic(configs)) == (order, group)
