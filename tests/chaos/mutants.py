"""Faults that the kills have to find, next to those of `tests.cuts.mutants`. A broker's process makes one with `apply`."""

from dataclasses import replace

from stablelog.broker.groups import BrokerGroups
from stablelog.broker.transactions.marker_writer import MarkerWriter
from stablelog.log.compaction.policy import LatestOffsets
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.partition import Partition
from stablelog.log.producer_state import producers
from stablelog.log.producer_state.producer import NO_TXN
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import Producers
from stablelog.log.recovery.plan import RecoveryPlanner
from stablelog.log.recovery.replay import _Replay
from stablelog.log.segments.growing_segment import GrowingSegment
from tests.cuts import mutants as of_cuts


def with_producers(partition, kept):
    """Give a partition the producer state of these producers."""
    partition.log.producers = Producers.from_table(ProducerTable.from_producers(kept), 2**60)


def producers_are_forgotten_at_a_restart(load):
    def mutant(self, *arguments, **named):
        load(self, *arguments, **named)
        with_producers(self, list(self.log.producers.open_producers()))

    return mutant


def open_transactions_are_forgotten_at_a_restart(load):
    def mutant(self, *arguments, **named):
        load(self, *arguments, **named)
        with_producers(self, [replace(one, txn_first_offset=NO_TXN) for one in self.log.producers])

    return mutant


def aborts_are_not_indexed_again(take):
    def mutant(self, segment, *arguments):
        sound, GrowingSegment.index_aborted = GrowingSegment.index_aborted, lambda _segment, _txn: None
        try:
            take(self, segment, *arguments)
        finally:
            GrowingSegment.index_aborted = sound

    return mutant


def an_abort_at_the_end_of_a_fetch_is_left_out(collect):
    return lambda self, start, end: collect(self, start, max(start, end - 1))


def the_stable_offset_ignores_open_transactions(_last_stable_offset):
    return property(lambda self: max(self.high_watermark, self.start_offset))


def the_latest_value_of_a_key_goes(is_latest):
    return lambda self, key, offset: not is_latest(self, key, offset) or offset >= self.end_offset


def offsets_of_aborted_transactions_count(ended):
    return lambda self, producer_id, *, commit: ended(self, producer_id, commit=True)


def offsets_of_committed_transactions_are_lost(ended):
    return lambda self, producer_id, *, commit: ended(self, producer_id, commit=False)


def the_start_of_the_log_is_forgotten_at_a_restart(_read_log_start):
    def mutant(self, bases):
        self.log_start = bases[0] if bases else 0
        return True

    return mutant


def a_repetition_is_appended_again(repeated):
    def mutant(producer, header):
        kept = repeated(producer, header)
        if kept is not None:
            while producer.batches.pop() is not kept:
                pass

    return mutant


def decided_transactions_get_no_markers_after_a_restart(_write_decided):
    return lambda _self: None


MUTANTS = {
    producers_are_forgotten_at_a_restart: (Partition, "_load"),
    open_transactions_are_forgotten_at_a_restart: (Partition, "_load"),
    aborts_are_not_indexed_again: (_Replay, "_apply_batch"),
    an_abort_at_the_end_of_a_fetch_is_left_out: (TransactionIndex, "collect"),
    the_stable_offset_ignores_open_transactions: (Partition, "last_stable_offset"),
    the_latest_value_of_a_key_goes: (LatestOffsets, "is_latest"),
    offsets_of_aborted_transactions_count: (BrokerGroups, "transaction_ended"),
    offsets_of_committed_transactions_are_lost: (BrokerGroups, "transaction_ended"),
    the_start_of_the_log_is_forgotten_at_a_restart: (RecoveryPlanner, "_read_log_start"),
    decided_transactions_get_no_markers_after_a_restart: (MarkerWriter, "write_decided"),
    a_repetition_is_appended_again: (producers, "find_repeated"),
}


def named(name):
    """The mutant of this name, of here or of the cuts, with what it changes."""
    everything = {mutant.__name__: (mutant, *where) for mutant, where in (of_cuts.MUTANTS | MUTANTS).items()}
    return everything[name]


def apply(name):
    """Give this process the fault, for as long as it runs."""
    mutant, owner, attribute = named(name)
    setattr(owner, attribute, mutant(vars(owner)[attribute]))
