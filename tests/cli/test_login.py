"""Commands connect with TLS and log in, by a file, the environment or a profile; and tell no secret."""

import json

import pytest

from stablelog.cli import login
from stablelog.client.core.security import read_security_settings
from stablelog.errors import UsageError
from tests.client.transactions import create
from tests.commands import run
from tests.secured import NAMES, PASSWORD, USER, jaas, secured

SECRET = "s3cr3t-value"


@pytest.fixture(scope="module")
def server(module_path):
    with secured(module_path) as server:
        create(server.at["PLAINTEXT"], name="orders")
        yield server


def written(path, settings):
    """Write settings as Java writes properties."""
    lines = []
    for name, value in settings.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{name}={escaped}\n")
    path.write_text("# security\n! of a client\n" + "".join(lines) + "request.timeout.ms=500\n")
    return str(path)


@pytest.mark.extended
@pytest.mark.parametrize(
    "protocol", [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.night) for name in NAMES[2:])]
)
def test_each_command_connects_with_the_settings_of_a_file(server, tmp_path, protocol):
    given = ["--command-config", written(tmp_path / "client.properties", server.settings(protocol))]
    at = server.at[protocol]
    topic = f"of-{protocol.lower().replace('_', '-')}"
    for words, text in (
        (("topics", "create", topic, "--config", "stablelog.order=commit"), None),
        (("produce", topic), "a\nb\n"),
        (("topics", "describe", topic), None),
        (("consume", topic), None),
        (("consume", topic, "--group", topic), None),
        (("groups", "describe", topic), None),
        (("config", "show", "--topic", topic), None),
        (("transactions", "list"), None),
        (("cut", topic), None),
        (("users", "list"), None),
    ):
        done = run(*words, *given, bootstrap=at, given=text)
        assert done.returncode == 0, (words, done.stderr)
        if words[0] == "consume":
            assert done.stdout.split() == ["a", "b"]


@pytest.mark.extended
def test_the_environment_and_a_profile_have_settings(server, tmp_path, monkeypatch):
    folder = tmp_path / "stablelog"
    folder.mkdir()
    lines = [f'"{name}" = {json.dumps(value)}' for name, value in server.login.items() if "jaas" not in name]
    address = json.dumps(server.at["SASL_SSL"])
    (folder / "profiles.toml").write_text(
        f"[whole]\nbootstrap = {address}\ncommand-config = {json.dumps(str(tmp_path / 'c.properties'))}\n"
        f"[part]\nbootstrap = {address}\n[part.settings]\n" + "\n".join(lines)
    )
    written(tmp_path / "c.properties", server.login)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "orders" in run("topics", "list", "--profile", "whole").stdout
    missing = run("topics", "list", "--profile", "part")
    assert missing.returncode == 2
    assert "the user name of SCRAM-SHA-512 is missing" in missing.stderr
    monkeypatch.setenv("STABLELOG_SASL_USERNAME", USER)
    monkeypatch.setenv("STABLELOG_SASL_PASSWORD", PASSWORD)
    assert "orders" in run("topics", "list", "--profile", "part").stdout
    monkeypatch.setenv("STABLELOG_SASL_MECHANISM", "SCRAM-SHA-256")  # replaces the one of the profile
    assert "orders" in run("topics", "list", "--profile", "part").stdout


@pytest.mark.extended
def test_a_wrong_login_is_told_in_one_line_and_without_a_secret(server, tmp_path):
    wrong = server.login | {"sasl.jaas.config": jaas(password=SECRET)}
    untrusted = server.login | {"ssl.truststore.location": str(server.certificates.stranger)}
    for at, settings, told in (
        ("SASL_SSL", wrong, "Check user name and password"),
        ("SASL_SSL", untrusted, "certificate is not accepted"),
        ("PLAINTEXT", server.login, "set security.protocol=PLAINTEXT"),
        ("SASL_PLAINTEXT", {}, "set security.protocol=SASL_PLAINTEXT"),
        ("SASL_SSL", {}, "set security.protocol=SASL_SSL"),
    ):
        done = run(
            "topics", "list", "--command-config", written(tmp_path / "c", settings), bootstrap=server.at[at]
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
        assert SECRET not in done.stderr
        assert PASSWORD not in done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (f"{SECRET}=x\n=\n", "line 2: write name=value"),
        (f"security.protocol=SSL\nssl.key.pasword={SECRET}\n", "unknown; did you mean ssl.key.password"),
        (f"sasl.jaas.config={SECRET}\n", "sasl.jaas.config has no effect with security.protocol=PLAINTEXT"),
    ],
)
def test_a_file_that_is_not_valid_is_told_without_its_lines(tmp_path, content, told):
    (tmp_path / "c").write_text(content)
    done = run("topics", "list", "--command-config", str(tmp_path / "c"), bootstrap="127.0.0.1:1")
    assert done.returncode == 2
    assert told in done.stderr
    assert SECRET not in done.stderr


def test_a_file_that_is_missing_is_named(tmp_path):
    done = run("topics", "list", "--command-config", str(tmp_path / "none"), bootstrap="127.0.0.1:1")
    assert "none cannot be read: No such file or directory" in done.stderr


def test_properties_are_read_as_java_reads_them(tmp_path):
    path = tmp_path / "p"
    path.write_text(
        "  # comment\n\n! comment\na=1\n b : two words \nc three\nd=one \\\n   line\ne\\=f=g\\\\h\ni=\\u00e4\\n\n"
        'j=x required \\\n  username="a" \\\n  password="b=c";\nk=\n'
        "l=5%:=\u2028\x85\xa0\r\nm \t:\xa0n\rn:=o\n"
    )
    assert login.read_client_properties(path) == {
        "a": "1",
        "b": "two words ",
        "c": "three",
        "d": "one line",
        "e=f": "g\\h",
        "i": "ä\n",
        "j": 'x required username="a" password="b=c";',
        "k": "",
        "l": "5%:=\u2028\x85\xa0",
        "m": "\xa0n",
        "n": "=o",
    }


@pytest.mark.parametrize("name", ["kafka.security.protocol", "Security.Protocol", "security.protocl"])
def test_a_misspelt_setting_does_not_switch_tls_off(tmp_path, name):
    (tmp_path / "c").write_text(f"{name}=SSL\n")
    with pytest.raises(UsageError, match=f"{name} is unknown; did you mean security.protocol"):
        login.read_security(tmp_path / "c", {})


def test_a_misspelt_variable_is_refused_without_its_value(monkeypatch):
    monkeypatch.setenv("STABLELOG_SASL_PASWORD", SECRET)
    with pytest.raises(
        UsageError, match=r"PASWORD is not .+; did you mean STABLELOG_SASL_PASSWORD"
    ) as refused:
        login.read_security(None, {})
    assert SECRET not in str(refused.value)


def test_the_mark_of_windows_at_the_beginning_of_a_file_is_no_part_of_a_name(tmp_path):
    (tmp_path / "c").write_bytes(b"\xef\xbb\xbfsecurity.protocol=SSL\r\n")
    assert login.read_security(tmp_path / "c", {}) == read_security_settings({"security.protocol": "SSL"})


@pytest.mark.extended
def test_words_replace_the_settings_of_the_file(server, tmp_path):
    settings = {**server.settings("SASL_SSL"), "ssl.truststore.location": "/nowhere"}
    words = ("topics", "list", "--command-config", written(tmp_path / "c", settings))
    assert "/nowhere" in run(*words, bootstrap=server.at["SASL_SSL"]).stderr
    trust = f"ssl.truststore.location={server.certificates.trust}"
    done = run(*words, "-X", trust, bootstrap=server.at["SASL_SSL"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders" in done.stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "ssl.ca.location=x",
            "-X: ssl.ca.location is a name of librdkafka; Kafka's name is ssl.truststore.location",
        ),
        ("ssl.key.pem=x", "-X: ssl.key.pem is a name of librdkafka; Kafka's name is ssl.keystore.key"),
        (
            "sasl.mechanisms=PLAIN",
            "-X: sasl.mechanisms is a name of librdkafka; Kafka's name is sasl.mechanism",
        ),
        (f"sasl.password={SECRET}", "-X sasl.password is a secret"),
        (f"{SECRET}", "-X takes one setting: write name=value"),
        ("security.protocl=SSL", "unknown; did you mean security.protocol"),
        ("linger.ms=5", "the security setting linger.ms is unknown"),
    ],
)
def test_words_that_are_no_setting_by_kafkas_name_are_refused_and_no_secret_is_told(word, message):
    with pytest.raises(UsageError) as refused:
        login.read_security(None, {}, [word])
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_profile_has_the_names_of_kafka():
    with pytest.raises(
        UsageError, match=r"the profile: ssl\.ca\.location is .+ name is ssl\.truststore\.location"
    ):
        login.read_security(None, {"security.protocol": "SSL", "ssl.ca.location": "x"})


def test_a_profile_with_settings_that_are_no_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "stablelog").mkdir()
    (tmp_path / "stablelog" / "profiles.toml").write_text('[p]\nbootstrap="h:1"\nsettings = 5\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    from stablelog.cli.profiles import read_profile

    with pytest.raises(UsageError, match="write a table with security settings"):
        read_profile("p", needs_bootstrap=True)
