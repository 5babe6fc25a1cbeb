"""Which joint commit does a transaction belong to? Its transactional id says so.

    [<group>/]joint:<key>:<version>:<run>:<partition>:<attempt>

The key and what follows are percent-quoted, so that neither `:` nor `/` stands in them. An id that begins so but does
not read to its end is one like any other.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from stablelog.wire.extension.transaction_groups import NAME_PATTERN

PREFIX: Final = "joint:"
VERSION_MAX: Final = 2**63 - 1
_CHILD: Final = re.compile(rf"(?:({NAME_PATTERN})/)?joint:([^:/]+):(\d{{1,19}}):([^:/]*):([^:/]+):([^:/]+)")


class JointName(NamedTuple):
    """What a joint commit is known by, beside its version.

    Attributes:
        group: the transaction group; empty for the default one.
        key: whose versions they are.
    """

    group: str
    key: str


class Child(NamedTuple):
    """What a child's transactional id says.

    Attributes:
        name: the transaction group and the key.
        version: of the joint commit.
        run: which start of the writer it belongs to.
        partition: which part of the work.
        attempt: which attempt at it.
    """

    name: JointName
    version: int
    run: str
    partition: str
    attempt: str


def child_id(
    key: str, version: int, run: str, partition: int | str, attempt: int | str, *, group: str = ""
) -> str:
    """The transactional id of a child."""
    parts = (key, str(version), run, str(partition), str(attempt))
    return (f"{group}/" if group else "") + PREFIX + ":".join(quote(part, safe="") for part in parts)


def child_of(transactional_id: str) -> Child | None:
    """What the id says; None if it is not a child's."""
    return _read(transactional_id) if PREFIX in transactional_id else None


@lru_cache(maxsize=4096)
def _read(transactional_id: str) -> Child | None:
    found = _CHILD.fullmatch(transactional_id)
    if found is None or int(found[3]) > VERSION_MAX:
        return None
    return Child(
        JointName(found[1] or "", unquote(found[2])),
        int(found[3]),
        unquote(found[4]),
        unquote(found[5]),
        unquote(found[6]),
    )
