"""What is known of each key of joint commits, and which children are there?

A part of the commit log in memory, as `transactions.table` is the rest of it. A key is remembered for ever, unless its
writer has said otherwise or nothing was ever committed under it.
"""

from collections.abc import Iterator
from dataclasses import replace

from stablelog.coordinators.transactions.clock import Deadlines
from stablelog.coordinators.transactions.joint.records import (
    FOR_EVER,
    NO_VERSION,
    JointState,
    decode_joint,
    encode_joint,
)
from stablelog.coordinators.transactions.records import Record, joint_key
from stablelog.wire.extension.children import Child, JointName, child_of

UNKNOWN = JointState()


class JointTable:
    """The keys of joint commits and their children.

    Args:
        unused_ms: after so long a key is forgotten that was begun and never committed.

    Attributes:
        change_count: changes since the start that a record tells of.
    """

    def __init__(self, unused_ms: int) -> None:
        self.change_count = 0
        self._unused_ms = unused_ms
        self._states: dict[JointName, JointState] = {}
        self._children: dict[JointName, dict[str, Child]] = {}
        self._expiries = Deadlines()

    def get(self, name: JointName) -> JointState:
        """What is known of a key."""
        return self._states.get(name, UNKNOWN)

    def put(self, name: JointName, state: JointState, records: list[Record]) -> None:
        """Change what is known of a key, and add the record that says so."""
        self.change_count += 1
        self._states[name] = state
        self._watch(name, state)
        records.append((joint_key(*name), encode_joint(state)))

    def replay(self, name: JointName, value: bytes | None) -> int:
        """Take in a record. Returns the commit sequence that it holds.

        Raises:
            Corrupt: it cannot be read.
        """
        if value is None:
            self._states.pop(name, None)
            return UNKNOWN.commit_sequence
        state = decode_joint(value)
        self._states[name] = state
        return state.commit_sequence

    def loaded(self, now_ms: int) -> None:
        """Finish a start: all records have been replayed. Times after `now_ms` become `now_ms`."""
        for name, state in self._states.items():
            if state.update_ms > now_ms:
                state = replace(state, update_ms=now_ms)
                self._states[name] = state
            self._watch(name, state)

    def records(self) -> Iterator[Record]:
        """Records that hold all of it, each from the state at the time when it is taken."""
        for name in list(self._states):
            state = self._states.get(name)
            if state is not None:
                yield joint_key(*name), encode_joint(state)

    def __len__(self) -> int:
        return len(self._states)

    # -- children --------------------------------------------------------------------------------------------

    def enrol(self, transactional_id: str) -> None:
        """An id has come to be known. If it is a child's, it can be found by its key."""
        child = child_of(transactional_id)
        if child is not None:
            self._children.setdefault(child.name, {})[transactional_id] = child

    def withdraw(self, transactional_id: str) -> None:
        """An id is forgotten."""
        child = child_of(transactional_id)
        if child is not None:
            children = self._children[child.name]
            del children[transactional_id]
            if not children:
                del self._children[child.name]

    def children(self, name: JointName) -> list[tuple[str, Child]]:
        """The children of a key, with their transactional ids, in the order in which they came."""
        return list(self._children.get(name, {}).items())

    def is_over(self, transactional_id: str) -> bool:
        """Whether the id is that of a child whose version, or a later one, is committed: it is of no more use."""
        child = child_of(transactional_id)
        return child is not None and child.version <= self.get(child.name).last_version

    # -- time ------------------------------------------------------------------------------------------------

    def forget_expired(self, now_ms: int, count_max: int, records: list[Record]) -> None:
        """Forget keys whose time is up, at most so many, and add the records that say so."""
        for text in self._expiries.due(now_ms, count_max):
            name = JointName(*text.split("/", 1))
            state = self._states.get(name)
            expiry_ms = None if state is None else self._expiry_ms(state)
            if state is None or expiry_ms is None:
                continue
            if expiry_ms > now_ms or name in self._children:
                self._expiries.watch(text, max(expiry_ms, now_ms + 1))
            else:
                self.change_count += 1
                del self._states[name]
                records.append((joint_key(*name), None))

    def may_be_expired(self, now_ms: int) -> bool:
        """Whether `forget_expired` has more to look at."""
        return self._expiries.is_due(now_ms)

    def _watch(self, name: JointName, state: JointState) -> None:
        expiry_ms = self._expiry_ms(state)
        if expiry_ms is not None:
            self._expiries.watch("/".join(name), expiry_ms)

    def _expiry_ms(self, state: JointState) -> int | None:
        if state.last_version == NO_VERSION:
            return state.update_ms + self._unused_ms
        return None if state.retention_ms == FOR_EVER else state.update_ms + state.retention_ms
