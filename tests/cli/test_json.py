"""Each command with --json has the fields that docs/reference/commands.md names."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest
from typer.main import get_command

import stablelog
from stablelog.cli.commands import app
from stablelog.cli.storage import GARBAGE_COLUMNS
from stablelog.cli.transactions import HANGING_COLUMNS
from stablelog.client.blocking.cuts import PendingMarker
from stablelog.coordinators.transactions.restored_transactions import Torn
from stablelog.ops.restore_report import GroupAhead, LeftOut
from stablelog.ops.stored_partitions import ObjectFault
from tests import documented
from tests.broker.tiering.world import World
from tests.cli.test_cli import answer, opened
from tests.commands import COMMAND, run
from tests.waiting import until

# Each worker would run all commands for the fixture `documents`.
pytestmark = pytest.mark.xdist_group("documents")
DOCUMENT = documented.page("commands.md")
TABLE = DOCUMENT.partition("\n## JSON\n")[2].partition("\n## ")[0]
DOCUMENTED = {
    words: set(re.findall(r"`([^`]+)`", fields))
    for words, fields in re.findall(r"^\| `([^`]+)` \| (.*) \|$", TABLE, re.M)
}
LEADER_EPOCH_AT = 12  # in the header of a batch
# Objects whose keys are names of settings or groups, or columns of a file.
OPEN = (
    "configs",
    "rows[]",
    "torn_sequences",
    "commit_sequences",
    "settings",
    "default_settings",
    "group_settings",
    "versions.libraries",
)


def fields(value, path=""):
    """The paths of all values in a document, and the paths of its empty lists."""
    if isinstance(value, list):
        below = [fields(one, f"{path}[]") for one in value]
        empty = set() if value else {f"{path}[]"}
    elif isinstance(value, dict) and path not in OPEN:
        below = [fields(one, f"{path}.{name}" if path else name) for name, one in value.items()]
        empty = set()
    else:
        return {path}, set()
    found, empties = zip(*below, strict=True) if below else ((), ())
    return set().union(*found), empty.union(*empties)


@pytest.fixture(scope="module")
def documents(module_path):
    """The JSON of each command, by its words."""
    found = dict(_serve(module_path))
    acls = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with stablelog.serve(module_path / "data", **acls, stablelog_metrics_port=0) as broker:
        found |= _of_broker(broker.bootstrap)
        metrics = broker.log_tail(1000).partition("metrics are served at http://")[2].partition("/")[0]
        (found["health"],) = _answer("health", "--address", metrics)
        (found["doctor"],) = _answer(
            "doctor", "--data", module_path / "other", "--bootstrap", broker.bootstrap
        )
        (found["inspect"],) = _answer("inspect", broker.data / "b-0" / f"{0:020d}.log")
    shutil.copytree(module_path / "data", module_path / "copy")
    next((module_path / "copy" / "b-0").glob("*.timeindex")).unlink()
    (found["verify"],) = _answer("verify", module_path / "copy")
    (found["repair"],) = _answer("repair", _damaged(module_path / "copy"), "--yes")
    return found | dict(_of_store(module_path))


def _answer(*words):
    done = run(*map(str, words), "--json")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _serve(directory):
    command = [
        sys.executable,
        "-c",
        COMMAND,
        "serve",
        "--data",
        str(directory / "data"),
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
        yield "serve", json.loads(broker.stdout.readline())
        broker.terminate()
        assert broker.wait(60) == 0


def _of_broker(at):
    found = {}

    def note(words, *more, given=None):
        (found[words],) = answer(*words.split(), *more, bootstrap=at, given=given)

    note("acls add", "--allow", "--principal", "User:a", "--topic", "t")
    note("acls list")
    note("acls remove", "--principal", "User:a")
    note("topics create", "t", "--config", "stablelog.order=commit")
    note("produce", "t", "--transactional-id", "me", given="a\n")
    found["consume"] = answer("consume", "t", "--count", "1", "--group", "g", bootstrap=at)[0]
    answer(
        "produce",
        "t",
        "--input",
        "json",
        bootstrap=at,
        given='{"value": "v", "headers": [{"name": "a", "value": "1"}]}',
    )
    headed = answer("consume", "t", bootstrap=at)[-1]
    found["consume"]["headers"] = headed["headers"]
    bytes_ = (
        '{"key_base64": "/w==", "value_base64": "/w==", "headers": [{"name": "a", "value_base64": "/w=="}]}'
    )
    answer("topics", "create", "b", bootstrap=at)
    answer("produce", "b", "--input", "json", bootstrap=at, given=bytes_)
    # A field and its form for bytes are alternatives.
    found["consume"] = [found["consume"], answer("consume", "b", bootstrap=at)[0]]
    held = opened(at, "holder", "t")
    note("topics list")
    note("topics describe", "t")
    note("topics alter", "t", "--config", "retention.ms=-1")
    note("topics trim", "t", "--before", "1")
    until(lambda: answer("groups", "describe", "g", bootstrap=at)[0]["state"] == "empty", "the member stays")
    note("groups list")
    note("groups describe", "g")
    note("groups reset", "g", "--to", "earliest")
    note("groups delete", "g")
    note("config show", "--topic", "t")
    note("users add", "alice", "--password-file", "-", given="secret\n")
    note("users list")
    note("users remove", "alice")
    note("quotas set", "--user", "a", "producer_byte_rate=1000000")
    note("quotas list")
    note("quotas remove", "--user", "a", "producer_byte_rate")
    note("cut", "t")
    note("transactions list")
    note("transactions describe", "holder")
    note("transactions find-hanging")
    note("transactions abort", "holder")
    note("topics delete", "t")
    del held
    return found


def _damaged(data):
    """Damage the only batch of a log, so that a start refuses the log."""
    (log,) = (data / "b-0").glob("*.log")
    content = bytearray(log.read_bytes())
    content[LEADER_EPOCH_AT] ^= 1
    log.write_bytes(content)
    return data


def _of_store(directory):
    world = World()
    world.copy_all()
    for key, content in world.store_objects.objects.items():
        (directory / "store" / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / "store" / key).write_bytes(content)
    url = (directory / "store").as_uri()
    yield "storage check", _answer("storage", "check", url)[0]
    yield "storage ls", _answer("storage", "ls", url)[0]
    yield "restore", _answer("restore", url, "--data", directory / "restored")[0]
    yield "storage clean", _answer("storage", "clean", url)[0]
    next((directory / "store").rglob("*.log")).unlink()
    yield "storage verify", _answer("storage", "verify", url)[0]


def _commands(command, path=()):
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    if not names:
        yield " ".join(path), command
    for name in names:
        yield from _commands(command.get_command(None, name), (*path, name))


COMMANDS = dict(_commands(get_command(app)))


@pytest.mark.extended
@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_json_with_the_documented_fields(documents, words):
    assert "--json" in {name for parameter in COMMANDS[words].params for name in parameter.opts}
    document = documents[words]
    found, empty = fields(document)
    if words == "consume":  # a list of lines
        found, empty = {path.removeprefix("[].") for path in found}, set()
    # What an empty list would contain is documented, and not seen here.
    documented = {path for path in DOCUMENTED[words] if not any(path.startswith(name) for name in empty)}
    assert found == documented


@pytest.mark.parametrize(
    ("words", "path", "names"),
    [
        ("transactions find-hanging", "[]", [name.replace(" ", "_") for name in HANGING_COLUMNS]),
        ("cut", "holders[]", PendingMarker._fields),
        ("restore", "groups[]", GroupAhead._fields),
        ("restore", "torn[]", Torn._fields),
        ("restore", "left_out[]", LeftOut._fields),
        ("storage clean", "partitions[]", GARBAGE_COLUMNS),
        ("storage clean", "faults[]", [field.name for field in dataclasses.fields(ObjectFault)]),
        ("repair", "accepted[]", ("partition", "end_offset")),
    ],
)
def test_the_fields_of_lists_that_are_mostly_empty_are_documented(words, path, names):
    documented = {one for one in DOCUMENTED[words] if one.startswith(path)}
    assert documented == {f"{path}.{name}" for name in names}


def test_no_row_is_of_a_command_that_is_gone():
    assert sorted(DOCUMENTED) == sorted(COMMANDS)
