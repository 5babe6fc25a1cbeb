"""The rows of the commands."""

import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from pyarrow import parquet

import stablelog
from stablelog.cli import consume, disk_watch, record_reader
from tests.advice.steps import command, doing, row, steps
from tests.cli.test_repair import LOG, flip, positions, run_on_terminal
from tests.clients.drivers import unique
from tests.commands import run
from tests.spark.objects.stored import in_s3
from tests.waiting import until

ADD = "acls add --allow --principal User:$new"


def file(name, content):
    """Write a file of the user."""

    def step(user):
        path = user.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else user.fill(content).encode())
        user[name.partition(".")[0]] = path

    return step


def _has_a_group(user):
    return run("consume", user["topic"], "--group", user["group"], bootstrap=user.bootstrap)


def _rows_of_parquet(user):
    user["rows"] = user.path / "rows.parquet"
    parquet.write_table(pa.table({"value": ["1"]}), user["rows"])


def _parquet_without_pyarrow(user):
    _rows_of_parquet(user)
    hidden = user.path / "hidden" / "pyarrow"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError")
    words = ["produce", user["topic"], "--input", "parquet", "--file", user["rows"]]
    return subprocess.run(
        [sys.executable, "-m", "stablelog", *words, "--bootstrap", user.bootstrap],
        env={"PYTHONPATH": str(hidden.parent)},
        capture_output=True,
        text=True,
        check=False,
    ).stderr


def _install_parquet(_user):
    """An installation is not tried; the extra is the one that has the library."""
    assert any(
        re.match(r"pyarrow.*extra == ['\"]parquet['\"]", each)
        for each in importlib.metadata.requires("stablelog")
    )


def _is_open(user):
    """A transaction that a producer has left open; `$start` is its first offset."""
    user["open"] = unique("open")
    producer = user.producer(**{"transactional.id": user["open"]})
    producer.init_transactions(60)
    producer.begin_transaction()
    reports = []
    producer.produce(user["topic"], b"open", on_delivery=lambda _, message: reports.append(message.offset()))
    assert producer.flush(60) == 0
    user["start"] = reports[0]


UNREADABLE, STOPPED, TIERS = "unreadable partitions", "stopped brokers", "tiers"


def _first_member(user):
    user.first = user.member(user["topic"], user["group"])


def _follow_until_the_member_leaves(user):
    words = ["consume", user["topic"], "--group", user["group"], "--follow", "--count", "1"]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(run, *words, bootstrap=user.bootstrap)

        def has_joined():
            shown = run("groups", "describe", user["group"], "--json", bootstrap=user.bootstrap)
            return json.loads(shown.stdout)["members"] == 2

        until(has_joined, "the command has not joined")
        user.first.close()
        done = following.result()
    assert done.returncode == 0, done.stderr
    return done.stdout


def _sees_its_member(user):
    shown = run("groups", "describe", user["group"], bootstrap=user.bootstrap)
    assert "a-member" in shown.stdout


def _commits_offsets_in_a_transaction(user):
    user["open"] = unique("open")
    user.open = user.producer(**{"transactional.id": user["open"]})
    user.open.init_transactions(60)
    user.open.begin_transaction()
    reader = user.member(user["topic"], user["group"])
    offsets = [TopicPartition(user["topic"], 0, 1)]
    user.open.send_offsets_to_transaction(offsets, reader.metadata(), 60)
    reader.close()
    assert run("groups", "delete", user["group"], bootstrap=user.bootstrap).returncode == 2


def _sees_its_transaction(user):
    assert user["open"] in run("transactions", "list", bootstrap=user.bootstrap).stdout
    user.open.abort_transaction(60)


def _consume_half(user):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk_watch, "SILENCE_S", 0.2)
        patched.setattr(record_reader, "UNREADABLE_S", 1.0)
        consume.consume("half", "read_committed", bootstrap=[user["unreadable"]])


def _follow_until_half_is_whole(user):
    words = ["consume", "half", "--follow", "--count", "120"]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(run, *words, bootstrap=user["unreadable"])
        user.fixture("unreadable").mend()
        done = following.result()
    assert done.returncode == 0, done.stderr
    return f"{len(done.stdout.splitlines())} records"


def _list_s3(user):
    with in_s3(user["store"]) as (server, _):
        options = [word for pair in server.options.items() for word in ("--option", "=".join(pair))]
        done = run("storage", "ls", "s3://bucket/prefix", "--allow-http", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rotted(user):
    """A changed record in a sealed segment: a start serves what is whole."""
    path = user.copy(user.fixture("rolled"), "sealed") / "t-0" / LOG
    flip(path, positions(path)[1] + 65)


def _as_shown(user):
    """Run the command that the report shows."""
    shown = run("repair", user["sealed"]).stdout
    (words,) = re.findall(r"To cut it: stablelog (.*)", shown)
    done = run(*shlex.split(words), "--yes")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _damaged(user):
    """The third of six batches is changed."""
    shutil.rmtree(user.path / "whole", ignore_errors=True)
    path = user.copy(user.fixture("stopped"), "whole") / "t-0" / LOG
    flip(path, positions(path)[2] + 30)


def _repair_on_a_terminal(user):
    code, output = run_on_terminal(user.path / "whole", b"y\n")
    assert code == 0, output
    return output.decode()


def _without_list(user):
    (user.path / "whole" / "cluster.json").unlink()


def _with_older_list(user):
    shutil.copy(user.fixture("stopped") / "cluster.json", user.path / "whole")


def _with_half_a_commit_log(user):
    """One of two partitions of the commit log has a damaged file."""
    data = user.copy(user.fixture("committed") / "data", "commits")
    shutil.copytree(data / "__transaction_state-0", data / "__transaction_state-1")
    (data / "__transaction_state-0" / "log-start-offset").write_text("garbage")


def _with_the_commit_log(user):
    shutil.rmtree(user.path / "commits" / "__transaction_state-0")
    kept = user.fixture("committed") / "data" / "__transaction_state-0"
    shutil.copytree(kept, user.path / "commits" / "__transaction_state-0")


def _start_the_restored(user):
    settings = {"node.id": "1", "stablelog.remote.url": user["store"]}
    with stablelog.serve(user.path / "restored", settings=settings) as broker:
        return run("topics", "list", bootstrap=broker.bootstrap).stdout


CLI = [
    # -- acls ------------------------------------------------------------------------------------------------------
    row(
        "is not valid: use one of {names}",
        command(f"{ADD} --operation reed --topic t"),
        command(f"{ADD} --operation read --topic t"),
        seen="added 1 ACL",
    ),
    row(
        "the resource is missing: use --topic",
        command(f"{ADD} --operation describe"),
        command(f"{ADD} --operation describe --topic t"),
        command(f"{ADD} --operation describe --group g"),
        command(f"{ADD} --operation describe --transactional-id x"),
        command(f"{ADD} --operation describe --cluster"),
        seen="added 1 ACL",
    ),
    row(
        "--operation cannot be combined with --producer",
        command(f"{ADD} --operation read --producer --topic t"),
        command(f"{ADD} --operation read --topic t"),
        command(f"{ADD} --producer --topic t"),
        seen="added",
    ),
    row(
        "--producer and --consumer need --topic",
        command(f"{ADD} --producer"),
        command(f"{ADD} --producer --topic t"),
        seen="added 3 ACLs",
    ),
    row(
        "consume prints one topic, so call it for each",
        command("consume $ordered $topic"),
        steps(command("consume $ordered"), command("consume $topic")),
        command("cut $ordered"),
    ),
    row(
        "--consumer needs --group",
        command(f"{ADD} --consumer --topic t"),
        command(f"{ADD} --consumer --topic t --group g"),
        seen="added 3 ACLs",
    ),
    row(
        "with these options: name an operation with --operation",
        command(f"{ADD} --producer --topic t --group g"),
        steps(command(f"{ADD} --producer --topic t"), command(f"{ADD} --operation read --group g")),
        seen="added 1 ACL",
    ),
    row(
        "give either --allow or --deny",
        command("acls add --principal User:$new --operation read --topic t"),
        command("acls add --allow --principal User:$new --operation read --topic t"),
        command("acls add --deny --principal User:$new --operation read --topic t"),
        seen="added 1 ACL",
    ),
    row(
        "--principal is missing, such as User:alice",
        command("acls add --allow --operation read --topic $new"),
        command("acls add --allow --principal User:alice --operation read --topic $new"),
        command("acls add --allow --principal User:* --operation read --topic $new"),
        seen="added 1 ACL",
    ),
    row(
        "name the ACLs to remove, such as by --principal or --topic",
        steps(command(f"{ADD} --topic $topic"), command("acls remove --execute")),
        command("acls remove --principal User:$new"),
        command("acls remove --topic $topic --execute"),
        seen=r"ACLs to remove\n(?s:.*)User:new",
    ),
    row(
        "dry run: nothing was changed; --execute does it",
        steps(command(f"{ADD} --topic $topic"), command("acls remove --topic $topic")),
        steps(command("acls remove --topic $topic --execute"), command("acls list --topic $topic")),
        seen="ACLs: none",
    ),
    # -- the broker and the login ----------------------------------------------------------------------------------
    row(
        "start it, name another address with --bootstrap, or wait longer with --timeout",
        command("topics list --bootstrap 127.0.0.1:1 --timeout 0.2"),
        command("topics list --bootstrap $bootstrap"),
        command("topics list --bootstrap $bootstrap --timeout 60"),
    ),
    row(
        'such as "security.protocol" = "SSL". The names are in quotation marks',
        steps(
            file(
                "stablelog/profiles.toml",
                '[p]\nbootstrap = "$bootstrap"\nsettings = {security.protocol = "SSL"}\n',
            ),
            command("topics list --profile p", XDG_CONFIG_HOME="$path"),
        ),
        steps(
            file(
                "stablelog/profiles.toml",
                '[p]\nbootstrap = "$bootstrap"\nsettings = {"security.protocol" = "PLAINTEXT"}\n',
            ),
            command("topics list --profile p", XDG_CONFIG_HOME="$path"),
        ),
    ),
    # -- consume ---------------------------------------------------------------------------------------------------
    row(
        "is not valid: read_committed or read_uncommitted",
        command("consume $topic --isolation committed"),
        command("consume $topic --isolation read_committed"),
        command("consume $topic --isolation read_uncommitted"),
        seen="three",
    ),
    row(
        "is given by the option {OPTIONS[name]}",
        command("consume $topic -X group.id=$group"),
        command("consume $topic --group $group"),
    ),
    row(
        "group.instance.id has no effect without --group",
        command("consume $topic -X group.instance.id=one"),
        command("consume $topic --group $group -X group.instance.id=one"),
        command("consume $topic"),
    ),
    row(
        "--group '' is not valid",
        command("consume $topic --group ''"),
        command("consume $topic --group g"),
        seen="three",
    ),
    row(
        "is not valid with --group: a group continues at its committed offsets",
        command("consume $topic --group $group --offset 1"),
        command("consume $topic --group $group --offset earliest"),
        seen="one\ntwo\nthree",
    ),
    row(
        "--partition is not valid with --group",
        command("consume $topic --group $group --partition 0"),
        command("consume $topic --group $group"),
        command("consume $topic --partition 0"),
        seen="three",
    ),
    row(
        "--format is not valid with --json",
        command("consume $topic --format %s --json"),
        command("consume $topic --format %s"),
        command("consume $topic --json"),
        seen="three",
    ),
    row(
        "has an escape that is not supported: use {fields}",
        command(r"consume $topic --format '%s\q'"),
        command(r"consume $topic --format '%s\n'"),
        seen="one\ntwo\nthree",
    ),
    row(
        "is not valid: {topic} ends at offset {end_max}",
        command("consume $topic --offset 4"),
        command("consume $topic --offset 3"),
        command("consume $topic --offset 2"),
    ),
    row(
        "is not valid: earliest (beginning)",
        command("consume $topic --offset first"),
        command("consume $topic --offset earliest"),
        command("consume $topic --offset 0"),
        command("consume $topic --offset -3"),
        command("consume $topic --offset @2020-01-31T12:00:00Z"),
        seen="one\ntwo\nthree",
    ),
    row(
        "is not valid: a time is milliseconds since 1970",
        command("consume $topic --offset @yesterday"),
        command("consume $topic --offset @1700000000000"),
        command("consume $topic --offset @2020-01-31T12:00:00Z"),
        command("consume $topic --offset @2020-01-31T12:00:00"),
        seen="one\ntwo\nthree",
    ),
    row(
        "is not valid: the time is before 1970",
        command("consume $topic --offset @1969-12-31T23:59:59Z"),
        command("consume $topic --offset @1970-01-01T00:00:00Z"),
        seen="one\ntwo\nthree",
    ),
    # -- groups ----------------------------------------------------------------------------------------------------
    row(
        "give either --to or --shift",
        steps(_has_a_group, command("groups reset $group")),
        command("groups reset $group --to earliest --execute"),
        command("groups reset $group --shift 1 --execute"),
        seen="new offsets of group",
    ),
    row(
        "--partition needs one --topic",
        steps(_has_a_group, command("groups reset $group --to earliest --partition 0")),
        command("groups reset $group --to earliest --partition 0 --topic $topic"),
        seen="new offsets of group",
    ),
    row(
        "name its topics with --topic, and use --to",
        command("groups reset $new --shift 1"),
        command("groups reset $new --topic $topic --to earliest --execute"),
        seen="new offsets of group",
    ),
    # -- produce ---------------------------------------------------------------------------------------------------
    row(
        "--transactional-id '' is not valid",
        command("produce $topic --transactional-id '' --transaction", given="four\n"),
        command("produce $topic --transactional-id $new --transaction", given="four\n"),
        seen="wrote 1 record",
    ),
    row(
        "--transaction is not valid with --batch",
        command("produce $topic --transaction --batch 10", given="four\n"),
        command("produce $topic --transaction", given="four\n"),
        command("produce $topic --batch 10", given="four\n"),
        seen="wrote 1 record",
    ),
    row(
        "--input parquet needs --file",
        steps(_rows_of_parquet, command("produce $topic --input parquet")),
        command("produce $topic --input parquet --file $rows"),
        seen="wrote 1 record",
    ),
    row(
        "reading Parquet needs pyarrow: pip install",
        doing(_parquet_without_pyarrow),
        steps(doing(_install_parquet), command("produce $topic --input parquet --file $rows")),
        seen="wrote 1 record",
    ),
    row(
        "is not valid: write NAME=VALUE",
        command("produce $topic --header a", given="four\n"),
        command("produce $topic --header a=b", given="four\n"),
        seen="wrote 1 record",
    ),
    row(
        "Make the record smaller or the setting larger",
        command("produce $topic", given="x" * 2_000_000),
        command("produce $topic", given="x"),
        steps(
            command("topics alter $topic --config max.message.bytes=4000000"),
            command("produce $topic", given="x" * 2_000_000),
        ),
        seen="wrote 1 record",
    ),
    # -- quotas, topics, transactions ------------------------------------------------------------------------------
    row(
        "contradict each other: give one of them",
        command("quotas set --user $new --default-user producer_byte_rate=1048576"),
        command("quotas set --user $new producer_byte_rate=1048576"),
        command("quotas remove --default-user"),
    ),
    row(
        "the options name no entity",
        command("quotas set producer_byte_rate=1048576"),
        command("quotas set --user $new producer_byte_rate=1048576"),
        command("quotas set --client-id $new producer_byte_rate=1048576"),
        command("quotas set --ip 10.0.0.1 connection_creation_rate=100"),
        command("quotas set --default-client-id producer_byte_rate=1000000000"),
        seen="set ",
    ),
    row(
        "nothing to change of {name}: give --config name=value or --partitions",
        command("topics alter $topic"),
        command("topics alter $topic --config retention.ms=86400000"),
        command("topics alter $topic --partitions 2"),
    ),
    row(
        "nothing to abort: give a transactional id",
        command("transactions abort"),
        steps(_is_open, command("transactions abort $open")),
        steps(_is_open, command("transactions abort --topic $topic --partition 0 --start-offset $start")),
        seen="aborted the transaction",
    ),
    # -- users -----------------------------------------------------------------------------------------------------
    row(
        "--mechanism {name} is not valid",
        command("users add $new --mechanism PLAIN --password-file -", given="secret"),
        command("users add $new --mechanism SCRAM-SHA-256 --password-file -", given="secret"),
        command("users add $new --mechanism SCRAM-SHA-512 --password-file -", given="secret"),
        seen="set the password of",
    ),
    row(
        "--node-id needs --data",
        command("users add alice --node-id 3 --password-file -", given="secret"),
        command("users add alice --node-id 3 --data $path/data --password-file -", given="secret"),
        seen="set the password of",
    ),
    row(
        "give either --password-file or --password-env",
        command("users add $new --password-file - --password-env HOME", given="secret"),
        command("users add $new --password-file -", given="secret"),
        command("users add $new --password-env HOME"),
        seen="set the password of",
    ),
    row(
        "--password-env: the environment has no variable",
        command("users add $new --password-env NO_SUCH_VARIABLE"),
        command("users add $new --password-env HOME"),
        seen="set the password of",
    ),
    row(
        "no password: give --password-file FILE",
        command("users add $new"),
        steps(file("password", "secret\n"), command("users add $new --password-file $password")),
        command("users add $new --password-file -", given="secret\n"),
        command("users add $new --password-env HOME"),
        seen="set the password of",
    ),
    row(
        "--password-file {file} cannot be read: {error.strerror}",
        command("users add $new --password-file $path/none"),
        steps(file("none", "secret"), command("users add $new --password-file $path/none")),
        seen="set the password of",
    ),
    row(
        "--password-file {file} is not UTF-8",
        steps(file("password", b"\xff"), command("users add $new --password-file $password")),
        steps(file("password", "sécret"), command("users add $new --password-file $password")),
        seen="set the password of",
    ),
    row(
        "--password-file {file} has more than one line",
        steps(file("password", "one\ntwo\n"), command("users add $new --password-file $password")),
        steps(file("password", "one\n"), command("users add $new --password-file $password")),
        seen="set the password of",
    ),
    # -- groups with members ---------------------------------------------------------------------------------------
    row(
        "other members of group {self._source.group} read all partitions; with --follow",
        steps(_first_member, command("consume $topic --group $group")),
        doing(_follow_until_the_member_leaves),
        seen="one",
    ),
    row(
        "Stop the members (`stablelog groups describe` shows them)",
        steps(_first_member, command("groups delete $group")),
        steps(_sees_its_member, lambda user: user.first.close(), command("groups delete $group")),
        steps(_commits_offsets_in_a_transaction, _sees_its_transaction, command("groups delete $group")),
        seen="deleted",
        night=True,
    ),
    # -- what cannot be read ---------------------------------------------------------------------------------------
    row(
        "Name other partitions with --partition",
        command("consume half --offset -2 --bootstrap $unreadable"),
        command("consume half --offset -2 --partition 0 --bootstrap $unreadable"),
        seen="0058",
        group=UNREADABLE,
    ),
    row(
        "With --follow, consume waits until it can",
        doing(_consume_half),
        doing(_follow_until_half_is_whole),
        seen="120 records",
        group=UNREADABLE,
    ),
    # -- storage, repair and restore -------------------------------------------------------------------------------
    row(
        "--option {option} is not NAME=VALUE",
        command("storage ls $store --option region"),
        doing(_list_s3),
        group=TIERS,
    ),
    row(
        "with --at-first-damage, name the directory of one partition",
        steps(_rotted, command("repair $sealed --yes --at-first-damage")),
        command("repair $sealed/t-0 --yes --at-first-damage"),
        seen="A cut ends the log at offset 1",
        group=STOPPED,
    ),
    row(
        "A start accepts this damage: the broker answers reads",
        steps(_rotted, command("repair $sealed --yes")),
        doing(_as_shown),
        seen="A cut ends the log at offset 1",
        group=STOPPED,
    ),
    row(
        "nothing was changed: answer on a terminal, or agree with --yes",
        steps(_damaged, command("repair $whole")),
        doing(_repair_on_a_terminal),
        steps(_damaged, command("repair $whole --yes")),
        seen="A cut ends the log at offset 2",
        group=STOPPED,
    ),
    row(
        "Restore the list first; an older copy is sufficient",
        steps(_damaged, _without_list, command("repair $whole --yes")),
        steps(_with_older_list, command("repair $whole --yes")),
        seen="A cut ends the log at offset 2",
        group=STOPPED,
    ),
    row(
        "cannot be repaired. Run `stablelog repair` again once it is restored",
        steps(_with_half_a_commit_log, command("repair $commits --yes")),
        steps(_with_the_commit_log, command("repair $commits --yes")),
        seen="examined",
        group=STOPPED,
    ),
    row(
        "start the broker with the same settings, among them node.id=",
        command("restore $store --data $path/restored"),
        doing(_start_the_restored),
        seen="ordered",
        group=TIERS,
    ),
]
