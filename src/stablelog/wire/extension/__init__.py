"""What stablelog speaks beside Kafka's protocol.

Kafka has no message for a joint commit (`joint`), a cut (`cut`) or the bounds of transactions (`commits`), so these
are our own, with numbers from a range that Kafka does not use. They are written as kio writes Kafka's, and go the same
way: same headers, same guard against counts that cannot be true, same reader and writer. All are flexible and have one
version, 0.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from stablelog.wire.extension.commits import (
    DESCRIBE_COMMITS,
    DescribeCommitsRequest,
    DescribeCommitsResponse,
)
from stablelog.wire.extension.cut import DESCRIBE_CUT, DescribeCutRequest, DescribeCutResponse
from stablelog.wire.extension.joint import (
    ABORT_JOINT,
    BEGIN_JOINT,
    COMMIT_JOINT,
    AbortJointRequest,
    AbortJointResponse,
    BeginJointRequest,
    BeginJointResponse,
    CommitJointRequest,
    CommitJointResponse,
)

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

_CLASSES: Final[dict[tuple[int, str], Any]] = {
    (BEGIN_JOINT, "request"): BeginJointRequest,
    (BEGIN_JOINT, "response"): BeginJointResponse,
    (COMMIT_JOINT, "request"): CommitJointRequest,
    (COMMIT_JOINT, "response"): CommitJointResponse,
    (ABORT_JOINT, "request"): AbortJointRequest,
    (ABORT_JOINT, "response"): AbortJointResponse,
    (DESCRIBE_CUT, "request"): DescribeCutRequest,
    (DESCRIBE_CUT, "response"): DescribeCutResponse,
    (DESCRIBE_COMMITS, "request"): DescribeCommitsRequest,
    (DESCRIBE_COMMITS, "response"): DescribeCommitsResponse,
}


def extension_class(api_key: int, kind: str) -> Any:
    """The class of a whole request or response."""
    return _CLASSES[api_key, kind]
