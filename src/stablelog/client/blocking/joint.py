"""Joint commits as blocking calls: a joint commit commits several open transactions (its children) together.
`core.joint` explains them.

A writer with several tasks calls `begin` in each task. Each task writes its records in its own transaction, whose
transactional id is `child_id(...)`, and leaves it open. The process that knows which tasks have succeeded calls
`commit` with the transactions of these tasks. Each call may be repeated after any failure: the broker then gives the
same response again.
"""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import joint as core
from stablelog.client.core.joint import FOR_EVER, NO_ORDER, ChildId, GroupTarget, JointCommit, JointVersion
from stablelog.wire.extension.children import VERSION_MAX, Child, child_id, child_of

__all__ = [
    "FOR_EVER",
    "NO_ORDER",
    "VERSION_MAX",
    "JointVersion",
    "Child",
    "JointCommit",
    "GroupTarget",
    "ChildId",
    "abort",
    "begin",
    "child_id",
    "child_of",
    "commit",
    "next_order",
    "supported",
]

supported = blocking(core.supported)
next_order = blocking(core.next_order)
begin = blocking(core.begin)
commit = blocking(core.commit)
abort = blocking(core.abort)
