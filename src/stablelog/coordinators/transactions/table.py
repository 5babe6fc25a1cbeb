"""What is the state of each transactional id, and of the group as a whole?

The table is the commit log in memory. It changes in one way only, `put`, which also makes the record that says so;
read back by `replay`, the records give the same table (but for times that are still to come, see `loaded`). Who may change what, and when, is the coordinator's matter.

Memory for an id is a fixed size and the partitions of its open transaction, however many transactions it has had. Ids
without an open transaction take less than the others (`idle_ids`).
"""

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.live_state import LiveState
from stablelog.coordinators.transactions.clock import Deadlines
from stablelog.coordinators.transactions.decisions import Description, Listed
from stablelog.coordinators.transactions.idle_ids import IdleIds, idle_value
from stablelog.coordinators.transactions.joint.table import JointTable
from stablelog.coordinators.transactions.listing import id_matcher, states_named
from stablelog.coordinators.transactions.log_ends import LogEnds, in_order
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    NO_SEQUENCE,
    GroupKey,
    GroupState,
    Identity,
    JointKey,
    Record,
    Transaction,
    TransactionKey,
    decode_group,
    decode_transaction,
    encode_group,
    encode_transaction,
    group_key,
    read_key,
    transaction_key,
)
from stablelog.coordinators.transactions.recovery import DecisionHistory
from stablelog.coordinators.transactions.spare_ids import Barrier, SpareIds
from stablelog.coordinators.transactions.states import Event, State, next_state
from stablelog.errors import Refused
from stablelog.wire.extension.transaction_groups import group_in_words

FIRST_SEQUENCE: Final = 1  # so that 0 is the cut before the first commit
UNDIVIDED_MAX: Final = 500  # decisions that a checkpoint writes in one batch, of each kind: about 10 ms
LISTED_AT_ONCE: Final = 100  # ids that a slice of a list looks at


class TransactionTable:
    """The transactional ids of one group.

    Args:
        group: the transaction group.
        expiration_ms: after so long without use an id is forgotten.
        producer_ids: where producer ids come from.
        marker_barrier: called when a child is forgotten; see `spare_ids`.

    Attributes:
        turned_away: by id, the producer to whose transaction a partition was refused. In memory only.
        are_sequences_known: False while partitions may have commit sequences that the commit log does not know.
    """

    def __init__(
        self,
        group: str,
        expiration_ms: int,
        producer_ids: ProducerIds,
        marker_barrier: Callable[[], Barrier],
    ) -> None:
        self.history = DecisionHistory()
        self.joints = JointTable(expiration_ms)
        self._group = group
        self._expiration_ms = expiration_ms
        self._producer_ids = producer_ids
        self._spare_ids = SpareIds()
        self._marker_barrier = marker_barrier
        self._live: dict[str, Transaction] = {}  # those with an open transaction
        self._idle = IdleIds()
        self._latest_ms = 0  # of all times that were replayed
        self._owners: dict[
            int, str
        ] = {}  # producer id to transactional id, of those with an open transaction
        self._timeouts = Deadlines()
        self._next_sequence = FIRST_SEQUENCE
        self.turned_away: dict[str, Identity] = {}
        self.are_sequences_known = True
        # Ids with a decision and markers to come, in the order of the decisions.
        self._decided: dict[str, None] = {}
        self._unmarked: dict[int, set[str]] = {}  # the same for commits, by sequence, rising
        self._repeated: set[str] = set()  # those of them whose decision is from before the start
        self._change_count = 0

    # -- looking up ----------------------------------------------------------------------------------------

    def get(self, transactional_id: str) -> Transaction | None:
        """The state of an id; None if there is no such id."""
        txn = self._live.get(transactional_id)
        return self._idle.get(transactional_id) if txn is None else txn

    def owner(self, producer_id: int) -> str | None:
        """The id that a producer id belongs to."""
        owner = self._owners.get(producer_id)
        return self._idle.owner(producer_id) if owner is None else owner

    @property
    def last_sequence(self) -> int:
        """The number of the last commit that was decided; 0 before the first."""
        return self._next_sequence - 1

    @property
    def resolved_sequence(self) -> int:
        """The greatest number up to which every commit has all its markers; 0 before the first.

        After a start a crash may have taken markers out of partitions that have not been compared yet.
        """
        unmarked = next(iter(self._unmarked), self._next_sequence)
        least = self.history.least_sequence
        return (unmarked if least is None else min(unmarked, least)) - 1

    def decided(self) -> list[str]:
        """The ids with a decision whose markers are still to come, in the order of the decisions."""
        return list(self._decided)

    def is_repeated(self, transactional_id: str) -> bool:
        """Whether the id's decision, whose markers are still to come, is from before the start."""
        return transactional_id in self._repeated

    def describe(self, transactional_id: str) -> Description | None:
        """What is known of an id; None if nothing is."""
        txn = self.get(transactional_id)
        return None if txn is None else _description(transactional_id, txn)

    def list_transactions(
        self,
        *,
        states: Collection[str],
        producer_ids: Collection[int],
        duration_ms: int,
        id_pattern: str | None,
        now_ms: int,
    ) -> tuple[Iterator[list[Listed]], list[str]]:
        """See `TransactionCoordinator.list_transactions`."""
        wanted, unknown = states_named(states)
        matches = id_matcher(id_pattern)
        # An id without an open transaction has no duration, and no state of an open one.
        may_be_idle = duration_ms < 0 and (not states or any(not state.is_open for state in wanted))
        # They are named now, since ids come and go between two slices.
        ids = [*self._live, *self._idle] if may_be_idle else list(self._live)

        def passing(some: list[str]) -> Iterator[Listed]:
            for transactional_id in some:
                txn = self._live.get(transactional_id)
                head = txn if txn is not None else self._idle.head(transactional_id)
                if (
                    head is not None
                    and (duration_ms < 0 or (txn is not None and now_ms - txn.start_ms > duration_ms))
                    and (not states or head.state in wanted)
                    and (not producer_ids or head.producer_id in producer_ids)
                    and matches(transactional_id)
                ):
                    yield Listed(transactional_id, head.producer_id, head.state.label)

        slices = (ids[at : at + LISTED_AT_ONCE] for at in range(0, len(ids), LISTED_AT_ONCE))
        return (list(passing(some)) for some in slices), unknown

    @property
    def change_count(self) -> int:
        """Changes since the start that a record tells of."""
        return self._change_count + self.joints.change_count

    def __len__(self) -> int:
        return len(self._live) + len(self._idle)

    # -- changing ------------------------------------------------------------------------------------------

    def put(self, transactional_id: str, txn: Transaction, records: list[Record]) -> None:
        """Change the state of an id, and add the record that says so."""
        self._change_count += 1
        before = self._live.pop(transactional_id, None)
        if before is not None:
            self._withdraw(transactional_id, before)
        elif not self._idle.remove(transactional_id):
            self.joints.enrol(transactional_id)
        value = encode_transaction(txn)
        if txn.state.is_open:
            self._live[transactional_id] = txn
            self._enrol(transactional_id, txn)
        else:
            self._idle.put(transactional_id, txn, value)
        if txn.state.is_decided:
            self._decided[transactional_id] = None
            if txn.commit_sequence != NO_SEQUENCE:
                self._unmarked.setdefault(txn.commit_sequence, set()).add(transactional_id)
        records.append((transaction_key(transactional_id), value))

    def forget(self, transactional_id: str, records: list[Record]) -> None:
        """Forget an id, and add the record that says so."""
        self._change_count += 1
        txn = self.get(transactional_id)
        assert txn is not None
        assert next_state(txn.state, Event.EXPIRE) is None
        self._idle.remove(transactional_id)
        self._timeouts.forget(transactional_id)
        if self.joints.is_over(transactional_id) and not self.history.knows_producer(txn.client.producer_id):
            self._spare_ids.release(txn.client, self._marker_barrier())
        self.joints.withdraw(transactional_id)
        self.turned_away.pop(transactional_id, None)
        records.append((transaction_key(transactional_id), None))

    def is_turned_away(self, transactional_id: str, txn: Transaction) -> bool:
        """Whether the producer's transaction was refused a partition, so that it can only abort."""
        turned_away = self.turned_away.get(transactional_id)
        return turned_away is not None and turned_away == txn.client

    def take_producer_id(self, records: list[Record]) -> int:
        """A producer id that nobody has had, with the record of the block it comes from if that is a new one."""
        if self._producer_ids.needs_block:
            self._change_count += 1
            self._producer_ids.reserve()
            records.append(self._group_record())
        return self._producer_ids.take()

    def take_spare_identity(self) -> Identity | None:
        """The last identity of a forgotten child whose producer id another child may have; None if there is none."""
        spare = self._spare_ids.take()
        assert spare is None or spare.producer_id not in self._owners
        return spare

    def check_sequences(self) -> None:
        """Refuse a commit while the sequence that it gets may be another commit's.

        Raises:
            Refused: coordinator_load_in_progress.
        """
        if not self.are_sequences_known:
            raise Refused(
                ErrorCode.coordinator_load_in_progress,
                f"the last commits in the partitions of {group_in_words(self._group)} are being read after a start",
            )

    def take_sequence(self) -> int:
        """The number of the next commit. It must be decided: numbers have no gaps."""
        assert self.are_sequences_known
        self._change_count += 1
        self._next_sequence += 1
        return self._next_sequence - 1

    def met_sequence(self, sequence: int) -> bool:
        """A partition has this commit sequence in a marker: the next commit gets a greater one.

        Returns:
            Whether the commit log did not know of it.
        """
        is_new = sequence >= self._next_sequence
        self._next_sequence = max(self._next_sequence, sequence + 1)
        return is_new

    def met_producer(self, producer_id: int) -> None:
        """A partition knows a producer with this id: nobody else is to get it."""
        self._producer_ids.skip_past(producer_id)

    def _enrol(self, transactional_id: str, txn: Transaction) -> None:
        """Index an id with an open transaction."""
        self._owners[txn.producer_id] = transactional_id
        self._owners[txn.client.producer_id] = transactional_id
        if (deadline_ms := _deadline_ms(txn)) is not None:
            self._timeouts.watch(transactional_id, deadline_ms)

    def _withdraw(self, transactional_id: str, txn: Transaction) -> None:
        """Take such an id out of the indexes."""
        for producer_id in {txn.producer_id, txn.client.producer_id}:
            assert self._owners[producer_id] == transactional_id
            del self._owners[producer_id]
        if not txn.state.is_decided:
            return
        self._decided.pop(transactional_id, None)
        unmarked = self._unmarked.get(txn.commit_sequence)
        if unmarked is not None:
            unmarked.discard(transactional_id)
            if not unmarked:
                del self._unmarked[txn.commit_sequence]
        self._repeated.discard(transactional_id)

    # -- time ----------------------------------------------------------------------------------------------

    def overdue(self, now_ms: int, count_max: int) -> Iterator[tuple[str, Transaction]]:
        """Open transactions whose time is up, at most so many; the caller ends each."""
        for transactional_id in self._timeouts.due(now_ms, count_max):
            txn = self._live.get(transactional_id)
            deadline_ms = None if txn is None else _deadline_ms(txn)
            if txn is None or deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._timeouts.watch(transactional_id, deadline_ms)
            else:
                yield transactional_id, txn

    def may_be_overdue(self, now_ms: int) -> bool:
        """Whether `overdue` has more to look at."""
        return self._timeouts.is_due(now_ms)

    def may_be_expired(self, now_ms: int) -> bool:
        """Whether `expired`, or the keys of joint commits, have more to look at."""
        return any(self.expired(now_ms, 1)) or self.joints.may_be_expired(now_ms)

    def expired(self, now_ms: int, count_max: int) -> Iterator[str]:
        """Ids that were not used for long, at most so many; the caller forgets each."""
        for transactional_id, head in self._idle.oldest(count_max):
            if head.update_ms + self._expiration_ms > now_ms:
                return
            yield transactional_id

    # -- start and trimming --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a record. Kinds that are not known are skipped.

        Raises:
            Corrupt: the record cannot be read.
        """
        subject = read_key(key)
        if isinstance(subject, TransactionKey):
            self._replay_transaction(subject.transactional_id, value)
        elif isinstance(subject, GroupKey) and value is not None and subject.group == self._group:
            state = decode_group(value)
            self._producer_ids.replay(state.producer_ids_end)
            self._next_sequence = max(self._next_sequence, state.commit_sequence_next)
        elif isinstance(subject, JointKey):
            self._next_sequence = max(self._next_sequence, self.joints.replay(subject.name, value) + 1)

    def _replay_transaction(self, transactional_id: str, value: bytes | None) -> None:
        self._decided.pop(transactional_id, None)
        self._live.pop(transactional_id, None)
        self._idle.remove(transactional_id)
        if value is None:
            return
        txn = decode_transaction(value)
        if txn.state.is_open:
            self._live[transactional_id] = txn
        else:
            self._idle.put_encoded(transactional_id, idle_value(txn, value))
        self._latest_ms = max(self._latest_ms, txn.latest_ms)
        self._producer_ids.skip_past(max(txn.producer_id, txn.next_producer_id))
        self._next_sequence = max(self._next_sequence, txn.commit_sequence + 1)
        if txn.state.is_decided:
            self._decided[transactional_id] = None
            if not txn.lacks_ends:  # else it matters only if nothing follows it: see `loaded`
                self.history.remember(transactional_id, value, txn)

    def loaded(self, leader_epoch: int, now_ms: int) -> list[Record]:
        """Finish the replay: all records were taken in.

        Times after `now_ms` become `now_ms`: the machine's clock may have been set back since, and a transaction would
        else time out, and an id expire, only once the clock has caught up.

        Args:
            leader_epoch: of this start; Kafka's leader epochs are lower.
            now_ms: broker time.

        Returns:
            Kafka's pending TV1 decisions, written again with the place where their partitions ended: before
            everything that has this leader epoch. They must be durable before anyone writes to a partition.
        """
        self.joints.loaded(now_ms)
        if self._latest_ms > now_ms:
            self._idle.clamp_times(now_ms)
        self._idle.sort()
        self._idle.index_owners()
        for transactional_id in self._idle:
            self.joints.enrol(transactional_id)
        for transactional_id, txn in self._live.items():
            txn = self._live[transactional_id] = txn.clamped(now_ms)
            self._enrol(transactional_id, txn)
            self.joints.enrol(transactional_id)
        records: list[Record] = []
        for transactional_id in list(self._decided):
            txn = self._live[transactional_id]
            if txn.lacks_ends:
                partitions = in_order(txn.partitions)
                txn = txn._replace(
                    ends=LogEnds.under(leader_epoch, partitions, itertools.repeat(0, len(partitions)))
                )
                self.put(transactional_id, txn, records)
                self.history.remember(transactional_id, encode_transaction(txn), txn)
        self._repeated = set(self._decided)
        for transactional_id in self._decided:
            sequence = self._live[transactional_id].commit_sequence
            if sequence != NO_SEQUENCE:
                self._unmarked.setdefault(sequence, set()).add(transactional_id)
        return records

    def partitions_opened(self) -> None:
        """All partitions that can be opened have been: what only their opening needs is dropped."""
        self._idle.drop_owner_index()

    def live_state(self) -> LiveState | None:
        """Records that hold the whole state, in an order in which `replay` can take them in.

        Decisions stand in one batch in front of all else, in their order. A decision that is made later has its own
        record behind that batch, so an id whose transaction is decided has no record in `rest`.

        Returns:
            None while more than `UNDIVIDED_MAX` decisions would have to go into one batch.
        """
        if len(self._decided) > UNDIVIDED_MAX or self.history.exceeds(UNDIVIDED_MAX):
            return None
        return LiveState(self._undivided(), self._rest())

    def checkpoint(self) -> list[Record]:
        """The records of `live_state` at once, however many decisions there are."""
        return [*self._undivided(), *self._rest()]

    def _undivided(self) -> list[Record]:
        """The records whose order matters: of the group, of decisions from before the start, of pending decisions.

        Behind its earlier decisions an id has its present state, also if that is no decision: a crash that kept only
        this batch would else leave the id as it was decided then.
        """
        records: list[Record] = [self._group_record(), *self.history.records()]
        earlier = sorted(self.history.transactional_ids() - self._decided.keys())
        records += [(transaction_key(i), self._value(i)) for i in itertools.chain(earlier, self._decided)]
        return records

    def _rest(self) -> Iterator[Record]:
        """The other records, each from the state at the time when it is taken."""
        yield from self.joints.records()
        for transactional_id in [*self._live, *self._idle]:
            if transactional_id in self._decided:
                continue
            value = self._value(transactional_id)
            if value is not None:
                yield transaction_key(transactional_id), value

    def _value(self, transactional_id: str) -> bytes | None:
        """The value of an id's record now; None if it is not known."""
        txn = self._live.get(transactional_id)
        return self._idle.value(transactional_id) if txn is None else encode_transaction(txn)

    def _group_record(self) -> Record:
        state = GroupState(self._producer_ids.reserved_end, self._next_sequence)
        return group_key(self._group), encode_group(state)


def _deadline_ms(txn: Transaction) -> int | None:
    """When the open transaction's time is up; None if there is none, or it may take as long as it likes."""
    if txn.state is not State.ONGOING or txn.is_two_phase:
        return None
    return txn.start_ms + txn.timeout_ms


def _description(transactional_id: str, txn: Transaction) -> Description:
    return Description(
        transactional_id=transactional_id,
        state=txn.state.label,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        client_producer_id=txn.client.producer_id,
        client_producer_epoch=txn.client.producer_epoch,
        timeout_ms=txn.timeout_ms,
        start_ms=txn.start_ms,
        update_ms=txn.update_ms,
        partitions=txn.partitions,
        transaction_version=txn.transaction_version,
        commit_sequence=txn.commit_sequence,
        is_two_phase=txn.is_two_phase,
    )
