"""Transactional ids without an open transaction: encoded, in the order of their last use."""

import struct

from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.idle_ids import DECODED_MAX, IdleIds, idle_value
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import decode_transaction, encode_transaction, read_idle_head
from tests.coordinators.transactions.test_memory import idle, log_of


def test_ids_expire_in_the_order_of_their_last_use_whatever_the_order_in_the_log() -> None:
    records = log_of(6)
    coordinator = TransactionCoordinator(TransactionConfig(transactional_id_expiration_ms=1000))
    for key, value in [*records[3:], *records[:3]]:
        coordinator.table.replay(key, value)
    start_ms = 1_760_000_000_006
    coordinator.finish_replay(start_ms)
    forgotten = []
    for now_ms in range(start_ms, start_ms + 1000):
        forgotten += [key for key, _ in coordinator.forget_expired(now_ms).records]
    assert forgotten == [key for key, _ in records]


def test_a_record_is_kept_as_it_was_read_if_its_head_can_be_read() -> None:
    txn = idle(7)
    value = encode_transaction(txn)
    assert idle_value(txn, value) is value
    assert read_idle_head(value) == (txn.producer_id, txn.state, txn.update_ms)
    # Partitions of what is complete, and the version 0, in which an array has another length.
    more = encode_transaction(txn._replace(partitions=PartitionSet({("t", 0)})))
    times = struct.pack(">qq", txn.update_ms, txn.start_ms)
    old = b"\0\0" + value[2:17] + struct.pack(">i", 0) + times
    for other in (more, old):
        read = decode_transaction(other)
        kept = idle_value(read, other)
        assert read_idle_head(kept) == read_idle_head(value)
        assert decode_transaction(kept) == read._replace(partitions=PartitionSet())


def test_an_owner_is_found_with_and_without_the_index() -> None:
    ids = IdleIds()
    for number in range(5):
        ids.put_encoded(f"id-{number}", encode_transaction(idle(number)))
    for _ in range(2):
        assert ids.owner_of(10_003) == "id-3"
        assert ids.owner_of(7) is None
        ids.index_owners()
    ids.remove("id-3")
    assert ids.owner_of(10_003) is None
    ids.put_encoded("id-3", encode_transaction(idle(900)))
    assert ids.owner_of(10_003) is None, "it has another producer id since"
    late = idle(77)
    ids.put("late", late, encode_transaction(late))
    assert ids.owner_of(late.producer_id) == "late", "it became idle since the index was made"
    ids.drop_owner_index()
    assert ids.owner_of(10_900) == "id-3"


def test_only_the_last_used_are_kept_decoded() -> None:
    ids, txns = IdleIds(), [idle(number) for number in range(2 * DECODED_MAX)]
    for number, txn in enumerate(txns):
        ids.put(f"id-{number}", txn, encode_transaction(txn))
    assert ids.get("id-0") == txns[0]
    assert ids.get("id-0") is ids.get("id-0")
    # From the newest on: a get of an id that is not kept decoded drops the one that was decoded first.
    kept = [ids.get(f"id-{number}") is txns[number] for number in reversed(range(2 * DECODED_MAX))]
    assert kept == [True] * (DECODED_MAX - 1) + [False] * (DECODED_MAX + 1), "id-0 took the place of one"
