"""A setting (one row of the table of all settings), and the search for a setting by its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stablelog.errors import UsageError, did_you_mean
from stablelog.settings import SettingType


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One setting of brokers, or of brokers and topics.

    Attributes:
        name: its name in a broker's configuration.
        kind: the values that it accepts.
        default: the default value, as text.
        doc: the effect of the setting, with its unit.
        topic: its name in a topic's configuration; None if a topic cannot set it.
        dynamic: whether it can be changed while the broker runs.
        per_listener: whether it can be set for one listener, with a name that begins with `listener.name.`.
        is_secret: whether its value is secret: responses, errors and logs leave the value out.
    """

    name: str
    kind: SettingType
    default: str
    doc: str
    topic: str | None = None
    dynamic: bool = False
    per_listener: bool = False
    is_secret: bool = False

    @property
    def is_fixed_at_creation(self) -> bool:
        """Whether the value of the setting is fixed for a topic at its creation. A change of the broker's value then
        affects only new topics.
        """
        return self.topic is not None and not self.dynamic

    def read(self, text: str, name: str | None = None) -> Any:
        """Parse the text of a value.

        Args:
            text: the value as the user wrote it.
            name: the name that the user wrote, if it is not that of the setting.

        Raises:
            UsageError: the text is not valid. The message leaves out the value of a secret.
        """
        if not self.is_secret:
            return self.kind.read(name or self.name, text, self.default)
        try:
            return self.kind.parse(text)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
            # Without a cause: its message might contain the value.
            raise UsageError(f"the value of {name or self.name} is not valid: {self.kind.valid}") from None


def find_setting(name: str, known: Mapping[str, BrokerSetting], whose: str) -> BrokerSetting:
    """Return the setting with the name that the user wrote.

    Args:
        name: the name that the user wrote.
        known: the settings by their names.
        whose: the owner of these settings in the message, such as "broker".

    Raises:
        UsageError: there is no such setting. The message has the nearest valid name.
    """
    if name not in known:
        raise UsageError(f"there is no {whose} setting {name!r}{did_you_mean(name, known)}")
    return known[name]
