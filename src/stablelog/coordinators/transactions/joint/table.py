"""The keys of joint commits (commits of several transactions together), and their known children (these transactions).

`JointTable` is the part of the commit log's state that belongs to joint commits; `transactions.table` has the rest. A
key is remembered for ever, unless its writer has set a retention time, or nothing was ever committed with the key.
"""

from collections.abc import Iterator
from dataclasses import replace

from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.joint.records import (
    FOR_EVER,
    NO_VERSION,
    JointState,
    decode_joint,
    encode_joint,
)
from stablelog.coordinators.transactions.records import joint_key
from stablelog.wire.extension.children import Child, JointName, child_of

UNKNOWN = JointState()


class JointTable:
    """The keys of joint commits, and the children of these commits (transactions that are committed together). A key
    names a joint commit for its client; each later commit under the key has a greater version. `len` is the number of
    keys.

    Args:
        unused_ms: a key under which nothing was ever committed is forgotten this time after its last change.

    Attributes:
        change_count: the number of changes of this table since the broker's start. Each change has a record in the
            commit log.
    """

    def __init__(self, unused_ms: int) -> None:
        self.change_count = 0
        self._unused_ms = unused_ms
        self._states: dict[JointName, JointState] = {}
        self._children: dict[JointName, dict[str, Child]] = {}
        self._expiries: DeadlineQueue[JointName] = DeadlineQueue()

    def get(self, name: JointName) -> JointState:
        """Return the state of the key of joint commits (each commits several transactions together). An unknown key has
        a state without any version.
        """
        return self._states.get(name, UNKNOWN)

    def put(self, name: JointName, state: JointState, records: list[Record]) -> None:
        """Replace the state of a key of joint commits (its last committed version, for example), and append the record
        of the change to `records`. A joint commit commits several transactions together.
        """
        self.change_count += 1
        self._states[name] = state
        self._set_expiry(name, state)
        records.append((joint_key(*name), encode_joint(state)))

    def replay(self, name: JointName, value: bytes | None) -> int:
        """Apply a record of the commit log (the coordinator's log) to the table, and return the commit sequence (number
        of the commit) in it. The record is about the key of a joint commit of several transactions together.

        Args:
            name: transaction group and key of the joint commit.
            value: the value of the record; None for a tombstone, which removes the key.

        Raises:
            DamageError: the record is damaged.
        """
        if value is None:
            self._states.pop(name, None)
            return UNKNOWN.commit_sequence
        state = self._states[name] = decode_joint(value)
        return state.commit_sequence

    def finish_replay(self, now_ms: int) -> None:
        """Finish the replay of the commit log. Times in its records that are later than `now_ms` become `now_ms`."""
        for name, state in self._states.items():
            state = self._states[name] = replace(state, update_ms=min(state.update_ms, now_ms))
            self._set_expiry(name, state)

    def records(self) -> Iterator[Record]:
        """Yield a record with the present state of each key of joint commits (each commits several transactions
        together).

        The caller may change the table between two records. Each record has the state of the moment when the caller
        takes it.
        """
        for name in list(self._states):
            state = self._states.get(name)
            if state is not None:
                yield joint_key(*name), encode_joint(state)

    def unfinished_commits(self) -> list[tuple[JointName, JointState]]:
        """Return the keys of long joint commits that are unfinished, with their states.

        A joint commit commits several transactions, its children, together. A long one is unfinished if it is recorded,
        and the decisions that end some of its children may be missing. The record names these accepted children: see
        `joint.accepted_children`.
        """
        return [(name, state) for name, state in self._states.items() if state.accepted]

    def __len__(self) -> int:
        return len(self._states)

    # -- children --------------------------------------------------------------------------------------------

    def add_child_id(self, transactional_id: str) -> None:
        """Add a new transactional id, if it is that of a child (one of the transactions that a joint commit commits
        together). Other ids are ignored.
        """
        child = child_of(transactional_id)
        if child is not None:
            self._children.setdefault(child.name, {})[transactional_id] = child

    def remove_child_id(self, transactional_id: str) -> None:
        """Remove a transactional id that the coordinator forgets, if it is that of a child (one of the transactions
        that a joint commit commits together). Other ids are ignored.
        """
        child = child_of(transactional_id)
        if child is not None:
            children = self._children[child.name]
            del children[transactional_id]
            if not children:
                del self._children[child.name]

    def children(self, name: JointName) -> list[tuple[str, Child]]:
        """Return the known children of a key of joint commits (the transactions that its commits commit together),
        oldest first: the transactional id of each, and the key, version, run (start of the writer) and further parts
        that the id contains.
        """
        return list(self._children.get(name, {}).items())

    def all_children(self) -> list[tuple[str, Child]]:
        """Return the known children of all keys of joint commits (the transactions that these commits commit together):
        the transactional id of each, and the key, version, run (start of the writer) and further parts that the id
        contains.
        """
        return [item for children in self._children.values() for item in children.items()]

    def child_count(self, name: JointName) -> int:
        """Return the number of known children (transactions that are committed together) of a key of joint commits."""
        return len(self._children.get(name, ()))

    def is_over(self, transactional_id: str) -> bool:
        """Return whether a transactional id is that of a child (one of the transactions that a joint commit commits
        together) whose version of the joint commit, or a later version, is committed.

        The coordinator refuses every request for such a child.
        """
        child = child_of(transactional_id)
        return child is not None and child.version <= self.get(child.name).last_version

    # -- time ------------------------------------------------------------------------------------------------

    def forget_expired(self, now_ms: int, count_max: int, records: list[Record]) -> None:
        """Forget expired keys of joint commits (a key names a series of commits of several transactions together), at
        most `count_max`. Append the tombstones of their records to `records`.
        """
        for name in self._expiries.pop_due(now_ms, count_max):
            if name in self._children:
                self._expiries.set(name, now_ms + 1)
            else:
                self.change_count += 1
                del self._states[name]
                records.append((joint_key(*name), None))

    def may_be_expired(self, now_ms: int) -> bool:
        """Return whether keys of joint commits may have expired. If so, the caller calls `forget_expired` again. A key
        names a series of commits of several transactions together.
        """
        return self._expiries.is_due(now_ms)

    def _set_expiry(self, name: JointName, state: JointState) -> None:
        if state.last_version == NO_VERSION:
            self._expiries.set(name, state.update_ms + self._unused_ms)
        elif state.retention_ms == FOR_EVER:
            self._expiries.cancel(name)
        else:
            self._expiries.set(name, state.update_ms + state.retention_ms)
