"""The tables of the settings of brokers and topics."""

from stablelog.broker.settings.table import FIXED_BROKER_SETTINGS, SETTINGS, UNUSED_TOPIC_SETTINGS
from tests.reference_tables import table

EMPTY = "(empty)"


def tables() -> dict[str, str]:
    settings = (
        (
            f"`{setting.name}`",
            f"`{setting.topic}`" if setting.topic else "",
            setting.default or EMPTY,
            setting.kind.valid,
            setting.doc,
        )
        for setting in SETTINGS
    )
    unused = (
        (f"`{setting.name}`", setting.default or EMPTY, setting.kind.valid)
        for setting in UNUSED_TOPIC_SETTINGS.values()
    )
    fixed = ((f"`{name}`", value) for name, value in FIXED_BROKER_SETTINGS.items())
    return {
        "settings": table(("setting", "of a topic", "default", "valid", "meaning"), settings),
        "unused-topic-settings": table(("setting of a topic", "default", "valid"), unused),
        "fixed-broker-settings": table(("setting of the broker", "value"), fixed),
    }
