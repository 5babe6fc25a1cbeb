"""Samples of the project's prose, for readers who rate whether they understand it at first reading.

    python -m tests.prose sample --seed 7 > sample.txt
    python -m tests.prose table ratings-1.txt ratings-2.txt ratings-3.txt

A sample has 80 docstrings and comments, 20 messages of errors and of the log, and 20 sentences of each document. The
decision records count as one document. Each is shown where a reader meets it: a docstring with the name and the
arguments of its function, a sentence in its paragraph or row. Each item has a name, such as `code-17`. A reader who
knows Kafka and not this code writes one line for each item, its name and its rating: 1 if the item was understood at
first reading, 0.5 at the second, 0 not without the code. The table has the mean of each group over all readers. The goal is
0.92 in each group.
"""

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE_COUNT, MESSAGE_COUNT, SENTENCE_COUNT = 80, 20, 20
WORD_COUNT_MIN = 4  # Shorter sentences and comments say nothing that could be hard to read.
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}
NOT_PROSE = re.compile(r"#\s*(?:type:|noqa|pragma|ruff:|mypy:|!|-- )")
# Code, and the tables that `make bench` writes: their rows are labels and no sentences.
LEFT_OUT = re.compile(r"^```.*?^```|<!-- figures -->.*?<!-- end of figures -->", re.M | re.S)
SENTENCE_END = re.compile(r"(?<=[.:!?])\s+(?=[A-Z`*\[])")


def docstrings(tree):
    """The docstrings of a module, of its classes and of its functions, with their lines and what they are of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text, _head(node)


def _head(node):
    """A function's name and arguments, as `help` shows them; a class's name; nothing of a module."""
    if isinstance(node, ast.Module):
        return ""
    arguments = "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"
    return f"`{node.name}{arguments}`"


def comments(source):
    """The comments of a module with their lines, and the code on the line of a comment.

    Comments on lines that follow each other are one comment.
    """
    found, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or NOT_PROSE.match(token.string):
            continue
        line, column = token.start
        text = token.string.lstrip("# ")
        is_alone = not token.line[:column].strip()
        if is_alone and line == last + 1:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}", "")
        else:
            code = token.line[:column].strip()
            found.append((line, text, f"`{code}`" if code else ""))
        last = line if is_alone else -1
    return found


def messages(tree):
    """The messages of errors that are raised and of calls of the log, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            values = node.exc.args
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOG_CALLS
        ):
            values = node.args[:1]
        else:
            continue
        for value in values:
            if isinstance(value, ast.JoinedStr) or (
                isinstance(value, ast.Constant) and isinstance(value.value, str)
            ):
                yield value.lineno, ast.unparse(value)


def sentences(text):
    """The sentences of a document in Markdown, each with what a reader sees around it.

    A cell of a table is read like a paragraph. Code is left out. The sentence stands between `>>` and `<<` in its paragraph,
    list item or row. Above it stand its heading and the columns of its table, or the paragraph before its list.
    """
    heading = columns = before = ""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|\d#])", LEFT_OUT.sub("", text)):
        lines = paragraph.lstrip("\n")
        block = " ".join(paragraph.split())
        if lines.startswith("#"):
            heading, columns, before = block, "", ""
        if not block or lines.startswith(("    ", "#", "<!--")) or re.fullmatch(r"[-|: ]+", block):
            continue
        is_row, is_item = block.startswith("|"), re.match(r"(-|\d+\.) ", block)
        if is_row and not columns:
            columns = block
            continue
        if not is_row:
            columns = ""
        around = [heading, columns if is_row else before if is_item else ""]
        if not is_row and not is_item:
            before = block
        for cell in block.split("|") if is_row else [block]:
            for sentence in SENTENCE_END.split(cell.strip()):
                if _is_long(sentence):
                    sentence = sentence.removeprefix("- ")
                    yield (
                        sentence,
                        "\n".join([*filter(None, around), block.replace(sentence, f">>{sentence}<<", 1)]),
                    )


def _is_long(text):
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= WORD_COUNT_MIN


def documents(root):
    """The documents by name, each with its text."""
    found = {path.stem.lower(): path.read_text() for path in sorted(root.glob("*.md"))}
    found |= {path.stem: path.read_text() for path in sorted((root / "docs").glob("*.md"))}
    records = sorted((root / "docs" / "decisions").glob("*.md"))
    return found | {"decisions": "\n\n".join(path.read_text() for path in records)}


def groups(root):
    """All that can be drawn, by group: pairs of a place and a text."""
    found = defaultdict(list)
    for path in sorted((root / "src").rglob("*.py")):
        source = path.read_text()
        tree, name = ast.parse(source), path.relative_to(root)
        texts = [*docstrings(tree), *comments(source)]
        found["code"] += [
            (f"{name}:{line} {of}".rstrip(), text) for line, text, of in texts if _is_long(text)
        ]
        found["messages"] += [(f"{name}:{line}", text) for line, text in messages(tree) if _is_long(text)]
    for document, text in documents(root).items():
        found[document] = [(document, shown) for _, shown in sentences(text)]
    return found


def sample(root, seed):
    """The items that a seed draws: triples of a name, a place and a text."""
    counts = {"code": CODE_COUNT, "messages": MESSAGE_COUNT}
    drawing = random.Random(seed)
    for group, all_items in groups(root).items():
        count = min(counts.get(group, SENTENCE_COUNT), len(all_items))
        for number, (place, text) in enumerate(drawing.sample(all_items, count), 1):
            yield f"{group}-{number}", place, text


def table(ratings):
    """The mean rating of each group.

    Args:
        ratings: the text of each reader: a name and a rating on each line.

    Raises:
        ValueError: a line is no rating, or the readers have not rated the same items.
    """
    rated = defaultdict(list)
    for text in ratings:
        for line in filter(str.strip, text.splitlines()):
            match = re.fullmatch(r"\s*([\w.-]+)-(\d+)\s+(0|0\.5|1)(?:\s.*)?", line)
            if match is None:
                raise ValueError(f"{line!r} is not a name, a space and 1, 0.5 or 0")
            rated[match[1], match[2]].append(float(match[3]))
    uneven = [f"{group}-{number}" for (group, number), all_of in rated.items() if len(all_of) != len(ratings)]
    if uneven:
        raise ValueError(f"not every reader has rated {', '.join(uneven[:5])} once")
    means = defaultdict(list)
    for (group, _), all_of in rated.items():
        means[group] += all_of
    return {group: sum(values) / len(values) for group, values in means.items()}


def main(words=None):
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawn = commands.add_parser("sample", help="print a sample")
    drawn.add_argument("--seed", type=int, required=True)
    rated = commands.add_parser("table", help="print the mean of each group")
    rated.add_argument("files", type=Path, nargs="+", metavar="FILE")
    given = parser.parse_args(words)
    if given.command == "sample":
        for name, place, text in sample(ROOT, given.seed):
            print(f"[{name}] {place}\n{text}\n")
        return
    try:
        for group, mean in table([path.read_text() for path in given.files]).items():
            print(f"{mean:.2f}  {group}")
    except ValueError as error:
        sys.exit(f"prose: {error}")


if __name__ == "__main__":
    main()
