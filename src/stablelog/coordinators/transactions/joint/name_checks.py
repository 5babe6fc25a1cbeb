"""Checks of the names in requests about joint commits: keys, versions, runs (starts of the writer) and children (the
transactions that are committed together).
"""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import VERSION_MAX, Child, JointName, child_of
from stablelog.wire.extension.transaction_groups import is_group_name

# The maximum size of a key in bytes, so that the transactional ids of its children are not too long.
KEY_SIZE_MAX: Final = 255
RUN_SIZE_MAX: Final = 100
DIGEST_SIZE_MAX: Final = 1_000
# The maximum number of children of one joint commit. The decision that accepts 20,000 children holds the event loop for
# about 10 ms.
CHILD_COUNT_MAX: Final = 20_000


def is_of_run(child: Child, version: int, run: str) -> bool:
    """Return whether a child (one of the transactions that a joint commit commits together) belongs to this version of
    the joint commit, and to this run (start of the writer).
    """
    return (child.version, child.run) == (version, run)


def check_names(name: JointName, version: int, run: str | None) -> None:
    """Check the key, version, transaction group and run (start of the writer) in a request about a joint commit, which
    commits several transactions together.

    Raises:
        RefusedError: one of them is not valid. The error code is invalid_request.
    """
    if not 0 < len(name.key.encode()) <= KEY_SIZE_MAX:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"the key of the joint commit is empty or too long: 1 to {KEY_SIZE_MAX} bytes are allowed",
        )
    if not 0 <= version <= VERSION_MAX:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"version {version} of the joint commit is not valid: versions begin at 0",
        )
    if not is_group_name(name.group):
        raise RefusedError(
            ErrorCode.invalid_request, f"{name.group!r} is not a valid name of a transaction group"
        )
    if run is not None and len(run.encode()) > RUN_SIZE_MAX:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"the name of the run (one start of the writer) is too long: at most {RUN_SIZE_MAX} bytes "
            "are allowed",
        )


def check_child_count(count: int) -> None:
    """Check the number of children of a joint commit (the transactions that it commits together).

    Raises:
        RefusedError: the commit has more than CHILD_COUNT_MAX children. The error code is invalid_request.
    """
    if count > CHILD_COUNT_MAX:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"the joint commit has {count} transactions, and at most {CHILD_COUNT_MAX} are allowed: "
            "write the same records with fewer transactions, for example with fewer tasks",
        )


def check_belongs(name: JointName, version: int, shown: ChildShown) -> None:
    """Check that a transaction in a request is a child of this version of the joint commit (one of the transactions to
    commit together): that its transactional id contains the key and the version.

    Raises:
        RefusedError: the transaction is not such a child. The error code is invalid_request.
    """
    child = child_of(shown.transactional_id)
    if child is None or child.name != name or child.version != version:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"transactional id {shown.transactional_id} does not belong to version {version} of joint "
            f"commit {name.key!r} in transaction group {name.group or 'default'!r}",
        )
