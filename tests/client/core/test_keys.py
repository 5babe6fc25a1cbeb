"""The key of a client's joint commits, and the transactional id of a transaction with it."""

from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.keys import EPOCH_MAX, LOST, RETENTION_S, WriterKey
from stablelog.processes import this_process
from stablelog.wire.extension.children import child_id


def test_each_key_has_a_name_of_its_own():
    assert len({WriterKey("").name for _ in range(100)}) == 100


def test_a_new_key_begins_with_version_0_and_belongs_to_this_process():
    key = WriterKey("g")
    assert (key.version, key.may_be_ending, key.process) == (0, False, this_process())


@pytest.mark.parametrize("group", ["", "g"])
def test_the_transactional_id_is_that_of_the_only_child_of_the_joint_commit(group):
    key = WriterKey(group, "name", 3)
    assert key.transactional_id == child_id("name", 3, "1", 0, 0, group=group)


def test_each_version_and_each_group_has_a_transactional_id_of_its_own():
    keys = [WriterKey(group, "name", version) for group in ("", "g", "h") for version in range(3)]
    assert len({key.transactional_id for key in keys}) == len(keys)


def test_a_key_is_lost_if_another_producer_may_have_its_transactional_id():
    """With any other code, such as COORDINATOR_NOT_AVAILABLE, the next attempt uses the same key."""
    assert {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.concurrent_transactions,
    } == LOST


def test_a_key_is_dropped_before_its_producer_gets_another_id():
    assert EPOCH_MAX < 2**15 - 1


def test_the_broker_remembers_a_key_for_a_day():
    assert timedelta(seconds=RETENTION_S) == timedelta(days=1)
