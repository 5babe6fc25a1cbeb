"""The Metadata messages of versions 8 to 10 have one field that neither older nor newer versions have."""

import dataclasses
import importlib
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.wire.api import ApiKey
from stablelog.wire.cluster_metadata import ClusterMetadataRequest, ClusterMetadataResponse
from stablelog.wire.message_classes import message_class
from stablelog.wire.versions import adapt

FIELDS = {
    "request": (ClusterMetadataRequest, "include_cluster_authorized_operations"),
    "response": (ClusterMetadataResponse, "cluster_authorized_operations"),
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize(("version", "has_field"), [(7, False), (8, True), (10, True), (11, False)])
def test_the_versions_that_have_the_field_are_those_of_the_class(kind, version, has_field):
    _, field = FIELDS[kind]
    fields = {one.name for one in dataclasses.fields(message_class(ApiKey.METADATA, version, kind))}
    assert (field in fields) is has_field


@pytest.mark.parametrize("kind", FIELDS)
def test_the_class_has_the_fields_of_the_newest_version_and_this_one(kind):
    found, field = FIELDS[kind]
    newest = importlib.import_module(f"kio.schema.metadata.v13.{kind}")
    parent = getattr(newest, f"Metadata{kind.capitalize()}")
    assert issubclass(found, parent), "a handler reads it like the newest version"
    fields, of_parent = ([one.name for one in dataclasses.fields(cls)] for cls in (found, parent))
    assert fields == [*of_parent, field]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_the_operations_of_the_cluster_reach_a_response_of_these_versions(version):
    response = ClusterMetadataResponse(
        throttle_time=timedelta(0),
        brokers=(),
        cluster_id="c",
        controller_id=1,
        topics=(),
        error_code=ErrorCode.none,
        cluster_authorized_operations=0b1100,
    )
    older = adapt(response, message_class(ApiKey.METADATA, version, "response"))
    assert (older.cluster_id, older.cluster_authorized_operations) == ("c", 0b1100)
