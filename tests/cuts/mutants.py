"""Faults that the histories have to find. Each is one small change of one thing; `applied` makes it for a while."""

import contextlib

from stablelog.broker.durability.journal import Journal
from stablelog.broker.transactions.marker_durability import MarkerDurability
from stablelog.broker.transactions.marker_writer import MarkerWriter
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.broker.upkeep.maintenance import Maintenance
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extents import Extents
from stablelog.commit_order.index_builder import IndexBuilder
from stablelog.commit_order.index_format import CommitSummary
from stablelog.commit_order.stored_view import TieredView
from stablelog.commit_order.view import CommitOrder
from stablelog.coordinators.transactions.recovery import DecisionHistory
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.errors import DamageError


def markers_out_of_order(write):
    return lambda self, partition, orders: write(self, partition, orders[::-1])


def counted_before_its_markers_are_durable(_awaited):
    return lambda self: {}


def counted_when_decided(_resolved):
    return property(lambda self: self.coordinator.table.sequences.last)


def counted_when_the_decision_is_durable(_resolved):
    return property(lambda self: self.durable_sequence)


def counted_when_no_group_waits_for_anything(resolved):
    def mutant(self):
        behind = any(one.high_watermark < one.end_offset for one in self._partitions)
        return 0 if behind else resolved.fget(self)

    return property(mutant)


def recovered_as_decided(_resolved):
    return property(lambda self: self._open.first_unmarked(self.sequences.next) - 1)


def a_cut_one_too_far(offset_after):
    return lambda self, sequence: min(offset_after(self, sequence) + 1, self.end_offset)


def a_cut_one_too_short(offset_after):
    return lambda self, sequence: max(offset_after(self, sequence) - 1, self.start_offset)


def a_cut_forgets_a_partition(offset_after):
    def mutant(self, sequence):
        return self.end_offset if self._partition.index == 1 else offset_after(self, sequence)

    return mutant


def a_held_back_partition_is_forgotten(hold_back):
    return lambda self, order, targets: hold_back(self, order, set(sorted(targets)[1:]))


def runs_lose_their_gaps(add):
    def mutant(self, segment, position, size, record_count):
        last = self._last
        add(self, segment, position, size, record_count)
        if last is not None and self._last.begin == last.begin:
            self._last = self._last._replace(end=last.end + size)

    return mutant


def runs_count_from_their_own_beginning(add):
    def mutant(self, segment, position, size, record_count):
        before = self.count
        add(self, segment, position, size, record_count)
        if self.count != before:
            self._last = self._last._replace(base_offset=0)

    return mutant


def deletions_forget_what_later_commits_need(_first_needed):
    return lambda self: min([self.start_offset, *(one.first_offset for one in self.builder.open.values())])


def deletions_are_not_rounded(_whole_from):
    return lambda self, position: position


def deletions_forget_open_transactions(first_needed):
    def mutant(self):
        builder = self.builder
        open_ones, builder.open = builder.open, {}
        try:
            return first_needed(self)
        finally:
            builder.open = open_ones

    return mutant


def effects_before_the_journal_is_durable(_after):
    return lambda self, effect: effect()


def a_restart_repairs_nothing(take):
    def mutant(self, *arguments):
        take(self, *arguments)
        return {}

    return mutant


def the_commit_log_is_trimmed_at_once(trim):
    async def mutant(self, journal, live):
        before_offset = await journal.checkpoint_if_grown(live)
        if before_offset is not None:
            await journal.wait_until_durable()
            journal.trim(before_offset)

    return mutant


def a_rebuilt_index_forgets_open_transactions(_reopen):
    return lambda self, segments: None


def an_index_is_trusted_unseen(_open_sealed):
    def mutant(self, _segment):
        return self._disk.exists(self.path(".commitsummary")) and _trusting(self)

    return mutant


def _trusting(index):
    try:
        index.use_summary(CommitSummary.decode(index._disk.read_bytes(index.path(".commitsummary"))))
    except DamageError:
        return False
    return True


MUTANTS = {
    markers_out_of_order: (MarkerWriter, "_write"),
    counted_before_its_markers_are_durable: (MarkerDurability, "undurable_commits"),
    counted_when_decided: (TransactionGroup, "resolved_commit_sequence"),
    counted_when_the_decision_is_durable: (TransactionGroup, "resolved_commit_sequence"),
    counted_when_no_group_waits_for_anything: (TransactionGroup, "resolved_commit_sequence"),
    recovered_as_decided: (TransactionTable, "resolved_sequence"),
    a_cut_one_too_far: (TieredView, "offset_after"),
    a_cut_one_too_short: (TieredView, "offset_after"),
    a_cut_forgets_a_partition: (TieredView, "offset_after"),
    a_held_back_partition_is_forgotten: (MarkerWriter, "hold_back"),
    runs_lose_their_gaps: (Extents, "add_batch"),
    runs_count_from_their_own_beginning: (Extents, "add_batch"),
    deletions_forget_what_later_commits_need: (CommitOrder, "first_needed_offset"),
    deletions_are_not_rounded: (CommitOrder, "whole_from"),
    deletions_forget_open_transactions: (CommitOrder, "first_needed_offset"),
    effects_before_the_journal_is_durable: (Journal, "run_when_durable"),
    a_restart_repairs_nothing: (DecisionHistory, "take_decisions"),
    the_commit_log_is_trimmed_at_once: (Maintenance, "trim"),
    a_rebuilt_index_forgets_open_transactions: (IndexBuilder, "_reopen"),
    an_index_is_trusted_unseen: (CommitIndex, "open_sealed"),
}


def changed(mutant):
    """Return what the fault changes, and what it changes it into."""
    owner, name = MUTANTS[mutant]
    sound = vars(owner)[name]
    return sound, mutant(sound)


@contextlib.contextmanager
def applied(mutant):
    """While the block runs, the code has this fault."""
    owner, name = MUTANTS[mutant]
    sound, faulty = changed(mutant)
    setattr(owner, name, faulty)
    try:
        yield
    finally:
        setattr(owner, name, sound)
