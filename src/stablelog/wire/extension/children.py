"""The transactional ids of the children of a joint commit.

    [<group>/]joint:<key>:<version>:<run>:<partition>:<attempt>

A child is one of the transactions that a joint commit commits together. The key names the writer, the version is the
number of the joint commit, and the run is one start of the writer. The key and the parts after it are percent-quoted,
so that they contain neither `:` nor `/`. An id that begins with `joint:` but does not have all these parts is an
ordinary transactional id, and so is an id that `child_id` would write in another way, such as one with a quoted letter.
Otherwise one child could have two ids, for which different ACLs apply.
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
    """The name of a series of joint commits; each commits the transactions of several producers together. The joint
    commits of a series are numbered: name and number (the version) together identify one.

    Attributes:
        group: the transaction group, the topics whose commits have one order; empty for the default group.
        key: names the writer of the series, such as a streaming query.
    """

    group: str
    key: str


class Child(NamedTuple):
    """The parts of the transactional id of a child: one of the transactions of a joint commit.

    Attributes:
        name: the transaction group (the topics whose commits have one order) and the key that names the writer.
        version: the number of the joint commit under this key.
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
    """Build the transactional id of a child: one of the transactions that a joint commit commits together.

    Args:
        key: names the writer, such as a streaming query.
        version: the number of the joint commit under this key.
        run: identifies one start of the writer.
        partition: identifies the part of the work that the child does.
        attempt: identifies the attempt at that part.
        group: the transaction group, the topics whose commits have one order; empty for the default group.
    """
    parts = (key, str(version), run, str(partition), str(attempt))
    return (f"{group}/" if group else "") + PREFIX + ":".join(quote(part, safe="") for part in parts)


def child_prefix(key: str, *, group: str = "") -> str:
    """Return the prefix `[<group>/]joint:<key>:`, with which the transactional ids of all children of a key begin. A
    child is one of the transactions of a joint commit, and the key names the writer of such commits.
    """
    return (f"{group}/" if group else "") + PREFIX + quote(key, safe="") + ":"


def child_of(transactional_id: str) -> Child | None:
    """Parse a transactional id. Return None if it is not the id of a child: one of the transactions that a joint commit
    commits together.

    The result is cached. An id that is too long for a transactional id is not parsed, so that it takes no memory in the
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
