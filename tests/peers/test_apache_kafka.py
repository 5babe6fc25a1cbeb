"""Apache Kafka is fetched once, run, and said to be missing where it is."""

import pytest

from peers import apache_kafka


def test_without_java_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(apache_kafka.NotAvailableError, match="no Java"):
        apache_kafka.java()


def test_without_maven_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(apache_kafka.NotAvailableError, match="no Maven"):
        apache_kafka.jars(tmp_path)


def test_what_maven_complains_of_is_told_and_nothing_half_fetched_is_taken_for_the_jars(
    monkeypatch, tmp_path
):
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] the network is away'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(apache_kafka.NotAvailableError, match="the network is away"):
        apache_kafka.jars(tmp_path / "kafka")
    assert not list((tmp_path / "kafka").glob("jars-*"))
