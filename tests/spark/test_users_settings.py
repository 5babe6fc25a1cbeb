"""The settings that the user has made outside of the program win over those of `session`."""

import pytest

from stablelog.spark import local_session
from stablelog.spark.local_session import SETTINGS
from stablelog.spark.users_settings import properties, submitted, users_settings

FILE = """
# a comment
spark.ui.enabled   false
spark.buffer.size=4k
  spark.master : spark://host:7077
spark.driver.extraJavaOptions  -Da=b -Dc=d

other.setting 1
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user who has set nothing; returns the directory of Spark's settings."""
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_the_lines_of_a_file():
    assert dict(properties(FILE)) == {
        "spark.ui.enabled": "false",
        "spark.buffer.size": "4k",
        "spark.master": "spark://host:7077",
        "spark.driver.extraJavaOptions": "-Da=b -Dc=d",
    }


def test_the_arguments_of_spark_submit():
    words = [
        "--master",
        "yarn",
        "--conf",
        "spark.a=b=c",
        "--conf=spark.d=e",
        "-c",
        "spark.f=g",
        "--name=n",
        "pyspark-shell",
    ]
    found = {"spark.master": "yarn", "spark.a": "b=c", "spark.d": "e", "spark.f": "g", "spark.app.name": "n"}
    assert dict(submitted(words)) == found


def test_a_user_who_has_set_nothing(user):
    assert users_settings() == {}


def test_arguments_go_before_the_file(user, monkeypatch):
    (user / "spark-defaults.conf").write_text("spark.a file\nspark.b file\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.b=argument --master local[3] pyspark-shell")
    assert users_settings() == {"spark.a": "file", "spark.b": "argument", "spark.master": "local[3]"}


def test_another_file_of_properties(user, monkeypatch):
    (user / "spark-defaults.conf").write_text("spark.a default\n")
    (user / "mine").write_text("spark.a mine\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {user}/mine pyspark-shell")
    assert users_settings() == {"spark.a": "mine"}


def test_a_session_sets_what_nobody_has_set():
    own = {"spark.app.name": "stablelog", "spark.master": "local[*]", **SETTINGS}
    assert local_session.settings_of({}, {}) == own
    users = {"spark.master": "yarn", "spark.buffer.size": "4k"}
    found = local_session.settings_of({"spark.app.name": "mine", "spark.x": "1"}, users)
    assert found == {name: own[name] for name in own.keys() - users} | {
        "spark.app.name": "mine",
        "spark.x": "1",
    }
    assert local_session.settings_of({"spark.master": "local"}, users)["spark.master"] == "local"
