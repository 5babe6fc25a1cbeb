"""Settings of topics, brokers and groups."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.configs import Config, ConfigSource, alter_configs, describe_configs
from stablelog.errors import RefusedError, UsageError
from tests.client.core.scripted import NONE, Brokers, part, reply


def described(*settings, code=NONE, message=None):
    """An answer with these (name, value, source, is_read_only, is_sensitive)."""

    def answer(request):
        (resource,) = request.resources
        configs = tuple(
            part(
                request,
                "DescribeConfigsResourceResult",
                name=name,
                value=value,
                config_source=source,
                read_only=is_read_only,
                is_sensitive=is_sensitive,
                synonyms=(),
                documentation=None,
            )
            for name, value, source, is_read_only, is_sensitive in settings
        )
        result = part(
            request,
            "DescribeConfigsResult",
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=configs,
        )
        return reply(request, results=(result,))

    return answer


def altered(code=NONE, message=None):
    def answer(request):
        result = part(
            request,
            "AlterConfigsResourceResponse",
            error_code=code,
            error_message=message,
            resource_type=2,
            resource_name="t",
        )
        return reply(request, responses=(result,))

    return answer


def test_settings_are_returned_by_name_with_where_they_come_from():
    brokers = Brokers({"DescribeConfigs": described(("a", "1", 1, False, False), ("b", None, 4, True, True))})
    assert brokers.run(describe_configs(brokers.cluster(), "topic", "t")) == {
        "a": Config("a", "1", ConfigSource.TOPIC, False, False),
        "b": Config("b", None, ConfigSource.STATIC_BROKER, True, True),
    }
    (resource,) = brokers.request("DescribeConfigs").resources
    assert (resource.resource_type, resource.resource_name, resource.configuration_keys) == (2, "t", None)


def test_a_source_of_a_later_kafka_is_unknown():
    assert ConfigSource(99) is ConfigSource.UNKNOWN


def test_only_the_named_settings_are_asked_for():
    brokers = Brokers({"DescribeConfigs": described()})
    brokers.run(describe_configs(brokers.cluster(), "group", "g", names=iter(["a", "b"])))
    (resource,) = brokers.request("DescribeConfigs").resources
    assert (resource.resource_type, resource.configuration_keys) == (32, ("a", "b"))


def test_the_settings_of_a_broker_are_asked_of_that_broker():
    brokers = Brokers({"DescribeConfigs": described(), "IncrementalAlterConfigs": altered()})
    brokers.run(describe_configs(brokers.cluster(), "broker", "2"))
    brokers.run(alter_configs(brokers.cluster(), "broker", "3", {"a": "1"}))
    brokers.run(alter_configs(brokers.cluster(), "broker", "", {"a": "1"}))
    assert [host for host, _ in brokers.requests("DescribeConfigs")] == ["two"]
    assert [host for host, _ in brokers.requests("IncrementalAlterConfigs")] == ["three", "one"]


def test_a_broker_that_the_cluster_lacks_is_refused():
    brokers = Brokers()
    with pytest.raises(RefusedError, match="the cluster has no broker 9, only 1, 2, 3"):
        brokers.run(describe_configs(brokers.cluster(), "broker", "9"))


def test_an_id_of_a_broker_is_a_number():
    brokers = Brokers()
    with pytest.raises(UsageError, match="'one' is not the id of a broker: write a number"):
        brokers.run(describe_configs(brokers.cluster(), "broker", "one"))


@pytest.mark.parametrize("call", [describe_configs, lambda *words: alter_configs(*words, {})])
def test_only_topics_brokers_and_groups_have_settings(call):
    brokers = Brokers()
    with pytest.raises(
        UsageError, match="'user' is no kind of resource with settings: write one of topic, broker, group"
    ):
        brokers.run(call(brokers.cluster(), "user", "x"))


def test_a_setting_is_set_or_removed():
    brokers = Brokers({"IncrementalAlterConfigs": altered()})
    brokers.run(alter_configs(brokers.cluster(), "topic", "t", {"a": "1", "b": None}))
    request = brokers.request("IncrementalAlterConfigs")
    (resource,) = request.resources
    assert [(one.name, one.config_operation, one.value) for one in resource.configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
    ]
    assert request.validate_only is False


def test_a_refusal_names_the_resource_and_has_the_brokers_words():
    answers = {
        "DescribeConfigs": described(code=ErrorCode.invalid_request, message="no such topic"),
        "IncrementalAlterConfigs": altered(ErrorCode.invalid_config, "a must be a number"),
    }
    brokers = Brokers(answers)
    with pytest.raises(RefusedError, match=r"^settings of topic 't': no such topic"):
        brokers.run(describe_configs(brokers.cluster(), "topic", "t"))
    with pytest.raises(RefusedError, match=r"^settings of topic 't': a must be a number"):
        brokers.run(alter_configs(brokers.cluster(), "topic", "t", {"a": "x"}))
