import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.spark.offsets import StreamCut, StreamOffsets, parse_assign, parse_indexes, parse_numbers

places = st.dictionaries(
    st.tuples(st.text("abc.-_", min_size=1), st.integers(0, 100)), st.integers(0, 2**62), max_size=20
)


@pytest.mark.extended
@given(places, st.randoms())
def test_equal_offsets_are_equal_text(next_offsets, random):
    items = list(next_offsets.items())
    random.shuffle(items)
    ids = {topic: topic * 2 for topic, _ in next_offsets}
    shuffled = dict(random.sample(sorted(ids.items()), len(ids)))
    text = json.dumps(StreamOffsets(next_offsets, ids).to_json())
    assert json.dumps(StreamOffsets(dict(items), shuffled).to_json()) == text
    assert StreamOffsets.from_json(json.loads(text)) == StreamOffsets(next_offsets, ids)


def test_offsets_are_written_as_kafkas_connector_does():
    offsets = StreamOffsets({("orders", 1): 42, ("orders", 0): 23}, {})
    assert offsets.to_json() == {"orders": {"0": 23, "1": 42}}


def test_the_cut_of_offsets_stands_beside_them():
    offsets = StreamOffsets({("orders", 0): 23}, {"orders": "ab"}, StreamCut(42, "payments"))
    text = offsets.to_json()
    assert list(text) == ["#cut", "#topics", "orders"]
    assert text["#cut"] == {"commitSequence": 42, "group": "payments"}
    assert StreamOffsets.from_json(text) == offsets
    assert parse_numbers(json.dumps(text), least=0) == {("orders", 0): 23}


def test_what_a_stream_reports_can_be_given_as_an_option():
    reported = StreamOffsets({("orders", 0): 23}, {"orders": "ab"}).to_json()
    assert parse_numbers(json.dumps(reported), least=0) == {("orders", 0): 23}


def test_assigned_partitions():
    assert parse_assign('{"b": [1, 0, 1], "a": [3]}') == (("a", 3), ("b", 0), ("b", 1))


@pytest.mark.parametrize(
    "text", ['{"a": [-1]}', "{}", '["a"]', '{"a": 1}', '{"a": "01"}', '{"a": {"0": 5}}', "a"]
)
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        parse_assign(text)


def test_ranges_of_partitions():
    assert parse_indexes("0, 3,5-7") == {0, 3, 5, 6, 7}
