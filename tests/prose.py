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
WORDS_OUTSIDE_CODE_MIN = 2
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}
NOT_PROSE = re.compile(r"#\s*(?:type:|noqa|pragma|ruff:|mypy:|!|-- )")
# Code, and the tables that `make bench` writes: their rows are labels and no sentences.
LEFT_OUT = re.compile(r"^```.*?^```|<!-- figures -->.*?<!-- end of figures -->", re.M | re.S)
SENTENCE_END = re.compile(r"(?<=[.:!?])\s+(?=[A-Z`*\[])")
CELL_END = re.compile(r"\s*(?<!\\)\|\s*")
CODE = re.compile("`[^`]*`")
RULE_OF_TABLE = re.compile(r"[-|: ]+")
ITEM = re.compile(r"\s*(?:-|\d{1,2}\.) ")


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
    list item or row. Above it stand its heading and the columns of its table, the item that its list is a part of, or the
    paragraph before its list.
    """
    heading = columns = before = ""
    parents = {}  # by indentation: the last item of each list that is open
    for block in _blocks(LEFT_OUT.sub("", text)):
        shown, kind = " ".join(block.split()), _kind(block, in_list=bool(parents))
        if kind != "row":
            columns = ""
        if kind != "item":
            parents.clear()
        if kind == "heading":
            heading, before = shown, ""
        if kind == "paragraph":
            before = shown
        if kind in ("heading", "left out") or RULE_OF_TABLE.fullmatch(shown):
            continue
        if kind == "row" and not columns:
            columns = shown
            continue
        above = columns
        if kind == "item":
            indentation = len(block) - len(block.lstrip())
            parents = {at: item for at, item in parents.items() if at < indentation}
            above = parents[max(parents)] if parents else before
            parents[indentation] = shown
        for start, end in _spans(shown, is_row=kind == "row"):
            sentence = shown[start:end]
            if _is_long(sentence) and _is_prose(sentence):
                marked = f"{shown[:start]}>>{sentence}<<{shown[end:]}"
                yield sentence, "\n".join([*filter(None, (heading, above)), marked])


def _blocks(text):
    """The headings, paragraphs, list items, rows and pieces of code of a document; nothing for an empty line.

    An empty line is a block of its own, because it ends a table.
    """
    block = []
    for line in [*text.splitlines(), ""]:
        is_own = not line.strip() or line.startswith(("#", "|"))
        if block and (is_own or ITEM.match(line) or block[0].startswith(("#", "|"))):
            yield "\n".join(block)
            block = []
        if line.strip():
            block.append(line)
        else:
            yield ""


def _kind(block, *, in_list):
    is_code = block.startswith("    ") and not in_list
    if not block or is_code or block.startswith("<!--"):
        return "left out"
    return "item" if ITEM.match(block) else {"#": "heading", "|": "row"}.get(block[0], "paragraph")


def _spans(block, *, is_row):
    """The beginning and the end of each sentence of a block. A row has at least one sentence in each of its cells.

    No sentence ends within code such as `version: 0`, and none contains the mark of its list item.
    """
    masked = CODE.sub(lambda code: f"`{'x' * (len(code[0]) - 2)}`", block)
    pieces = re.compile(rf"{SENTENCE_END.pattern}|{CELL_END.pattern}" if is_row else SENTENCE_END.pattern)
    mark = None if is_row else ITEM.match(block)
    start = mark.end() if mark else 0
    for piece in pieces.finditer(masked, start):
        yield start, piece.start()
        start = piece.end()
    yield start, len(block)


def _is_long(text):
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= WORD_COUNT_MIN


def _is_prose(text):
    """Whether a cell or a sentence has words, and not only names of code such as `log.partition`, `log.read`."""
    return len(re.findall(r"[A-Za-z]{2,}", CODE.sub("", text))) >= WORDS_OUTSIDE_CODE_MIN


def documents(root):
    """The documents by name, each with its text."""
    found = {path.stem.lower(): path.read_text() for path in sorted(root.glob("*.md"))}
    records = sorted((root / "docs" / "decisions").glob("*.md"))
    pages = sorted(set((root / "docs").rglob("*.md")) - set(records))
    found |= {path.stem: path.read_text() for path in pages}
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
