"""The keys of joint commits and their known children.

`JointTable` is the part of the commit log's state that belongs to joint commits; `transactions.table` is the rest. A
key is remembered without limit, unless its writer has set a retention, or nothing was ever committed under it.
"""

from collections.abc import Iterator
from dataclasses import replace

from stablelog.coordinators.deadlines import Deadlines
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
    """The keys of joint commits and their children. `len` is the number of keys.

    Args:
        unused_ms: a key that was begun and never committed is forgotten after this time.

    Attributes:
        change_count: the number of changes of this table since the broker's start. Each change is recorded in the
            commit log.
    """

    def __init__(self, unused_ms: int) -> None:
        self.change_count = 0
        self._unused_ms = unused_ms
        self._states: dict[JointName, JointState] = {}
        self._children: dict[JointName, dict[str, Child]] = {}
        self._expiries: Deadlines[JointName] = Deadlines()

    def get(self, name: JointName) -> JointState:
        """Return the state of the key of a joint commit. For an unknown key, return a state without any version."""
        return self._states.get(name, UNKNOWN)

    def put(self, name: JointName, state: JointState, records: list[Record]) -> None:
        """Change the state of the key of a joint commit, and add the record of the change to `records`."""
        self.change_count += 1
        self._states[name] = state
        self._set_expiry(name, state)
        records.append((joint_key(*name), encode_joint(state)))

    def replay(self, name: JointName, value: bytes | None) -> int:
        """Apply a record of the commit log to the table. Returns the commit sequence in the record.

        Raises:
            DamageError: the record is damaged.
        """
        if value is None:
            self._states.pop(name, None)
            return UNKNOWN.commit_sequence
        state = self._states[name] = decode_joint(value)
        return state.commit_sequence

    def loaded(self, now_ms: int) -> None:
        """Finish the replay of the commit log. Times in its records that are after `now_ms` become `now_ms`."""
        for name, state in self._states.items():
            state = self._states[name] = replace(state, update_ms=min(state.update_ms, now_ms))
            self._set_expiry(name, state)

    def records(self) -> Iterator[Record]:
        """Yield a record for each key of a joint commit. A record has the key's state of the moment when the caller
        takes the record, because the state may change while the caller iterates.
        """
        for name in list(self._states):
            state = self._states.get(name)
            if state is not None:
                yield joint_key(*name), encode_joint(state)

    def unfinished(self) -> list[tuple[JointName, JointState]]:
        """The keys that have accepted children whose end may not be decided, with their states (`joint.acceptance`)."""
        return [(name, state) for name, state in self._states.items() if state.accepted]

    def __len__(self) -> int:
        return len(self._states)

    # -- children --------------------------------------------------------------------------------------------

    def enrol(self, transactional_id: str) -> None:
        """Note that a transactional id exists. If it is that of a joint commit's child, `children` now returns it."""
        child = child_of(transactional_id)
        if child is not None:
            self._children.setdefault(child.name, {})[transactional_id] = child

    def withdraw(self, transactional_id: str) -> None:
        """Note that a transactional id is forgotten. `children` no longer returns it."""
        child = child_of(transactional_id)
        if child is not None:
            children = self._children[child.name]
            del children[transactional_id]
            if not children:
                del self._children[child.name]

    def children(self, name: JointName) -> list[tuple[str, Child]]:
        """The known children of a joint commit's key, with their transactional ids, oldest first."""
        return list(self._children.get(name, {}).items())

    def all_children(self) -> list[tuple[str, Child]]:
        """The known children of all keys, with their transactional ids."""
        return [item for children in self._children.values() for item in children.items()]

    def child_count(self, name: JointName) -> int:
        """The number of known children of a joint commit's key."""
        return len(self._children.get(name, ()))

    def is_over(self, transactional_id: str) -> bool:
        """Whether the id is that of a child whose version of the joint commit, or a later version, is committed.

        No request for such a child is accepted.
        """
        child = child_of(transactional_id)
        return child is not None and child.version <= self.get(child.name).last_version

    # -- time ------------------------------------------------------------------------------------------------

    def forget_expired(self, now_ms: int, count_max: int, records: list[Record]) -> None:
        """Forget keys of joint commits that have expired, at most `count_max`. Add their tombstones to `records`."""
        for name in self._expiries.due(now_ms, count_max):
            if name in self._children:
                self._expiries.set(name, now_ms + 1)
            else:
                self.change_count += 1
                del self._states[name]
                records.append((joint_key(*name), None))

    def may_be_expired(self, now_ms: int) -> bool:
        """Whether more keys of joint commits may have expired, so that `forget_expired` has to be called again."""
        return self._expiries.is_due(now_ms)

    def _set_expiry(self, name: JointName, state: JointState) -> None:
        if state.last_version == NO_VERSION:
            self._expiries.set(name, state.update_ms + self._unused_ms)
        elif state.retention_ms == FOR_EVER:
            self._expiries.cancel(name)
        else:
            self._expiries.set(name, state.update_ms + state.retention_ms)
