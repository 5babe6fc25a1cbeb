"""Commands find their broker by the command line, the environment or a profile."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

import stablelog
from stablelog import cli
from stablelog.cli.broker import TIMEOUT_S, WAIT_MIN_S, CommandBroker, connect
from stablelog.cli.exit_codes import NoBrokerError
from stablelog.errors import UsageError
from tests.clients.drivers import unique
from tests.commands import run

GONE = "127.0.0.1:1"


@contextlib.contextmanager
def silent():
    """The address of a listener that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_answers_comes_first(stablelog_broker):
    at = stablelog_broker.bootstrap
    with silent() as quiet:
        broker = CommandBroker([GONE, quiet, at], timeout_s=60)
        assert broker.reach() == f"{at},{GONE},{quiet}"
        assert broker.reach() == f"{at},{GONE},{quiet}"
        with connect(broker.reach()) as connection:
            assert connection.address == at


@pytest.mark.parametrize("timeout_s", [0, 0.2])
def test_a_silent_listener_is_no_broker(timeout_s):
    with silent() as quiet:
        began_s = time.monotonic()
        with pytest.raises(NoBrokerError, match=f"no broker responds at {quiet} within {timeout_s} s"):
            CommandBroker([quiet], timeout_s).reach()
        assert time.monotonic() - began_s < 2


@pytest.mark.parametrize(("timeout_s", "deadline_s"), [(2.0, 10.0), (120.0, 120.0)])
def test_a_call_may_take_as_long_as_the_timeout(stablelog_broker, timeout_s, deadline_s):
    """Also one request of it: a topic with thousands of partitions is created by one request."""
    with CommandBroker([stablelog_broker.bootstrap], timeout_s).cluster() as cluster:
        _, (_, _, timeout_s, *_) = cluster.__reduce__()
        assert (cluster.deadline_s, timeout_s) == (deadline_s, deadline_s)


@pytest.mark.parametrize(
    ("timeout_s", "spent_s", "wait_s"),
    [
        (2.0, 0.0, 2.0),
        (2.0, 0.5, 1.5),  # the start of the command counts
        (2.0, 1.75, 0.5),  # a broker has the time to answer
        (2.0, 10.0, 0.5),
        (60.0, 1.0, 59.0),
        (0.25, 1.0, 0.25),  # it is asked for less
        (0.0, 1.0, 0.0),
    ],
)
def test_the_timeout_of_a_command_counts_from_its_start(timeout_s, spent_s, wait_s):
    assert CommandBroker([GONE], timeout_s, spent_s).wait_s == wait_s


def test_a_command_gives_up_within_three_seconds_unless_it_is_asked_to_wait(monkeypatch):
    began_s = time.monotonic() - 1
    monkeypatch.setattr(cli, "STARTED_S", began_s)
    broker = CommandBroker.from_options([GONE], None, None)
    assert broker.timeout_s == TIMEOUT_S
    assert began_s + 1 + broker.wait_s <= began_s + TIMEOUT_S < began_s + 3
    monkeypatch.setattr(cli, "STARTED_S", began_s - 100)
    assert CommandBroker.from_options([GONE], None, None).wait_s == WAIT_MIN_S
    assert CommandBroker.from_options([GONE], None, 60.0).timeout_s == 60


def test_the_modules_that_few_commands_need_are_imported_on_demand():
    program = (
        "import sys; sys.modules['hypothesis'] = None; import stablelog.cli.commands; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "stablelog.cli.commands" in modules
    assert not modules & {"asyncio", "confluent_kafka", "importlib.metadata", "stablelog.client", "tomllib"}


@pytest.mark.extended
def test_a_broker_that_starts_within_the_timeout_is_reached(tmp_path):
    with stablelog.serve(tmp_path / "data") as served:
        served.kill()
        reached = []
        waiting = threading.Thread(
            target=lambda: reached.append(CommandBroker([served.bootstrap], timeout_s=120).reach())
        )
        waiting.start()
        served.start()
        waiting.join(120)
        assert reached == [served.bootstrap]


@pytest.mark.parametrize("address", ["here", "here:port", ""])
def test_an_invalid_address_is_named(address):
    with pytest.raises(UsageError, match="write host:port"):
        CommandBroker([address]).reach()


# -- the command line, the environment and profiles -------------------------------------------------------------------


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Write the file of the profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "stablelog").mkdir()
    return (tmp_path / "stablelog" / "profiles.toml").write_text


def test_addresses_are_given_with_commas_and_by_repetition():
    broker = CommandBroker.from_options(["a:1, b:2", "c:3", "a:1,"], None, None)
    assert broker.addresses == ["a:1", "b:2", "c:3"]


@pytest.mark.extended
def test_each_option_comes_from_the_first_place_that_has_it(profiles, monkeypatch, stablelog_broker):
    at, name = stablelog_broker.bootstrap, unique("named")
    assert run("topics", "create", name, bootstrap=f"{GONE},{at}").returncode == 0
    profiles(
        f'[here]\nbootstrap = ["{GONE}", "{at}"]\ntimeout = 60\n[gone]\nbootstrap = "{GONE}"\ntimeout = 0.1\n'
    )

    monkeypatch.delenv("STABLELOG_TIMEOUT")

    def reaches(*words):
        done = run("topics", "list", *words)
        return name in done.stdout if done.returncode == 0 else done.stderr.partition(" (")[0]

    no_broker = f"stablelog: no broker responds at {GONE} within 0.1 s"
    assert reaches("--profile", "here") is True
    assert reaches("--profile", "gone") == no_broker
    monkeypatch.setenv("STABLELOG_PROFILE", "gone")
    assert reaches() == no_broker
    monkeypatch.setenv("STABLELOG_BOOTSTRAP", at)
    assert reaches("--timeout", "60") is True
    assert reaches("--bootstrap", GONE) == no_broker
    assert reaches("--bootstrap", GONE, "--bootstrap", at, "--timeout", "60") is True
    monkeypatch.setenv("STABLELOG_TIMEOUT", "0.2")
    assert reaches("--bootstrap", GONE) == no_broker.replace("0.1 s", "0.2 s")


def test_a_profile_may_lack_what_an_option_gives(profiles):
    profiles("[slow]\ntimeout = 60\n")
    assert CommandBroker.from_options(["a:1"], "slow", None).timeout_s == 60
    assert CommandBroker.from_options(["a:1"], "slow", 2.0).timeout_s == 2
    with pytest.raises(UsageError, match=r"profile 'slow' in .*profiles.toml has no key bootstrap"):
        CommandBroker.from_options(None, "slow", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tests]\n", "there is no profile 'test' in .*profiles.toml; did you mean tests?"),
        ("test = 1\n", "profile 'test' in .* is not a table"),
        ("[test]\nbootsrap = 'a:1'\n", "has the unknown key 'bootsrap'; did you mean bootstrap?"),
        ("[test]\nbootstrap = 1\n", "bootstrap of profile 'test' in .* is not valid"),
        ("[test]\nbootstrap = []\n", "bootstrap of profile 'test' in .* is not valid"),
        ("[test]\nbootstrap = ['a:1', 2]\n", "bootstrap of profile 'test' in .* is not valid"),
        ("[test]\nbootstrap = 'a:1'\ntimeout = -1\n", "timeout of profile 'test' in .* is not valid"),
        ("[test]\nbootstrap = 'a:1'\ntimeout = true\n", "timeout of profile 'test' in .* is not valid"),
        ("[test\n", "profiles.toml is not a TOML file: "),
    ],
)
def test_a_profile_that_is_not_valid_is_refused(profiles, text, message):
    profiles(text)
    with pytest.raises(UsageError, match=message):
        CommandBroker.from_options(None, "test", None)


def test_a_file_of_profiles_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"no profile 'test': .*profiles.toml does not exist"):
        CommandBroker.from_options(None, "test", None)
    (tmp_path / "stablelog" / "profiles.toml").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"profiles.toml cannot be read: Is a directory"):
        CommandBroker.from_options(None, "test", None)


def test_profiles_are_in_the_home_directory_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config" / "stablelog").mkdir(parents=True)
    (tmp_path / ".config" / "stablelog" / "profiles.toml").write_text("[test]\nbootstrap = 'a:1'\n")
    assert CommandBroker.from_options(None, "test", None).addresses == ["a:1"]
