"""The transactional ids of the children of a joint commit.

    [<group>/]joint:<key>:<version>:<run>:<partition>:<attempt>

A child is one transaction of a joint commit. The key and the parts after it are percent-quoted, so that they contain
neither `:` nor `/`. An id that begins with `joint:` but does not have all these parts is an ordinary transactional id,
and so is an id that `child_id` would write in another way, such as one with a quoted letter. Otherwise one child could
have two ids, for which different ACLs apply.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from stablelog.wire.extension.transaction_groups import NAME_PATTERN, TRANSACTIONAL_ID_SIZE_MAX

PREFIX: Final = "joint:"
VERSION_MAX: Final = 2**63 - 1
_CHILD: Final = re.compile(rf"(?:({NAME_PATTERN})/)?joint:([^:/]+):(\d{{1,19}}):([^:/]*):([^:/]+):([^:/]+)")


class JointName(NamedTuple):
    """The name of a series of joint commits. Name and version together identify one joint commit.

    Attributes:
        group: the transaction group; empty for the default group.
        key: names the series of joint commits whose versions are counted together.
    """

    group: str
    key: str


class Child(NamedTuple):
    """The parts of the transactional id of a child: one of the transactions of a joint commit.

    Attributes:
        name: the transaction group and the key.
        version: the version of the joint commit.
        run: identifies the start of the writing program to which the child belongs.
        partition: identifies the part of the work that the child does.
        attempt: identifies the attempt at that part of the work, such as an attempt of a Spark task.
    """

    name: JointName
    version: int
    run: str
    partition: str
    attempt: str


def child_id(
    key: str, version: int, run: str, partition: int | str, attempt: int | str, *, group: str = ""
) -> str:
    """Build the transactional id of a child: one of the transactions that a joint commit commits together."""
    parts = (key, str(version), run, str(partition), str(attempt))
    return (f"{group}/" if group else "") + PREFIX + ":".join(quote(part, safe="") for part in parts)


def child_prefix(key: str, *, group: str = "") -> str:
    """Return the beginning that the transactional ids of all children of a key have: `[<group>/]joint:<key>:`."""
    return (f"{group}/" if group else "") + PREFIX + quote(key, safe="") + ":"


def child_of(transactional_id: str) -> Child | None:
    """Parse a transactional id. Return None if it is not the id of a child of a joint commit.

    The result is cached. An id that is too long for a transactional id is not parsed, so that it takes no memory of the
    cache.
    """
    if len(transactional_id) > TRANSACTIONAL_ID_SIZE_MAX or PREFIX not in transactional_id:
        return None
    return _read(transactional_id)


@lru_cache(maxsize=4096)
def _read(transactional_id: str) -> Child | None:
    found = _CHILD.fullmatch(transactional_id)
    if found is None or int(found[3]) > VERSION_MAX:
        return None
    group, version = found[1] or "", int(found[3])
    key, run, partition, attempt = (unquote(found[number]) for number in (2, 4, 5, 6))
    if child_id(key, version, run, partition, attempt, group=group) != transactional_id:
        return None
    return Child(JointName(group, key), version, run, partition, attempt)
