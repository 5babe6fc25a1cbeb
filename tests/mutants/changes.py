"""Every small fault that can be made in a module: one expression or one statement is changed at a time.

Some changes are not made, because they cannot make an answer wrong:

- docstrings, type hints, imports, decorators, `assert`s, `raise AssertionError`, `__repr__` and `__str__`;
- a function that returns a `DamageError`: all that it finds out stands in the message;
- the message of an error and a log line, and what is assigned to a local variable that only they name;
- `strict=True` of `zip`, which asserts that the lengths agree;
- an amount one greater or less: a constant whose name says how much is read, copied or done at a time, or kept in a cache
  (`AMOUNTS`). Any such number gives the same answers at another cost. Its operators are changed all the same;
- `<` for `<=` and `>` for `>=`, and the other way round, in a comparison with such a constant: that is the amount one greater
  or less, too;
- a call of `will_need`, which tells the system what to read ahead and returns nothing;
- the order of the arguments of `suppress`: they are a set of exceptions;
- the defaults of a class of settings whose every field the broker names (`SETTINGS`), which a test proves;
- `file.close()` of a local variable that this function has opened: the descriptor is closed when the function returns;
- `return None` for `return False`, which no caller can tell apart and mypy refuses. `return True` is made of it.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

COMPARISONS = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
OPERATIONS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGS = {"log", "logger"}
HINTS = {"will_need"}
UNORDERED = {"suppress"}
NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
FOR_PEOPLE = {"__repr__", "__str__"}
AMOUNTS = re.compile(
    r"(?:(?:^|_)(?:CHUNK|COPIED|COPY|LARGE|PAGE|PIECE|PROGRESS|READ|SCAN|SCRUB|SKIPPED|SMALL|STEP|TAIL|TICK|WRITE)"
    r"_(?:ALARMS|BLOCKS|COUNT|LENGTH|RECORDS|SIZE)(?:_MAX)?"
    r"|(?:DECODED|EXPIRED_BLOCKS|HELD|OPEN_SEGMENTS|RECENT|UNDIVIDED|WAITING)_MAX|COMPACT_SIZE_MIN|RECENT_MS|SPARE_READS"
    r"|INDEXES_OPEN|READERS|FANOUT|SLACK|\w+_AT_ONCE)$"
)
SETTINGS = {
    "LogConfig",
    "TransactionConfig",
}  # of GroupConfig, the broker leaves some fields at their defaults


@dataclass(frozen=True, order=True)
class Change:
    """A fault of a module.

    Attributes:
        path: of the source file, in the package.
        begin: where the changed text begins in the source, in characters.
        end: where it ends, exclusive.
        new: what stands there instead.
        kind: what was done, for people.
        lines: of the source, which a test has to execute so that it can notice; empty where they run at the import.
        function: first line and name of the outermost function that has changed; None where none has.
    """

    path: str
    begin: int
    end: int
    new: str
    kind: str = field(compare=False)
    lines: tuple[int, ...] = field(compare=False)
    function: tuple[int, str] | None = field(default=None, compare=False)

    def applied(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.begin] + self.new + source[self.end :]

    def shown(self, source: str) -> tuple[str, str]:
        """The changed lines, before and after, without their indentation."""
        first = source.rfind("\n", 0, self.begin) + 1
        last = source.find("\n", self.end)
        before, after = source[first:last], source[first : self.begin] + self.new + source[self.end : last]
        return " ".join(before.split()), " ".join(after.split())


class _Finder:
    """Walks over a module, and keeps in which statement and in which function it is."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._texts = source.splitlines()
        self._statement: ast.stmt | None = None
        self._runs_in_tests = False
        self._function: tuple[int, str] | None = None
        self._told_only: set[str] = set()  # local variables of that function that only messages name
        self._opened: set[str] = set()  # local variables of that function that it has opened

    # -- places ------------------------------------------------------------------------------------------------

    def _at(self, line: int, column: int) -> int:
        """The place of a position of `ast`, whose columns are bytes."""
        text = self._texts[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def _begin(self, node: ast.AST) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.AST) -> int:
        return self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.AST) -> str:
        return self._source[self._begin(node) : self._end(node)]

    def _between(self, left: ast.AST, right: ast.AST, token: str) -> tuple[int, int]:
        """Where an operator stands between two operands: comments and brackets may stand there, too."""
        begin, end = self._end(left), self._begin(right)
        words = self._source[begin:end]
        at = begin + words.index(token)
        return at, at + len(token)

    def _change(self, begin: int, end: int, new: str, kind: str, node: ast.AST) -> Change:
        lines: tuple[int, ...] = ()
        if self._runs_in_tests:
            first = node.lineno if self._statement is None else min(node.lineno, self._statement.lineno)
            lines = tuple(range(first, node.end_lineno + 1))
        return Change(self._path, begin, end, new, kind, lines, self._function)

    # -- the walk ----------------------------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> Iterator[Change]:
        """The changes of a block."""
        for statement in statements:
            yield from self._of_statement(statement)

    def _of_statement(self, statement: ast.stmt) -> Iterator[Change]:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
            return
        if isinstance(statement, ast.FunctionDef):
            yield from self._of_function(statement)
            return
        if isinstance(statement, ast.Raise) and _name_of_call(statement.exc) == "AssertionError":
            return
        if isinstance(statement, ast.ClassDef):
            is_settings = statement.name in SETTINGS
            yield from self.body(
                [one for one in statement.body if not (is_settings and isinstance(one, ast.AnnAssign))]
            )
            return
        if isinstance(statement, ast.Expr) and (
            self._is_for_people(statement.value) or _name_of_call(statement.value) in HINTS
        ):
            return
        if isinstance(statement, ast.Assign | ast.AnnAssign) and self._is_told_only(statement):
            return
        if self._is_amount(statement):
            yield from (change for change in self._of_children(statement) if change.kind != "constant")
            return
        outer, self._statement = self._statement, None if hasattr(statement, "body") else statement
        yield from self._dropped(statement)
        if isinstance(statement, ast.Raise):
            pass  # the rest of it is a message; that it is raised at all was dropped above
        else:
            yield from self._of_children(statement)
        self._statement = outer

    def _of_function(self, function: ast.FunctionDef) -> Iterator[Change]:
        if function.name in FOR_PEOPLE or (
            isinstance(function.returns, ast.Name) and function.returns.id == "DamageError"
        ):
            return
        for default in (*function.args.defaults, *function.args.kw_defaults):
            if default is not None:
                yield from self._of_expression(default)
        before, self._runs_in_tests, outer = self._runs_in_tests, True, self._function
        if outer is None:
            self._function = min(one.lineno for one in (function, *function.decorator_list)), function.name
            self._told_only, self._opened = _told_only(function), _opened(function)
        yield from self.body(function.body)
        self._runs_in_tests, self._function = before, outer

    def _of_children(self, node: ast.AST) -> Iterator[Change]:
        for name, value in ast.iter_fields(node):
            if name in (
                "annotation",
                "returns",
                "decorator_list",
                "type_comment",
                "type_params",
                "op",
                "ops",
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._of_statement(child)
                elif isinstance(child, ast.expr):
                    yield from self._of_expression(child)
                elif isinstance(child, ast.AST):
                    yield from self._of_children(child)  # keywords, handlers, cases, comprehensions

    def _is_for_people(self, value: ast.expr) -> bool:
        """Whether an expression is a docstring, or writes a log line."""
        if isinstance(value, ast.Constant):
            return True
        return (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and isinstance(value.func.value, ast.Name)
            and value.func.value.id in LOGS
        )

    def _is_told_only(self, statement: ast.Assign | ast.AnnAssign) -> bool:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(isinstance(one, ast.Name) and one.id in self._told_only for one in targets)

    def _is_amount(self, statement: ast.stmt) -> bool:
        """Whether a statement of the module says how much is done at a time."""
        if self._runs_in_tests or not isinstance(statement, ast.Assign | ast.AnnAssign):
            return False
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return isinstance(target, ast.Name) and AMOUNTS.search(target.id) is not None

    def _closes_what_was_opened(self, statement: ast.stmt) -> bool:
        return (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and isinstance(statement.value.func, ast.Attribute)
            and statement.value.func.attr == "close"
            and isinstance(statement.value.func.value, ast.Name)
            and statement.value.func.value.id in self._opened
        )

    # -- what is changed ---------------------------------------------------------------------------------------

    def _dropped(self, statement: ast.stmt) -> Iterator[Change]:
        begin, end = self._begin(statement), self._end(statement)
        if self._closes_what_was_opened(statement):
            return
        if (
            (isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Yield | ast.YieldFrom))
            or isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)
            or (
                isinstance(statement, ast.Assign)
                and not isinstance(statement.targets[0], ast.Name | ast.Tuple)
            )
        ):
            yield self._change(begin, end, "pass", "dropped statement", statement)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            if not (isinstance(statement.value, ast.Constant) and statement.value.value in (None, False)):
                yield self._change(begin, end, "return None", "return None", statement)
        elif isinstance(statement, ast.If | ast.While):
            yield self._negated(statement.test)
        if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATIONS:
            token, other = OPERATIONS[type(statement.op)]
            at, at_end = self._between(statement.target, statement.value, f"{token}=")
            yield self._change(at, at_end, f"{other}=", "operator", statement)

    def _negated(self, test: ast.expr) -> Change:
        return self._change(self._begin(test), self._end(test), f"not ({self._text(test)})", "negated", test)

    def _of_expression(self, node: ast.expr) -> Iterator[Change]:
        if isinstance(node, ast.JoinedStr):
            return  # a message or a name of a file
        if isinstance(node, ast.Call) and self._is_for_people(node):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            yield from self._of_this(node)
            for argument in node.args:
                yield from self._of_expression(argument)
            for keyword in node.keywords:
                if not (isinstance(keyword.value, ast.Constant) and keyword.value.value is True):
                    yield from self._of_expression(keyword.value)
            return
        yield from self._of_this(node)
        if isinstance(node, ast.Lambda):
            before, self._runs_in_tests = self._runs_in_tests, True
            yield from self._of_expression(node.body)
            self._runs_in_tests = before
            return
        yield from self._of_children(node)

    def _of_this(self, node: ast.expr) -> Iterator[Change]:
        if isinstance(node, ast.Compare):
            lefts = [node.left, *node.comparators]
            for left, operator, right in zip(lefts, node.ops, node.comparators, strict=False):
                token, others = COMPARISONS[type(operator)]
                at, end = self._between(left, right, token)
                is_amount = any(
                    isinstance(side, ast.Name) and AMOUNTS.search(side.id) for side in (left, right)
                )
                for other in others:
                    if not (is_amount and NEIGHBOURS.get(token) == other):
                        yield self._change(at, end, other, "comparison", node)
        elif isinstance(node, ast.BoolOp):
            token, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                at, end = self._between(left, right, token)
                yield self._change(at, end, other, "and, or", node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            begin, end = self._begin(node), self._end(node)
            yield self._change(begin, end, f"({self._text(node.operand)})", "negated", node)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            token, other = OPERATIONS[type(node.op)]
            at, end = self._between(node.left, node.right, token)
            yield self._change(at, end, other, "operator", node)
        elif isinstance(node, ast.IfExp):
            yield self._negated(node.test)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._change(self._begin(node), self._end(node), str(not node.value), "constant", node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            for value in (node.value + 1, node.value - 1):
                yield self._change(self._begin(node), self._end(node), f"({value})", "constant", node)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)

    def _of_call(self, node: ast.Call) -> Iterator[Change]:
        if isinstance(node.func, ast.Name) and node.func.id in OTHER_NAMES:
            other = OTHER_NAMES[node.func.id]
            yield self._change(self._begin(node.func), self._end(node.func), other, "other function", node)
        elif (
            len(node.args) > 1
            and _name_of_call(node) not in UNORDERED
            and not any(isinstance(one, ast.Starred) for one in node.args)
        ):
            for left, right in zip(node.args, node.args[1:], strict=False):
                first, second = self._text(left), self._text(right)
                if first != second:
                    between = self._source[self._end(left) : self._begin(right)]
                    new = f"{second}{between}{first}"
                    yield self._change(self._begin(left), self._end(right), new, "swapped arguments", node)


def _name_of_call(node: ast.expr | None) -> str | None:
    """The last name of the function that is called; None if this is no call of a name."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def _told_only(function: ast.FunctionDef) -> set[str]:
    """The local variables that nothing but the message of an error, a finding or a log line names."""
    told, used = set(), set()

    def visit(node: ast.AST, is_message: bool) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            (told if is_message else used).add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child, is_message or isinstance(child, ast.JoinedStr))

    def message_of(node: ast.AST) -> bool:
        return isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call)
            and (
                (isinstance(node.func, ast.Name) and node.func.id == "FileFinding")
                or (
                    isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in LOGS
                )
            )
        )

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if message_of(child):
                visit(child, False)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                used.add(child.id)
            else:
                walk(child)

    walk(function)
    return told - used


def _opened(function: ast.FunctionDef) -> set[str]:
    """The local variables that a call of some `open` has given."""
    return {
        node.targets[0].id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "open"
    }


def changes_of(path: str, source: str) -> list[Change]:
    """Every change of a module, in the order of their places. See `compiles`.

    Args:
        path: of the source file, in the package.
        source: its text.
    """
    return sorted(set(_Finder(path, source).body(ast.parse(source).body)))


def compiles(source: str) -> bool:
    """Whether a changed source is still one."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
