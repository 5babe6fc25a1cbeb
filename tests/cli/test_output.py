"""Tables show what is there: whole where they are piped, and obeyed by no terminal."""

import os
import subprocess
import sys

import pytest
from confluent_kafka import Producer

import stablelog
from stablelog.cli import output
from stablelog.cli.output import print_table, printable
from tests.commands import run


def test_a_piped_table_keeps_each_row_on_one_line(capsys):
    long = "a-topic-with-a-long-name." * 20
    print_table("topics", ["topic", "partitions"], [(long, 3)])
    assert any(long in line and "3" in line for line in capsys.readouterr().out.splitlines())
    print_table(long, ["n"], [(3,)])
    assert long in capsys.readouterr().out.splitlines()


def test_what_a_client_has_chosen_is_shown_and_not_obeyed(capsys):
    chosen = "[red]pay[/red] :smile: \x1b[2J\x07 bell\nnext \u202eleft"
    print_table("transactions", ["transactional id"], [(chosen,)])
    shown = capsys.readouterr().out
    assert "[red]pay[/red] :smile: \\x1b[2J\\x07 bell\\nnext \\u202eleft" in shown
    assert "\x1b" not in shown
    assert printable("Zürich 東京") == "Zürich 東京"


# -- output that cannot be written -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(module_path):
    """The directory of a stopped broker, whose files fill more than a pipe."""
    directory = module_path / "data"
    with stablelog.serve(directory) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(2000):
            producer.produce("t", b"%04d" % number * 16)
        assert producer.flush(60) == 0
        del producer
    return directory


COMMAND = [sys.executable, "-m", "stablelog.cli.main"]
FULL = "stablelog: standard output cannot be written: No space left on device\n"


def ended(stdout, *words):
    """How a command ends whose standard output this is: exit code, and what it says on stderr."""
    done = subprocess.run(
        [*COMMAND, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    "words", [["--help"], ["topics", "create", "--help"], ["verify"], ["inspect", "--records"]]
)
def test_a_full_output_is_one_line_and_exit_code_2(data, words):
    with open("/dev/full", "w") as full:
        assert ended(full, *words, *([] if "--help" in words else [str(data)])) == (2, FULL)


@pytest.mark.extended
@pytest.mark.parametrize("words", [["topics", "list"], ["consume", "t"]])
def test_a_full_output_ends_a_command_that_talks_to_a_broker(stablelog_broker, words):
    run("topics", "create", "t", bootstrap=stablelog_broker.bootstrap)  # unless it is there
    assert run("produce", "t", bootstrap=stablelog_broker.bootstrap, given="x\n").returncode == 0
    with open("/dev/full", "w") as full:
        assert ended(full, *words, "--bootstrap", stablelog_broker.bootstrap) == (2, FULL)


@pytest.mark.extended
@pytest.mark.parametrize("words", [["--help"], ["verify"], ["inspect", "--records"]])
def test_a_command_whose_reader_has_gone_ends_as_by_sigpipe_and_without_a_word(data, words):
    reading, writing = os.pipe()
    os.close(reading)
    found = ended(writing, *words, *([] if "--help" in words else [str(data)]))
    os.close(writing)
    assert found == (141, "")


@pytest.mark.extended
def test_a_command_without_standard_output_works(data):
    with (data.parent / "stderr").open("w+") as stderr:
        closed = ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "verify", str(data)]
        done = subprocess.run(closed, stderr=stderr, timeout=300, check=False)
        stderr.seek(0)
        assert (done.returncode, stderr.read()) == (0, "")


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (("topic", "partitions"), [("orders", 4), ("x", 12_000)]),
        (("a", "long name"), [(None, ""), (1, "x"), ("\x1b[31m", "two\nlines")]),
        (("state", "is open", "[bold]"), [("online", True, "[red]"), ("offline", False, ":smile:")]),
        (("one",), [("x" * 300,)]),
    ],
)
def test_a_table_in_a_pipe_is_that_of_rich(columns, rows, capsys, monkeypatch):
    """Without the import of rich, unless a cell has other characters than those of ASCII."""
    print_table("things", columns, rows)
    plain = capsys.readouterr().out
    monkeypatch.setattr(output, "is_plain", lambda *_arguments: False)
    print_table("things", columns, rows)
    assert plain == capsys.readouterr().out


def test_a_table_of_wide_characters_has_straight_edges(capsys):
    print_table("things", ("name", "count"), [("日本", 1), ("ab", 22)])
    assert "│ 日本 │     1 │" in capsys.readouterr().out
