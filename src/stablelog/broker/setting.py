"""One row of the table of settings."""

from dataclasses import dataclass

from stablelog.settings import Kind


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of brokers, or of brokers and topics.

    Attributes:
        name: its name in a broker's configuration.
        kind: the values that it accepts.
        default: the default value, as text.
        doc: the effect of the setting, with its unit.
        topic: its name in a topic's configuration; None if a topic cannot set it.
        dynamic: whether it can be changed while the broker runs.
    """

    name: str
    kind: Kind
    default: str
    doc: str
    topic: str | None = None
    dynamic: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether a topic's value of the setting is fixed when the topic is created.

        A change of the broker's value then affects only new topics.
        """
        return self.topic is not None and not self.dynamic
