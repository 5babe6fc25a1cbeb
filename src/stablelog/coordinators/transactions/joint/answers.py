"""How a request names a child (one of the transactions that a joint commit commits together), and the coordinator's
answers to requests about joint commits.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.records import NO_VERSION, JointState
from stablelog.coordinators.transactions.joint.table import UNKNOWN
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE


class ChildShown(NamedTuple):
    """A child, one of the transactions that a joint commit commits together, as a request names it: its transactional
    id, and its producer id and epoch as the client knows them.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """Answer to BeginJoint, CommitJoint or AbortJoint: requests about a joint commit, which commits several
    transactions together and is identified by a key and a version.

    Attributes:
        error: why the request was refused.
        message: the reason as text.
        committed: whether this version of the key, or a later one, was committed before this request.
        commit_sequence: the number of the commit of this version among all commits of its transaction group (topics
            with one order of commits), if it is the last committed version of the key; -1 otherwise.
        last_version: the last committed version, in an answer to BeginJoint; -1 if there is none.
        run: the run (start of the writer) that committed this version of the key; empty if unknown.
        digest: the writer's description of what it committed under this version; empty if unknown.
    """

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    committed: bool = False
    commit_sequence: int = NO_SEQUENCE
    last_version: int = NO_VERSION
    run: str = ""
    digest: str = ""


def committed_before(state: JointState, version: int) -> JointAnswer:
    """Return the answer for a version of a joint commit (of several transactions together) that is committed already.

    The commit sequence (number of the commit), the run (start of the writer that committed) and the digest (the
    writer's description of the content) are known only of the last committed version. For an earlier version they are
    left out.
    """
    known = state if version == state.last_version else UNKNOWN
    return JointAnswer(
        committed=True,
        commit_sequence=known.commit_sequence,
        run=known.committed_run,
        digest=known.digest,
    )
