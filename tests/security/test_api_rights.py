"""The rights that the declarations of the APIs are made of."""

import pytest

from stablelog.security.api_rights import LEFT_OUT, Right, on_cluster, on_group, on_topic, on_transactional_id
from stablelog.wire.acls import Operation, ResourceType


@pytest.mark.parametrize(
    ("right_on", "kind", "of"),
    [
        (on_topic, ResourceType.TOPIC, "each topic"),
        (on_group, ResourceType.GROUP, "the group"),
        (on_transactional_id, ResourceType.TRANSACTIONAL_ID, "the transactional id"),
        (on_cluster, ResourceType.CLUSTER, "the cluster"),
    ],
)
def test_a_right_is_on_the_resource_of_the_request_unless_it_says_which_one(right_on, kind, of):
    assert right_on(Operation.WRITE) == Right(Operation.WRITE, kind, of, "")
    said = right_on(Operation.READ, "each of two", LEFT_OUT)
    assert said == Right(Operation.READ, kind, "each of two", "left out")
