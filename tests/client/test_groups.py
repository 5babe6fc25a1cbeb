"""Transaction groups as the native client sees them: commits and cuts of their own, and whoever crosses is told."""

import pytest
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.errors import RefusedError, UsageError
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.transactions import assert_failed, create, settled, visible, write_everywhere


def write(client, topics, value, group=""):
    with client.transaction(group=group) as txn:
        futures = [txn.write(topic, value, partition=n) for topic in topics for n in range(2)]
    return txn.commit().commit_sequence, {future.result() for future in futures}


def test_each_group_numbers_its_commits_and_has_cuts_of_its_own(client, stablelog_broker, face):
    group = f"payments-{face.name}"
    paid = [create(stablelog_broker.bootstrap, group=group) for _ in range(2)]
    other = create(stablelog_broker.bootstrap)
    written = {}
    for number in range(1, 6):
        sequence, positions = write(client, paid, b"%d" % number, group)
        assert sequence == number, "dense, from the first one of the group on"
        written[sequence] = positions
        write(client, [other], b"between")
    for named in (group, None):
        read = list(client.read(paid, cut=True, wait=0, group=named))
        assert {one.commit_sequence: {record[:3] for record in one.records} for one in read} == written
        assert [one.commit_sequence for one in client.read(paid, cut=True, after=3, wait=0, group=named)] == [
            4,
            5,
        ]
        assert list(client.read(paid, cut=True, after=None, wait=0, group=named)) == []
        assert len(list(client.read(paid, cut=False, wait=0, group=named))) == 5 * 4
    assert {record.value for one in client.read(other, cut=True, wait=0) for record in one.records} == {
        b"between"
    }


@pytest.mark.parametrize("order", ["commit", "offset"])
@pytest.mark.parametrize(
    ("mine", "others"),
    [("payments", ""), ("", "payments"), ("payments", "orders")],
    ids=["out", "in", "across"],
)
def test_a_transaction_that_crosses_is_aborted_and_told_which_groups(
    stablelog_broker, client, mine, others, order
):
    own = create(stablelog_broker.bootstrap, order, group=mine)
    foreign = create(stablelog_broker.bootstrap, order, group=others)
    futures = []
    with pytest.raises(RefusedError) as refused, client.transaction(group=mine) as txn:
        futures += [txn.write(own, b"v"), txn.write(foreign, b"v")]
    for part in (
        foreign,
        *(repr(group) if group else "the default transaction group" for group in (mine, others)),
    ):
        assert part in str(refused.value)
    assert str(refused.value).startswith(f"the transaction was begun with group={mine!r}: ")
    assert str(refused.value).endswith(f"Use client.transaction(group={others!r})")
    assert refused.value.code is ErrorCode.topic_authorization_failed
    assert_failed(futures, ErrorCode.topic_authorization_failed)
    write(client, [own], b"after", mine)
    assert set(visible(stablelog_broker.bootstrap, own, foreign).values()) == {b"after"}


def test_a_reader_that_crosses_is_told_which_groups(stablelog_broker, client):
    paid = create(stablelog_broker.bootstrap, group="payments")
    other = create(stablelog_broker.bootstrap)
    for cut in (True, False):
        with pytest.raises(RefusedError, match=rf"'{paid}' belongs to transaction group 'payments', not to"):
            list(client.read(paid, cut=cut, wait=0, group="orders"))
    with pytest.raises(
        RefusedError, match="belongs to the default transaction group, not to transaction group 'payments'"
    ):
        list(client.read([paid, other], cut=True, wait=0))
    with pytest.raises(UsageError, match="transaction group 'a/b'"):
        client.read(paid, group="a/b")
    with pytest.raises(UsageError, match="transaction group 'a b'"):
        client.transaction(group="a b")


@pytest.mark.extended
def test_a_commit_of_a_group_is_answered_by_a_broker_that_was_killed_after_the_decision(face):
    with stablelog.serve() as broker:
        topics = [create(broker.bootstrap, order, group="payments") for order in ("commit", "offset")]

        def spoil(key, answer):
            if key == ApiKey.COMMIT_JOINT and proxy.count(key) == 1:
                broker.kill()
                broker.start()
                raise OSError("killed")
            return answer

        with (
            Proxy((broker.host, broker.port), lambda *_: None, spoil) as proxy,
            face.through(proxy, broker) as client,
        ):
            txn, futures = write_everywhere(client, *topics, group="payments")
            assert txn.commit().commit_sequence == 1
            assert proxy.count(ApiKey.COMMIT_JOINT) == 2
            assert settled(list(futures))
            assert visible(broker.bootstrap, *topics) == {f.result(): value for f, value in futures.items()}
