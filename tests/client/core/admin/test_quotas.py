"""Client quotas: list and change them."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.quotas import Quotas, alter_quotas, list_quotas
from stablelog.errors import RefusedError
from tests.client.core.scripted import NONE, Brokers, part, reply


def listed(request):
    entity = tuple(
        part(request, "EntityData", entity_type=kind, entity_name=name)
        for kind, name in (("user", "a"), ("client-id", None))
    )
    entry = part(
        request, "EntryData", entity=entity, values=(part(request, "ValueData", key="rate", value=5.0),)
    )
    return reply(request, error_code=NONE, error_message=None, entries=(entry,))


def test_quotas_are_listed_by_entity():
    brokers = Brokers({"DescribeClientQuotas": listed})
    assert brokers.run(list_quotas(brokers.cluster())) == [
        Quotas({"user": "a", "client-id": None}, {"rate": 5.0})
    ]
    assert brokers.request("DescribeClientQuotas").components == ()


def test_an_entity_is_named_exactly_or_is_the_default_of_its_type():
    brokers = Brokers({"DescribeClientQuotas": listed})
    brokers.run(list_quotas(brokers.cluster(), {"user": "a", "client-id": None}, strict=True))
    request = brokers.request("DescribeClientQuotas")
    found = [(one.entity_type, one.match_type, one.match) for one in request.components]
    assert found == [("user", 0, "a"), ("client-id", 1, None)]
    assert request.strict


def test_no_entries_are_no_quotas():
    brokers = Brokers(
        {
            "DescribeClientQuotas": lambda request: reply(
                request, error_code=NONE, error_message=None, entries=None
            )
        }
    )
    assert brokers.run(list_quotas(brokers.cluster())) == []


def altered(code=NONE, message=None):
    def answer(request):
        return reply(
            request, entries=(part(request, "EntryData", error_code=code, error_message=message, entity=()),)
        )

    return answer


def test_a_quota_is_set_or_removed():
    brokers = Brokers({"AlterClientQuotas": altered()})
    brokers.run(alter_quotas(brokers.cluster(), {"user": "a"}, {"rate": 5.0, "other": None}))
    (entry,) = brokers.request("AlterClientQuotas").entries
    assert [(one.entity_type, one.entity_name) for one in entry.entity] == [("user", "a")]
    assert [(one.key, one.value, one.remove) for one in entry.ops] == [
        ("rate", 5.0, False),
        ("other", 0.0, True),
    ]


def test_a_refusal_names_the_entity():
    brokers = Brokers({"AlterClientQuotas": altered(ErrorCode.invalid_request, "no such key")})
    with pytest.raises(RefusedError, match=r"^quotas of .*a.*: no such key"):
        brokers.run(alter_quotas(brokers.cluster(), {"user": "a"}, {"x": 1.0}))
    brokers = Brokers(
        {
            "DescribeClientQuotas": lambda request: reply(
                request, error_code=ErrorCode.cluster_authorization_failed, error_message=None, entries=None
            )
        }
    )
    with pytest.raises(RefusedError, match=r"^listing quotas: this user lacks a right to the cluster"):
        brokers.run(list_quotas(brokers.cluster()))
