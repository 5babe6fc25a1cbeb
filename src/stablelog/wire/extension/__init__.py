"""What stablelog speaks beside Kafka's protocol.

Kafka has no message for a joint commit (`joint`), a cut (`cut`) or the bounds of transactions (`commits`), so these
are our own, with numbers from a range that Kafka does not use. They are written as kio writes Kafka's, and go the same
way: same headers, same guard against counts that cannot be true, same reader and writer. All are flexible and have one
version, 0.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

BEGIN_JOINT: Final = 10_001
COMMIT_JOINT: Final = 10_002
ABORT_JOINT: Final = 10_003
DESCRIBE_CUT: Final = 10_004
DESCRIBE_COMMITS: Final = 10_005

EXTENSION_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        BEGIN_JOINT: "begin_joint",
        COMMIT_JOINT: "commit_joint",
        ABORT_JOINT: "abort_joint",
        DESCRIBE_CUT: "describe_cut",
        DESCRIBE_COMMITS: "describe_commits",
    }
)
# api key -> (first version, last version), as `stablelog.wire.messages.API_VERSIONS` has Kafka's.
EXTENSION_VERSIONS: Final = dict.fromkeys(EXTENSION_NAMES, (0, 0))

_MODULES: Final[Mapping[int, str]] = MappingProxyType(
    {
        BEGIN_JOINT: "joint",
        COMMIT_JOINT: "joint",
        ABORT_JOINT: "joint",
        DESCRIBE_CUT: "cut",
        DESCRIBE_COMMITS: "commits",
    }
)


def extension_module(api_key: int) -> ModuleType:
    """Import the module that has an API's request and response: a broker does so when a client first speaks the API."""
    return importlib.import_module(f"{__name__}.{_MODULES[api_key]}")
