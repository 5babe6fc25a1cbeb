"""A message in one version becomes the same message in another one."""

import dataclasses
import importlib
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import Messages, message_class
from stablelog.wire.versions import adapt, entity_in, implicit_default, refuse_nulls, required

COMMIT_8, COMMIT_9 = Messages(ApiKey.OFFSET_COMMIT, 8), Messages(ApiKey.OFFSET_COMMIT, 9)


def commit(messages, topics):
    return messages.OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=4,
        member_id="m",
        group_instance_id="i",
        topics=tuple(
            messages.OffsetCommitRequestTopic(
                name=name,
                partitions=tuple(
                    messages.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=index + 10, committed_metadata=None
                    )
                    for index in indexes
                ),
            )
            for name, indexes in topics
        ),
    )


def test_a_message_of_the_wanted_version_is_the_object_itself():
    message = commit(COMMIT_9, [])
    assert adapt(message, type(message)) is message


def test_the_fields_of_equal_names_are_copied_at_every_depth():
    topics = [("a", (0, 1)), ("b", ())]
    assert adapt(commit(COMMIT_8, topics), COMMIT_9.OffsetCommitRequest) == commit(COMMIT_9, topics)
    assert adapt(commit(COMMIT_9, topics), COMMIT_8.OffsetCommitRequest) == commit(COMMIT_8, topics)


def test_a_field_that_only_the_old_version_has_is_left_out():
    old = Messages(ApiKey.OFFSET_COMMIT, 4)
    request = old.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=4, member_id="m", retention_time=timedelta(1), topics=()
    )
    new = adapt(request, COMMIT_9.OffsetCommitRequest)
    assert (new.group_id, new.generation_id_or_member_epoch, new.member_id) == ("g", 4, "m")
    assert not hasattr(new, "retention_time")


def test_a_field_that_only_the_new_version_has_gets_the_default_of_the_schema():
    old = message_class(ApiKey.METADATA, 1, "request")(topics=())
    new = adapt(old, message_class(ApiKey.METADATA, 13, "request"))
    assert new.allow_auto_topic_creation is True, "what the schema of version 4 says"
    assert new.include_topic_authorized_operations is False


def test_null_stays_null_where_the_other_version_has_it_too():
    request = message_class(ApiKey.METADATA, 1, "request")(topics=None)
    assert adapt(request, message_class(ApiKey.METADATA, 13, "request")).topics is None


def test_null_becomes_the_empty_list_where_the_other_version_has_no_null():
    request = message_class(ApiKey.METADATA, 1, "request")(topics=None)
    assert adapt(request, message_class(ApiKey.METADATA, 0, "request")).topics == ()


@dataclasses.dataclass
class Item:
    names: tuple[str, ...]
    aliases: tuple[str, ...] | None = None


@dataclasses.dataclass
class List:
    items: tuple[Item, ...]
    more: tuple[Item, ...] | None = None
    count: int = 0


def test_a_message_with_null_only_where_it_may_be_is_accepted():
    refuse_nulls(List((Item(()),), None))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (List(None), "items"),
        (List((Item(("a",)), Item(None))), "names"),
        (List((), (Item(None),)), "names"),
    ],
    ids=["at the top", "in an item", "in an item of a list that may be null"],
)
def test_a_null_where_none_may_be_is_refused_by_the_name_of_the_field(message, field):
    with pytest.raises(ValueError, match=f"^the field {field} is null, which is not allowed$"):
        refuse_nulls(message)


def test_the_type_of_a_field_is_told_apart_from_null():
    assert required(int | None) is int
    assert required(tuple[int, ...] | None) == tuple[int, ...]
    assert required(str) is str


def test_the_message_class_of_a_field_is_found_alone_in_a_list_and_beside_null():
    assert entity_in(Item) is Item
    assert entity_in(tuple[Item, ...]) is Item
    assert entity_in(tuple[Item, ...] | None) is Item
    assert entity_in(tuple[str, ...]) is None
    assert entity_in(int) is None


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (str | None, None),
        (tuple[str, ...], ()),
        (bool, False),
        (ErrorCode, ErrorCode.none),
        (Item, Item((), None)),
        (importlib.import_module("kio.static.primitive").i32, 0),
        (str, ""),
    ],
    ids=str,
)
def test_a_field_without_a_default_in_the_schema_is_null_empty_or_zero(annotation, default):
    assert implicit_default(annotation) == default
