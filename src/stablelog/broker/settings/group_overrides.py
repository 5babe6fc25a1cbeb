"""The settings that single consumer groups have in place of the broker's, and the session timeout and heartbeat interval
that result for their members.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from stablelog.broker.settings.setting import find_setting
from stablelog.broker.settings.table import GROUP_SETTINGS
from stablelog.errors import UsageError, named

log = logging.getLogger(__name__)

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
# If the heartbeat interval of a group is too long, its members get this part of the session timeout: a member may then
# lose two heartbeats.
HEARTBEATS_PER_SESSION: Final = 3
NAMED_MAX: Final = 3  # The number of groups that a log line names.


class GroupOverrides:
    """The settings that consumer groups of one broker have of their own. They override settings of the broker.

    Args:
        of_broker: a function that returns the parsed value of a setting of the broker, by its name.

    Attributes:
        own: the settings that groups have of their own, as text, by the name of the group.
        times: the session timeout and the heartbeat interval of the members of these groups, in ms. A change of
            settings changes this dictionary itself, so that others can keep a reference to it.
    """

    def __init__(self, of_broker: Callable[[str], Any]) -> None:
        self._of_broker = of_broker
        self.own: dict[str, dict[str, str]] = {}
        self.times: dict[str, tuple[int, int]] = {}

    def _parse_times(self, configs: Mapping[str, str]) -> tuple[int, int]:
        """Return (session timeout, heartbeat interval) in ms for a group with these settings. The broker's value
        applies to a setting that the group does not have.

        Raises:
            UsageError: a setting is unknown or out of range.
        """
        values = {name: self._of_broker(setting.name) for name, setting in GROUP_SETTINGS.items()}
        for name, text in configs.items():
            values[name] = find_setting(name, GROUP_SETTINGS, "group").read(text, name)
        return values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL]

    def _conflict(self, configs: Mapping[str, str]) -> str:
        """Return how the session timeout and the heartbeat interval of a group with these settings contradict each
        other, as text for a message; "" if they do not.
        """
        session_ms, heartbeat_ms = self._parse_times(configs)
        if heartbeat_ms < session_ms:
            return ""
        session, heartbeat = (
            name if name in configs else GROUP_SETTINGS[name].name
            for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)
        )
        return f"{heartbeat}={heartbeat_ms} must be smaller than {session}={session_ms}"

    def check_group(self, configs: Mapping[str, str]) -> None:
        """Check the settings that a group is to get.

        Raises:
            UsageError: a setting is unknown or out of range, or the heartbeat interval is not smaller than the session
                timeout.
        """
        conflict = self._conflict(configs)
        if conflict:
            raise UsageError(conflict)

    def replace_all(self, groups: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the settings of all groups. If the settings of a group contradict those of the broker, they are
        accepted, and the members of the group get times that can be used together.

        Raises:
            UsageError: a setting is unknown or out of range; nothing changed.
        """
        times = {group: _usable_times(*self._parse_times(configs)) for group, configs in groups.items()}
        self.own = {group: dict(configs) for group, configs in groups.items()}
        self.times.clear()
        self.times.update(times)

    def log_conflicts(self) -> None:
        """Log a warning if settings of groups contradict those of the broker, such as a heartbeat interval above the
        session timeout.
        """
        conflicts = {group: self._conflict(configs) for group, configs in self.own.items()}
        found = [
            f"group {group!r}: {why}, so its members get {self.times[group][1]} ms"
            for group, why in conflicts.items()
            if why
        ]
        if found:
            log.warning(
                "settings of groups contradict those of the broker: %s. Change the settings of the group "
                "(kafka-configs.sh --entity-type groups --alter), or start the broker with other values",
                named(found, NAMED_MAX),
            )


def _usable_times(session_ms: int, heartbeat_ms: int) -> tuple[int, int]:
    """Return (session timeout, heartbeat interval) in ms, as the members of a group get them.

    A heartbeat interval that is not smaller than the timeout is replaced by a third of the timeout.
    """
    if heartbeat_ms >= session_ms:
        heartbeat_ms = max(1, session_ms // HEARTBEATS_PER_SESSION)
    return session_ms, heartbeat_ms
