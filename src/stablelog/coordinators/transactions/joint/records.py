"""What does the commit log say of a joint commit's key, byte for byte?

The latest record of a key is all that is known of it: which version was committed last, with which commit sequence,
and who has begun the next one. Its key is of a kind of our own (`transactions.records.JOINT_KIND`), which Kafka skips:

    i16 10001 · string transaction group · string key

and its value is `HEAD`, then `string run`, `i16 count` and so many strings, the superseded runs; then, from value
version 1 on, `string committed_run`, `string digest` and `i64 order`. A string is an i16 size and UTF-8. A null value
forgets the key.

A joint commit is this record *and* the decisions of its children, in one batch of the commit log, which a crash leaves
whole or takes away whole.

Format: docs/formats.md, "Commit log".
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from stablelog.coordinators.transactions.records import NO_SEQUENCE, NO_TIME, FieldReader, string
from stablelog.errors import Corrupt, refuse_newer

VALUE_VERSION: Final = 1
JOINT_VALUE: Final = "a joint commit's key"
NO_VERSION: Final = -1
FOR_EVER: Final = -1
NO_ORDER: Final = -1

HEAD: Final = struct.Struct(
    ">"
    "h"  # version: 1; 0 has nothing behind the superseded runs
    "q"  # last_version
    "q"  # commit_sequence
    "q"  # open_version
    "q"  # retention_ms
    "q"  # update_ms
)
COUNT: Final = struct.Struct(">h")
ORDER: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class JointState:
    """What is known of a key.

    Attributes:
        last_version: the last version that was committed; -1 if none was.
        commit_sequence: number of that commit (g); -1 if none was.
        open_version: the version that a run has begun since; -1 if none.
        retention_ms: how long it is remembered from `update_ms` on; -1 for ever.
        update_ms: when this record was made.
        run: who has begun the open version last; empty if that run has given up.
        superseded: runs that had begun the open version before, or have given up; oldest first.
        committed_run: who has committed the last version; empty if it did not say.
        digest: what the last version was made of, in its writer's words; empty if it did not say.
        order: the greatest order of a run that has begun the open version; -1 if none had one.
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


def encode_joint(state: JointState) -> bytes:
    """The value under a key's key."""
    head = HEAD.pack(
        VALUE_VERSION,
        state.last_version,
        state.commit_sequence,
        state.open_version,
        state.retention_ms,
        state.update_ms,
    )
    runs = b"".join(string(run) for run in state.superseded)
    begun = string(state.run) + COUNT.pack(len(state.superseded)) + runs
    return head + begun + string(state.committed_run) + string(state.digest) + ORDER.pack(state.order)


def decode_joint(value: bytes) -> JointState:
    """The value under a key's key.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the value is cut short, too long, or of no version that there is.
    """
    reader = FieldReader(value, "joint commit's value")
    version, last_version, commit_sequence, open_version, retention_ms, update_ms = HEAD.unpack(
        reader.take(HEAD.size)
    )
    refuse_newer(JOINT_VALUE, version, VALUE_VERSION)
    if not 0 <= version <= VALUE_VERSION:
        raise Corrupt(
            f"commit log: a joint commit's value of version {version}; up to {VALUE_VERSION} can be read"
        )
    run = reader.text(reader.int16())
    superseded = tuple(reader.text(reader.int16()) for _ in range(reader.int16()))
    state = JointState(last_version, commit_sequence, open_version, retention_ms, update_ms, run, superseded)
    if version > 0:
        committed_run, digest = reader.text(reader.int16()), reader.text(reader.int16())
        (order,) = ORDER.unpack(reader.take(ORDER.size))
        state = replace(state, committed_run=committed_run, digest=digest, order=order)
    reader.done()
    return state
