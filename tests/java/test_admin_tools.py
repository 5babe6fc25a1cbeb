"""Kafka's own commands for administrators, as they come with Kafka, against the broker."""

import json

import pytest

from tests.clients.drivers import unique
from tests.java.client import RefusedError

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

TOOLS = "org.apache.kafka.tools"


def test_topics_are_described_in_pages(java):
    names = sorted(unique(word) for word in ("pages", "more-pages"))
    for name in names:
        java.ask("create_topic", topic=name, partitions=5)
    lines = java.tool(f"{TOOLS}.TopicCommand", "--describe", "--partition-size-limit-per-response", "3")
    for name in names:
        about = [line.split() for line in lines if f"Topic: {name}\t" in line]
        assert len(about) == 6
        assert [words[words.index("Partition:") + 1] for words in about[1:]] == list("01234")


def test_settings_of_a_broker_and_of_all_brokers_are_told_with_their_sources(java):
    config, name = "kafka.admin.ConfigCommand", "message.max.bytes"
    of_broker = ("--entity-type", "brokers", "--entity-name", "1")
    of_all = ("--entity-type", "brokers", "--entity-default")
    java.tool(config, "--alter", *of_all, "--add-config", f"{name}=2000000")
    java.tool(config, "--alter", *of_broker, "--add-config", f"{name}=3000000")
    [told] = [line for line in java.tool(config, "--describe", *of_broker) if name in line]
    sources = ("DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG", "DEFAULT_CONFIG")
    values = ("3000000", "2000000", "1048588")
    assert told.index("synonyms=") > 0
    for source, value in zip(sources, values, strict=True):
        assert f"{source}:{name}={value}" in told
    [told] = [line for line in java.tool(config, "--describe", *of_all) if name in line]
    assert f"{name}=2000000" in told
    for entity in (of_broker, of_all):
        java.tool(config, "--alter", *entity, "--delete-config", name)
        assert not [line for line in java.tool(config, "--describe", *entity) if name in line]


def test_there_are_no_client_metrics_resources(java):
    assert java.tool(f"{TOOLS}.ClientMetricsCommand", "--list") == []


def test_elections_are_not_needed(java):
    name = unique("elections")
    java.ask("create_topic", topic=name, partitions=2)
    election = f"{TOOLS}.LeaderElectionCommand"
    for kind in ("preferred", "unclean"):
        asked = ("--election-type", kind)
        [told] = java.tool(election, *asked, "--topic", name, "--partition", "1")
        assert told.startswith(f"Valid replica already elected for partitions {name}-1")
        assert java.tool(election, *asked, "--all-topic-partitions") == []


def test_partitions_are_assigned_to_the_only_broker(java, tmp_path):
    name = unique("assigned")
    java.ask("create_topic", topic=name, partitions=1)
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    assert java.tool(tool, "--list") == ["No partition reassignments found."]
    plan = tmp_path / "plan.json"
    partition = {"topic": name, "partition": 0, "replicas": [1], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    told = java.tool(tool, "--execute", "--reassignment-json-file", str(plan))
    assert f"Successfully started partition reassignment for {name}-0" in told
    told = java.tool(tool, "--verify", "--reassignment-json-file", str(plan))
    assert f"Reassignment of partition {name}-0 is completed." in told


def test_there_is_no_authorizer_and_no_user(java):
    with pytest.raises(RefusedError, match=r"SecurityDisabledException|Ended"):
        java.tool(f"{TOOLS}.AclCommand", "--list")
    users = ("--describe", "--entity-type", "users")
    assert java.tool("kafka.admin.ConfigCommand", *users) == []


def test_the_features_of_the_broker_are_told_and_stay(java):
    tool = f"{TOOLS}.FeatureCommand"
    [told] = [line for line in java.tool(tool, "describe") if "transaction.version" in line]
    assert "FinalizedVersionLevel: 2" in told
    told = java.tool(tool, "upgrade", "--feature", "transaction.version=2")
    assert told == ["transaction.version was upgraded to 2."]
    with pytest.raises(RefusedError):
        java.tool(tool, "downgrade", "--feature", "transaction.version=1")


def test_the_endpoints_of_the_cluster_are_told(java, broker):
    arguments = ["list-endpoints", "--bootstrap-server", broker.bootstrap, "--include-fenced-brokers"]
    told = java.ask("tool", **{"class": f"{TOOLS}.ClusterTool", "arguments": arguments})
    host, _, port = broker.bootstrap.rpartition(":")
    assert told.splitlines()[-1].split()[:4] == ["1", host, port, "null"]
