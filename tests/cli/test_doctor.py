"""`stablelog doctor`: its report with and without a broker and a directory, and that it shows no secret."""

import errno
import json
import os
import re
import shutil
import socket

import pytest

import stablelog
from stablelog.cli.output import FINDINGS
from tests.commands import run
from tests.secured import secured

SECRET = "plain-secret-7"
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
GROUPS = ("versions", "limits", "disk", "directory", "broker", "settings", "findings")


def report(*words, **options):
    """The exit code, and the document."""
    done = run("doctor", *map(str, words), "--json", **options)
    assert done.stderr == "", done
    return done.returncode, json.loads(done.stdout)


def findings_of(document):
    """The findings, without those about the machine that runs the tests: its limits and the kind and size of its disk."""
    of_machine = re.compile("file system|in memory:|MiB are free|is full")
    return [
        one
        for one in document["findings"]
        if one["subject"] != "limits" and not of_machine.search(one["problem"])
    ]


def settings_of(document):
    return {one["setting"]: one["value"] for one in document["settings"]}


@pytest.fixture(scope="module")
def stopped(module_path):
    """The data directory of a stopped broker with a topic."""
    with stablelog.serve(module_path / "data", settings={"log.retention.ms": "86400000"}) as broker:
        assert run("topics", "create", "orders", bootstrap=broker.bootstrap).returncode == 0
    return module_path / "data"


def test_without_a_broker_and_a_directory():
    code, document = report()
    assert findings_of(document) == []
    assert code == (FINDINGS if document["findings"] else 0)
    assert tuple(document) == GROUPS
    assert document["versions"]["stablelog"] == stablelog.__version__
    assert (document["directory"], document["broker"], document["disk"]) == (None, None, None)


def test_a_stopped_broker(stopped):
    _, document = report("--data", stopped)
    assert findings_of(document) == []
    assert document["directory"]["topics"] == 3  # with the logs of the coordinators
    assert document["directory"]["lock"] == "free"
    assert document["directory"]["is_stopped_cleanly"]
    assert document["disk"]["reserve_bytes"] == 64 << 20


def test_a_running_broker_and_its_directory(tmp_path):
    with stablelog.serve(tmp_path / "data", settings={"num.partitions": "3"}) as broker:
        _, document = report("--data", broker.data, bootstrap=broker.bootstrap)
    assert findings_of(document) == []
    assert document["broker"]["brokers"] == 1
    assert document["directory"]["lock"] == "held"
    assert settings_of(document)["num.partitions"] == "3"


def test_a_broker_that_does_not_respond_is_a_finding_beside_the_report(stopped):
    with socket.socket() as bound:  # nothing listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        code, document = report("--data", stopped, "--timeout", "0.2", bootstrap=address)
    assert code == FINDINGS
    (found,) = findings_of(document)
    assert found["subject"] == f"broker {address}"
    assert "no broker responds" in found["problem"]
    assert document["broker"]["topics"] is None
    assert document["directory"]["topics"] == 3


def test_a_damaged_directory_has_findings_and_the_exit_code_1(stopped, tmp_path):
    copy = shutil.copytree(stopped, tmp_path / "copy")
    (copy / "quotas.json").write_text("{}\n")
    code, document = report("--data", copy)
    assert code == FINDINGS
    (found,) = findings_of(document)
    assert found["subject"] == str(copy / "quotas.json")
    assert "Restore it" in found["action"]


def test_the_text_has_each_finding_with_what_to_do(tmp_path):
    done = run("doctor", "--data", str(tmp_path / "missing"))
    assert done.returncode == FINDINGS
    missing, action, end = done.stdout.splitlines()[-3:]
    assert missing == f"{tmp_path / 'missing'}: it cannot be read as a directory: {os.strerror(errno.ENOENT)}"
    assert action.strip().startswith("Name the data directory of the broker by --data")
    assert re.fullmatch(r"\d+ findings?", end)


def test_an_address_is_asked_only_if_it_is_named(stablelog_broker, monkeypatch):
    assert report()[1]["broker"] is None
    monkeypatch.setenv("STABLELOG_BOOTSTRAP", stablelog_broker.bootstrap)
    assert report()[1]["broker"]["bootstrap"] == stablelog_broker.bootstrap


@pytest.fixture(scope="module")
def guarded(module_path):
    """A broker with a keystore, logins and users."""
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="{SECRET}";'
    (module_path / "secured").mkdir()
    with secured(module_path / "secured", **{JAAS: jaas}) as made:
        yield made


def test_no_secret_of_a_broker_is_shown(guarded):
    """By its protocol and by its directory."""
    hashes = re.findall(r'"([\w+/=]{20,})"', (guarded.broker.data / "users.json").read_text())
    assert hashes
    for form in (["--json"], []):
        done = run("doctor", "--data", str(guarded.broker.data), *form, bootstrap=guarded.at["PLAINTEXT"])
        assert done.stderr == "", done
        assert SECRET not in done.stdout
        assert "PRIVATE KEY" not in done.stdout
        assert not [one for one in hashes if one in done.stdout]
    _, document = report(bootstrap=guarded.at["PLAINTEXT"])
    assert settings_of(document)[JAAS] == "(hidden)"


@pytest.mark.parametrize(
    ("listener", "protocol", "problem"),
    [
        ("SSL", "PLAINTEXT", "has TLS .*set security.protocol=SSL and ssl.keystore.location"),
        ("PLAINTEXT", "SSL", "the client is set to SSL: set security.protocol=PLAINTEXT"),
        ("SASL_PLAINTEXT", "SASL_PLAINTEXT", "login at .* as user 'a' with PLAIN failed"),
        (
            "SASL_PLAINTEXT",
            "PLAINTEXT",
            "the client is set to PLAINTEXT: set security.protocol=SASL_PLAINTEXT",
        ),
    ],
)
def test_a_broker_that_accepts_no_login_is_a_finding_without_the_password(
    guarded, tmp_path, listener, protocol, problem
):
    config = tmp_path / "client.properties"
    login = 'required username="a" password="wrong-secret-9";' if "SASL" in protocol else ""
    module = "sasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule"
    config.write_text(f"security.protocol={protocol}\n" + (f"{module} {login}\n" if login else ""))
    config.chmod(0o600)
    code, document = report("--command-config", config, "--timeout", "60", bootstrap=guarded.at[listener])
    assert code == FINDINGS
    (found,) = findings_of(document)
    assert found["subject"] == f"broker {guarded.at[listener]}"
    assert re.search(problem, found["problem"]), found
    assert "wrong-secret-9" not in json.dumps(document)
