"""Which quota applies to a client, and whose rates are measured together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.security.quotas.entities import Entity, NamePlaceholder
from stablelog.security.quotas.table import LEVELS, QuotaTable
from stablelog.wire.quotas import QuotaKey
from tests.scale import examples

DEFAULT, ABSENT = NamePlaceholder.DEFAULT, NamePlaceholder.ABSENT
RATE = QuotaKey.PRODUCER_BYTE_RATE
NAMES = st.sampled_from(["a", "b", ""])


@settings(deadline=None, max_examples=examples(300))
@given(
    levels=st.sets(st.sampled_from([(u, c) for u in ("a", DEFAULT, ABSENT) for c in ("a", DEFAULT, ABSENT)])),
    user=st.sampled_from(["a", "b"]),
    client=NAMES,
)
def test_the_most_specific_entity_has_the_quota(levels, user, client):
    levels = [pair for pair in levels if pair != (ABSENT, ABSENT)]
    table = QuotaTable({Entity(*pair): {RATE: n + 1.0} for n, pair in enumerate(levels)})
    order = [
        ("own", "own"), ("own", DEFAULT), ("own", ABSENT), (DEFAULT, "own"),
        (DEFAULT, DEFAULT), (DEFAULT, ABSENT), (ABSENT, "own"), (ABSENT, DEFAULT),
    ]  # fmt: skip
    fits = [(user if u == "own" else u, client if c == "own" else c) for u, c in order]
    expected = next((pair for pair in fits if pair in levels), None)
    found = table.quota_of_client(RATE, user, client)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found.limit == levels.index(expected) + 1
        assert found.measured == (
            "" if expected[0] is ABSENT else user,
            "" if expected[1] is ABSENT else client,
        )
    assert table.quota_of_client(QuotaKey.CONSUMER_BYTE_RATE, user, client) is None
    assert len(LEVELS) == 8


def test_an_address_has_its_own_quota_or_the_default_however_it_is_written():
    key = QuotaKey.CONNECTION_CREATION_RATE
    table = QuotaTable(
        {
            Entity(ip="10.0.0.1"): {key: 1.0},
            Entity(ip="0:0::1"): {key: 2.0},
            Entity(ip=DEFAULT): {key: 3.0},
        }
    )
    found = [table.quota_of_address(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "::1", "10.0.0.2", "?")]
    assert found == [1, 1, 2, 3, 3]
    assert QuotaTable({}).quota_of_address("10.0.0.1") is None


def test_a_long_client_id_is_told_apart_by_few_bytes():
    table = QuotaTable({Entity(client_id=DEFAULT): {RATE: 1.0}})
    long, other = "x" * 30_000, "x" * 29_999
    measured = [table.quota_of_client(RATE, "u", name).measured[1] for name in (long, long, other)]
    assert measured[0] == measured[1] != measured[2]
    assert max(map(len, measured)) <= 256


def test_an_entity_without_values_has_no_quota():
    table = QuotaTable({Entity(user="a"): {}, Entity(user="b"): {RATE: 1.0}})
    assert table.entities == {Entity(user="b"): {RATE: 1.0}}
    assert table.keys == {RATE}
    assert QuotaTable({}).keys == frozenset()


def test_a_later_change_of_what_a_table_was_made_of_does_not_change_the_table():
    values = {RATE: 1.0}
    table = QuotaTable({Entity(user="a"): values})
    values[RATE] = 2.0
    assert table.entities == {Entity(user="a"): {RATE: 1.0}}
    assert table.quota_of_client(RATE, "a", "c").limit == 1.0


def test_a_name_is_shortened_only_beyond_the_limit():
    table = QuotaTable({Entity(DEFAULT): {RATE: 1.0}})
    assert table.quota_of_client(RATE, "u" * 256, "c").measured == ("u" * 256, "")
    assert len(table.quota_of_client(RATE, "u" * 257, "c").measured[0]) == 64
