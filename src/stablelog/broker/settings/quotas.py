"""The settings of quotas: a part of the table of all settings (`broker.settings.table`)."""

from typing import Final

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.settings import INT_MAX, integer

_WINDOWS: Final = integer(2, 1000)
_WINDOW_SIZE: Final = integer(1, 3600)

QUOTA_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "quota.window.num",
        _WINDOWS,
        "11",
        "The number of windows over which the byte rates, the request time and the connection rates of clients are measured.",
    ),
    BrokerSetting(
        "quota.window.size.seconds",
        _WINDOW_SIZE,
        "1",
        "The length of such a window in seconds. It is also the longest throttle time for the request time and for new "
        "connections.",
    ),
    BrokerSetting(
        "controller.quota.window.num",
        _WINDOWS,
        "11",
        "The number of windows whose changes of partitions a client may make at once.",
    ),
    BrokerSetting(
        "controller.quota.window.size.seconds",
        _WINDOW_SIZE,
        "1",
        "The length of such a window in seconds.",
    ),
    BrokerSetting(
        "max.connection.creation.rate",
        integer(1, INT_MAX),
        str(INT_MAX),
        "The greatest number of new connections per second. Above it, the broker serves new connections later.",
        dynamic=True,
    ),
)
