"""The types of settings whose values are text: valid values, and the errors for an invalid value or name.

`broker.settings.table` lists the settings of brokers and topics, and `spark.option_table` the options of Spark reads
and writes. Each entry has a `SettingType`, which parses the text and describes the valid values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stablelog.errors import UsageError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
# Python's conversion errors begin with these words. They are left out of the message, because they do not help the
# user.
UNINFORMATIVE = ("invalid literal", "could not convert")


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting: its valid values, and the function that parses them.

    Attributes:
        parse: converts text to the value; raises ValueError or KeyError for invalid text. The message of a ValueError
            is shown to the user.
        valid: a description of the valid values, for the user.
    """

    parse: Callable[[str], Any]
    valid: str

    def read(self, name: str, text: str, default: str = "") -> Any:
        """Convert the text of a setting to its value, and return the value.

        Args:
            name: the name of the setting, for the error message.
            text: the value as the user wrote it.
            default: the default of the setting, for the error message.

        Raises:
            UsageError: the text is not valid. The message names the setting, its valid values and its default.
        """
        try:
            return self.parse(text)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            why = str(error) if isinstance(error, ValueError) else ""
            reason = f" ({why})" if why and not why.startswith(UNINFORMATIVE) else ""
            hint = f" (default {default})" if default else ""
            raise UsageError(f"{name}={text!r} is not valid: {self.valid}{reason}{hint}") from error


def integer(low: int, high: int) -> SettingType:
    """Make the `SettingType` of a setting whose value is a whole number from `low` to `high`."""
    return SettingType(lambda text: _within(int(text), low, high), f"{low} to {high}")


def share() -> SettingType:
    """Make the `SettingType` of a setting whose value is a number from 0 to 1."""
    return SettingType(lambda text: _within(float(text), 0, 1), "0 to 1")


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError
    return value


def boolean() -> SettingType:
    """Make the `SettingType` of a setting whose value is `true` or `false`."""
    return SettingType(lambda text: {"true": True, "false": False}[text.strip().lower()], "true or false")


def choice(*words: str) -> SettingType:
    """Make the `SettingType` of a setting whose value is one of these words."""
    return SettingType({word: word for word in words}.__getitem__, " or ".join(words))


def choices(*words: str) -> SettingType:
    """Make the `SettingType` of a setting whose value is any number of these words, with commas between them."""

    def parse(text: str) -> frozenset[str]:
        found = frozenset(word.strip() for word in text.split(",") if word.strip())
        if not found <= set(words):
            raise ValueError
        return found

    return SettingType(parse, f"any of {', '.join(words)}, or empty")
