"""Spark's Kafka connector is fetched once, each jar by itself, and said to be missing where it is."""

import pytest

from peers import apache_kafka, spark_connector

MAVEN = """#!/bin/sh
for argument do
  case "$argument" in
    -DoutputDirectory=*) mkdir -p "${argument#-DoutputDirectory=}"; touch "${argument#-DoutputDirectory=}/a.jar" ;;
  esac
done
"""


def test_without_maven_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(apache_kafka.NotAvailableError, match="no Maven"):
        spark_connector.jars(tmp_path)


def test_maven_is_asked_once_and_for_each_jar_without_what_it_depends_on(monkeypatch, tmp_path):
    maven = tmp_path / "mvn"
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [jar] = spark_connector.jars(tmp_path / "connector")
    assert jar.name == "a.jar"
    asked = (tmp_path / "connector" / "pom.xml").read_text()
    assert asked.count("<dependency>") == asked.count("<exclusions>") == 4
    maven.unlink()
    assert spark_connector.jars(tmp_path / "connector") == [jar]
