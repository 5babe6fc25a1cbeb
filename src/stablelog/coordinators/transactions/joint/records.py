"""Record of a joint commit's key in the commit log. A joint commit commits several transactions, its children,
together; a key and a version identify it.

The latest record of a key holds all that the coordinator knows of it: the last committed version and its commit
sequence, and the run that has begun the next version. The record's key has a kind of stablelog's own
(`transactions.records.JOINT_KIND`), which Kafka skips:

    i16 10001 · string transaction group · string key

The value is `HEAD`, then `string run`, `i16 count` and that many strings, the superseded runs, then `string
committed_run`, `string digest` and `i64 order`; in value version 2 also `i32 count` and that many `ACCEPTED`. A string
is an int16 size and UTF-8. A record with a null value removes the key.

A joint commit of few children is this record *and* the decisions of its children, in one batch of the commit log. A
crash keeps or loses the batch as a whole. If there are many children, this record alone is the commit. It names the
children (`accepted`), and the batches with their decisions follow (`joint.accepted_children`). Only such a record has version
2.

Format: docs/reference/formats.md, "Commit log".
"""

import itertools
import struct
from dataclasses import dataclass
from typing import Final

from stablelog.coordinators.record_fields import INT16, INT32, INT64, FieldReader, string
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE, NO_TIME

VALUE_VERSION: Final = 1
VALUE_VERSION_ACCEPTED: Final = 2  # The version of a value that names accepted children.
JOINT_VALUE: Final = "a joint commit's key"
NO_VERSION: Final = -1
FOR_EVER: Final = -1
NO_ORDER: Final = -1

HEAD: Final = struct.Struct(
    ">"
    "h"  # version: 1, or 2 if the value names accepted children
    "q"  # last_version
    "q"  # commit_sequence
    "q"  # open_version
    "q"  # retention_ms
    "q"  # update_ms
)
ACCEPTED: Final = struct.Struct(
    ">"
    "q"  # producer_id: of an accepted child
    "h"  # producer_epoch: of its transaction
)


@dataclass(frozen=True, slots=True)
class JointState:
    """The state of the key of a joint commit, which commits several transactions (its children) together. The key names
    the joint commit for its client. Each commit with the key has a version, greater than those before.

    Attributes:
        last_version: the last committed version; -1 if there is none.
        commit_sequence: the number of that commit among all commits of its transaction group (topics with one order of
            commits); -1 if there is none.
        open_version: the version that a run (start of the writer) has begun since that commit; -1 if there is none.
        retention_ms: the time after `update_ms` during which the key is remembered; -1 without limit.
        update_ms: the time of this record.
        run: the run (start of the writer) that has the open version; empty if that run has given the version up.
        superseded: the runs that had the open version before, or have given it up; oldest first.
        committed_run: the run that committed the last version; empty if the commit did not name it.
        digest: the description of the last version that its writer sent with the commit; empty if the commit had none.
        order: the greatest order number that a run has sent when it began the open version; -1 if none has sent one.
        accepted: (producer id, producer epoch) of the children of the last version whose decisions follow this record;
            empty if all decisions of the children are in the log.
    """

    last_version: int = NO_VERSION
    commit_sequence: int = NO_SEQUENCE
    open_version: int = NO_VERSION
    retention_ms: int = FOR_EVER
    update_ms: int = NO_TIME
    run: str = ""
    superseded: tuple[str, ...] = ()
    committed_run: str = ""
    digest: str = ""
    order: int = NO_ORDER
    accepted: tuple[tuple[int, int], ...] = ()


def encode_joint(state: JointState) -> bytes:
    """Encode the state of a joint commit's key as the value of its record. A joint commit commits several transactions
    together; a key and a version identify it.
    """
    head = HEAD.pack(
        VALUE_VERSION_ACCEPTED if state.accepted else VALUE_VERSION,
        state.last_version,
        state.commit_sequence,
        state.open_version,
        state.retention_ms,
        state.update_ms,
    )
    runs = INT16.pack(len(state.superseded)) + b"".join(map(string, state.superseded))
    committed = string(state.committed_run) + string(state.digest)
    accepted = b""
    if state.accepted:
        fields = itertools.chain.from_iterable(state.accepted)
        # One call for all of them: a call for each would take 20 ms for 50,000 children.
        accepted = INT32.pack(len(state.accepted)) + struct.pack(f">{'qh' * len(state.accepted)}", *fields)
    return head + string(state.run) + runs + committed + INT64.pack(state.order) + accepted


def decode_joint(value: bytes) -> JointState:
    """Decode the value of the record of a joint commit's key. A joint commit commits several transactions together; a
    key and a version identify it.

    Raises:
        UnknownFormatError: a later release has written the value.
        DamageError: the value is damaged.
    """
    version = FieldReader(value, JOINT_VALUE).version(VALUE_VERSION_ACCEPTED, least=VALUE_VERSION)
    reader = FieldReader(value, JOINT_VALUE)
    _, last_version, commit_sequence, open_version, retention_ms, update_ms = reader.unpack(HEAD)
    run = reader.string()
    superseded = tuple(reader.string() for _ in range(reader.int16()))
    committed_run, digest, order = reader.string(), reader.string(), reader.int64()
    accepted: tuple[tuple[int, int], ...] = ()
    if version == VALUE_VERSION_ACCEPTED:
        accepted = tuple(ACCEPTED.iter_unpack(reader.read_bytes(max(reader.int32(), 0) * ACCEPTED.size)))
    reader.check_end()
    return JointState(
        last_version,
        commit_sequence,
        open_version,
        retention_ms,
        update_ms,
        run,
        superseded,
        committed_run,
        digest,
        order,
        accepted,
    )
