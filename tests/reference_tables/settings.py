"""The tables of the settings of brokers and topics, one for each group of settings."""

from stablelog.broker.settings.acls import ACL_SETTINGS
from stablelog.broker.settings.connections import CONNECTION_SETTINGS
from stablelog.broker.settings.consumer_groups import CONSUMER_GROUP_SETTINGS
from stablelog.broker.settings.logins import LOGIN_SETTINGS
from stablelog.broker.settings.quotas import QUOTA_SETTINGS
from stablelog.broker.settings.security import SECURITY_SETTINGS
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.broker.settings.table import FIXED_BROKER_SETTINGS, SETTINGS, UNUSED_TOPIC_SETTINGS
from stablelog.broker.settings.tiering import TIERING_SETTINGS
from stablelog.broker.settings.topics import LOG_SETTINGS
from stablelog.broker.settings.transactions import TRANSACTION_SETTINGS
from stablelog.settings import INT_MAX, LONG_MAX
from tests.reference_tables import table

EMPTY = "(empty)"
# The greatest values of Kafka's types, which most settings share.
GREATEST = {f" to {INT_MAX}": " (int)", f" to {LONG_MAX}": ""}
GROUPS = {
    "settings-of-listeners": SECURITY_SETTINGS,
    "settings-of-logins": LOGIN_SETTINGS,
    "settings-of-acls": ACL_SETTINGS,
    "settings-of-quotas": QUOTA_SETTINGS,
    "settings-of-connections": CONNECTION_SETTINGS,
    "settings-of-topics": LOG_SETTINGS,
    "settings-of-transactions": TRANSACTION_SETTINGS,
    "settings-of-groups": CONSUMER_GROUP_SETTINGS,
    "settings-of-tiers": TIERING_SETTINGS,
}
GROUPED = {setting.name for group in GROUPS.values() for setting in group}


def name_of(setting: BrokerSetting) -> str:
    """The first cell of a setting's row: its name, that of the topic's setting, and a star if it may change."""
    topic = f" (`{setting.topic}`)" if setting.topic else ""
    return f"`{setting.name}`{topic}{' *' if setting.dynamic else ''}"


def valid(setting: BrokerSetting) -> str:
    """The valid values. A range without an end of its own is `≥0` for a long, and `≥0 (int)` for an int."""
    for end, mark in GREATEST.items():
        if setting.kind.valid.endswith(end):
            return f"≥{setting.kind.valid.removesuffix(end)}{mark}"
    return setting.kind.valid


def tables() -> dict[str, str]:
    groups = {
        "settings-of-the-broker": [setting for setting in SETTINGS if setting.name not in GROUPED],
        **GROUPS,
    }
    header = ("setting", "default", "valid", "meaning")
    unused = (
        (f"`{setting.name}`", setting.default or EMPTY, valid(setting))
        for setting in UNUSED_TOPIC_SETTINGS.values()
    )
    fixed = ((f"`{name}`", value) for name, value in FIXED_BROKER_SETTINGS.items())
    return {
        **{
            name: table(
                header,
                ((name_of(one), one.default or EMPTY, valid(one), one.doc) for one in group),
            )
            for name, group in groups.items()
        },
        "unused-topic-settings": table(("setting of a topic", "default", "valid"), unused),
        "fixed-broker-settings": table(("setting of the broker", "value"), fixed),
    }
