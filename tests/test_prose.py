"""The sample of prose, and the table of its ratings."""

import ast

import pytest

from tests import prose

SOURCE = '''"""The module explains what it is for."""

LIMIT = 5  # Requests in flight of one connection.
# The first line of a comment goes on
# in the second line of it.
# -- a heading of a section --


def refuse(name):
    """Refuse a request with a clear reason."""
    log.warning("the topic %s is not there any more", name)
    raise RefusedError(code, f"there is no topic {name!r} in the list")
'''


def test_docstrings_are_found_in_modules_and_functions():
    assert [(text, of) for _, text, of in prose.docstrings(ast.parse(SOURCE))] == [
        ("The module explains what it is for.", ""),
        ("Refuse a request with a clear reason.", "`refuse(name)`"),
    ]


def test_comments_on_lines_that_follow_each_other_are_one():
    assert prose.comments(SOURCE) == [
        (3, "Requests in flight of one connection.", "`LIMIT = 5`"),
        (4, "The first line of a comment goes on in the second line of it.", ""),
    ]


def test_messages_of_the_log_and_of_errors_are_found():
    assert [text for _, text in sorted(prose.messages(ast.parse(SOURCE)))] == [
        "'the topic %s is not there any more'",
        "f'there is no topic {name!r} in the list'",
    ]


def test_sentences_of_paragraphs_lists_and_tables_are_found_without_code():
    text = """# A heading of many words

The broker listens on a port. It takes
any free port.

    stablelog serve --data DIR --port 0 here

| name | what it does |
|---|---|
| `x` | The table says that it works. Short. |

- The list has one fact for each item.
"""
    found = list(prose.sentences(text))
    assert [sentence for sentence, _ in found] == [
        "The broker listens on a port.",
        "It takes any free port.",
        "The table says that it works.",
        "The list has one fact for each item.",
    ]
    heading = "# A heading of many words"
    assert [shown for _, shown in found] == [
        f"{heading}\n>>The broker listens on a port.<< It takes any free port.",
        f"{heading}\nThe broker listens on a port. >>It takes any free port.<<",
        f"{heading}\n| name | what it does |\n| `x` | >>The table says that it works.<< Short. |",
        f"{heading}\nThe broker listens on a port. It takes any free port.\n- >>The list has one fact for each item.<<",
    ]


def shown(text):
    return [around for _, around in prose.sentences(text)]


def test_a_row_is_shown_with_the_columns_of_its_own_table():
    first = "| option | meaning |\n|---|---|\n| `a` | this option does one thing |\n"
    second = (
        "| row | what is measured | whose time |\n|---|---|---|\n| `b` | `c` | the process that reads it |\n"
    )
    assert shown(f"{first}\n{second}") == [
        "| option | meaning |\n| `a` | >>this option does one thing<< |",
        "| row | what is measured | whose time |\n| `b` | `c` | >>the process that reads it<< |",
    ]


def test_the_marks_stand_around_the_sentence_and_not_around_equal_words_before_it():
    table = "| a | b |\n|---|---|\n| the file is removed at once | the file is removed |\n"
    assert shown(table)[1] == "| a | b |\n| the file is removed at once | >>the file is removed<< |"


def test_no_sentence_begins_within_code():
    text = "First comes `topic_id: ` and then `version: Z. Y` comes."
    assert shown(text) == [f">>{text}<<"]


def test_a_cell_of_names_only_is_not_drawn():
    table = "| question | look in |\n|---|---|\n| Where does an append go? | `log.partition`, `log.append`, `log.writer` |\n"
    assert [sentence for sentence, _ in prose.sentences(table)] == ["Where does an append go?"]


def test_a_wrapped_line_that_begins_with_a_number_continues_its_sentence():
    assert shown("The ratio falls to\n0.5 in this case. Then\n-1 is the answer to it.") == [
        ">>The ratio falls to 0.5 in this case.<< Then -1 is the answer to it.",
        "The ratio falls to 0.5 in this case. >>Then -1 is the answer to it.<<",
    ]


def test_an_item_of_a_list_is_shown_below_the_item_that_its_list_is_a_part_of():
    text = "These things are measured:\n\n1. *A* is the one that counts:\n   - its part is small here\n2. *B* is of no use.\n"
    assert shown(text) == [
        ">>These things are measured:<<",
        "These things are measured:\n1. >>*A* is the one that counts:<<",
        "1. *A* is the one that counts:\n- >>its part is small here<<",
        "These things are measured:\n2. >>*B* is of no use.<<",
    ]


@pytest.mark.night
def test_a_seed_draws_the_same_sample_again_with_as_many_items_as_it_says():
    drawn = list(prose.sample(prose.ROOT, 7))
    assert drawn == list(prose.sample(prose.ROOT, 7))
    assert drawn != list(prose.sample(prose.ROOT, 8))
    names = [name.rpartition("-")[0] for name, _, _ in drawn]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    assert counts.pop("code") == prose.CODE_COUNT
    assert counts.pop("messages") == prose.MESSAGE_COUNT
    assert {"readme", "client", "spark", "protocol", "decisions"} <= set(counts)
    assert all(0 < count <= prose.SENTENCE_COUNT for count in counts.values())


def test_the_table_has_the_mean_of_each_group_over_the_readers():
    assert prose.table(["code-1 1\ncode-2 0.5\nspark-1 0 what is it", "code-1 1\ncode-2 0.5\nspark-1 1"]) == {
        "code": 0.75,
        "spark": 0.5,
    }


@pytest.mark.parametrize(
    "ratings", [["code-1 2"], ["code-1"], ["code-1 1", "code-2 1"], ["code-1 1\ncode-1 1"]]
)
def test_ratings_that_are_not_whole_are_refused(ratings):
    with pytest.raises(ValueError, match=r"rat|name"):
        prose.table(ratings)
