"""The position of a reader: a text that a program stores, and what it must belong to."""

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.client.core.read_position import UNKNOWN, VERSION, Mark, ReadPosition, check_fits, check_holds
from stablelog.errors import DataLossError, RefusedError, UsageError
from tests.client.core.leader_answers import epoch_ends_at
from tests.client.core.scripted import Brokers

TOPIC_ID = uuid.UUID(int=7)
POSITION = ReadPosition(
    "c", False, None, 5, {"t": None}, {("t", 0): Mark(10, 5, 3, 9), ("t", 1): Mark(-1, 5)}
)
NUMBERS = some.integers(-1, 2**63 - 1)


@given(
    some.one_of(some.none(), some.text(max_size=5)),
    some.booleans(),
    some.one_of(some.none(), some.just("g")),
    NUMBERS,
    some.dictionaries(
        some.tuples(some.sampled_from("tu"), some.integers(0, 9)), some.builds(Mark, *[NUMBERS] * 4)
    ),
)
def test_a_position_is_read_from_its_text(cluster_id, is_cut, group, sequence, marks):
    position = ReadPosition(cluster_id, is_cut, group, sequence, {"t": TOPIC_ID, "u": None}, marks)
    text = str(position)
    assert ReadPosition.parse(text) == position
    assert "\n" not in text
    assert str(ReadPosition.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        "{}",
        "null",
        '{"stablelog_position":1}',
        str(POSITION)[:-1],
        str(POSITION).replace("5", '"5"'),
        str(POSITION).replace("false", "0"),
    ],
)
def test_another_text_is_refused_with_how_to_make_one(text):
    with pytest.raises(
        UsageError, match=r"is not the text of a position: `str\(reader.position\)` makes one$"
    ):
        ReadPosition.parse(text)


def test_a_position_of_a_later_release_is_refused_with_its_version():
    text = str(POSITION).replace(f'"stablelog_position":{VERSION}', f'"stablelog_position":{VERSION + 1}')
    with pytest.raises(
        UsageError, match="the position has version 2, and this release of stablelog reads version 1"
    ):
        ReadPosition.parse(text)


def test_the_text_has_the_fields_by_name():
    fields = json.loads(str(POSITION))
    assert fields["topics"] == {"t": {"id": None, "partitions": {"0": [10, 5, 3, 9], "1": [-1, 5, -1, -1]}}}
    assert (fields["cluster"], fields["cut"], fields["commit_sequence"]) == ("c", False, 5)


@pytest.mark.parametrize(
    ("mark", "end"), [(Mark(10, 0), 10), (Mark(10, 0, 1, 7), 7), (Mark(UNKNOWN, 0), UNKNOWN)]
)
def test_the_records_that_must_be_there_are_those_that_were_handed_over(mark, end):
    assert mark.needed_end == end


def test_a_position_fits_a_reader_of_the_same_topics_group_and_mode():
    check_fits(POSITION, ["t"], None, is_cut=False)
    check_fits(replace(POSITION, group="g"), ["t"], "g", is_cut=False)
    check_fits(replace(POSITION, topics={}), ["anything"], "g", is_cut=False)


@pytest.mark.parametrize(
    ("topics", "group", "is_cut", "message"),
    [
        (
            ["t"],
            "g",
            True,
            "reads each partition separately, so no reader can begin there that reads all partitions together",
        ),
        (
            ["u", "t"],
            "g",
            False,
            "the position is of a reader of t, so no reader can begin there that reads t, u",
        ),
        (["t"], "h", False, "the position belongs to the transaction group 'g', but the reader to 'h'"),
    ],
)
def test_a_position_of_another_reader_is_refused_with_the_difference(topics, group, is_cut, message):
    with pytest.raises(UsageError, match=message):
        check_fits(replace(POSITION, group="g"), topics, group, is_cut=is_cut)


def holds(position=POSITION, end_offset=9, topics=("t",)):
    brokers = Brokers(
        {"OffsetForLeaderEpoch": epoch_ends_at(lambda _, epoch: (epoch, end_offset))},
        dict.fromkeys(topics, 2),
    )
    return brokers.run(check_holds(brokers.cluster(), position, ["t"])), brokers


def test_a_position_holds_if_its_leader_epochs_reach_what_was_handed_over():
    topics, brokers = holds()
    assert list(topics) == ["t"]
    asked = brokers.request("OffsetForLeaderEpoch").topics[0].partitions
    assert [(one.partition, one.leader_epoch) for one in asked] == [(0, 3)], "of t-1 nothing was handed over"


def test_an_epoch_that_the_broker_does_not_know_any_more_says_nothing():
    holds(end_offset=-1)


def test_a_broker_that_was_restored_without_the_records_is_told_with_both_offsets():
    with pytest.raises(
        DataLossError,
        match=r"^t-0 was restored from a copy that ends at offset 8, but the position is at offset 9",
    ):
        holds(end_offset=8)


def test_another_cluster_is_refused_by_its_id():
    with pytest.raises(
        UsageError, match="the position is of the cluster other, and one:9092 is the cluster c"
    ):
        holds(replace(POSITION, cluster_id="other"))


def test_a_topic_that_was_created_again_is_refused():
    with pytest.raises(
        DataLossError, match="t was deleted and created again: the position is of the deleted topic"
    ):
        holds(replace(POSITION, topics={"t": TOPIC_ID}))


def test_a_topic_that_was_deleted_is_a_loss_only_if_the_reader_has_read_from_it():
    with pytest.raises(DataLossError, match="the topic of the position was deleted"):
        holds(topics=())
    with pytest.raises(RefusedError, match="there is no topic 't'"):
        holds(replace(POSITION, cluster_id=None), topics=())
