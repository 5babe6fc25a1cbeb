"""Tables show what is there: whole where they are piped, and obeyed by no terminal."""

from stablelog.cli.output import print_table, printable


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
