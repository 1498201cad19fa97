"""Mutants: copies of a source file with one small error each.

Code that no test should fix in detail is not mutated: messages, logging, types, decorators, assertions,
`__repr__`.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_SWAPPED_NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}
_SWAPPED_NAMES |= {"startswith": "endswith", "endswith": "startswith"}
_SILENT_CALLS = {"print", "warn", "debug", "info", "warning", "error", "exception", "cast", "TypeVar"}
_SILENT_KEYWORDS = {"message", "help", "strict"}
_SILENT_FUNCTIONS = {"__repr__", "__str__"}
_DELETED = (ast.Expr, ast.Raise, ast.AugAssign, ast.Return, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True)
class Mutant:
    """One replacement in a file: the bytes from `start` to `end` become `new`."""

    path: str
    line: int
    statement: int
    """The line on which the mutant's statement begins. Tracing does not report every line of a long
    expression.
    """
    start: int
    end: int
    old: str
    new: str
    text: str
    """The original text of the line on which the replacement begins."""

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def change(self) -> str:
        return f"{self.old} -> {self.new}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n  {self.text}\n  {self.change}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of their positions."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.decode().splitlines()
    found: dict[tuple[int, int, str], Mutant] = {}
    for node, new, statement in _replacements(ast.parse(source), 1):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        old, text = " ".join(source[start:end].decode().split()), lines[node.lineno - 1].strip()
        found[start, end, new] = Mutant(path, node.lineno, statement, start, end, old, new, text)
    return [found[place] for place in sorted(found)]


def sampled(every: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a sample of mutants. A hash of each mutant's text decides, so changes of other lines do not
    change the sample.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    drawn = []
    for mutant in every:
        name = (mutant.path, mutant.text, mutant.old, mutant.new)
        seen[name] += 1
        lot = hashlib.sha256(repr((seed, name, seen[name])).encode()).digest()
        drawn.append((lot, mutant))
    drawn.sort(key=lambda item: item[0])
    return [mutant for _, mutant in drawn[:count]]


_Place = ast.expr | ast.stmt


def _replacements(node: ast.AST, statement: int) -> Iterator[tuple[_Place, str, int]]:
    """Yield each node of a tree that is replaced, with its replacement and the line of its statement."""
    if isinstance(node, ast.stmt):
        statement = node.lineno
        yield from ((replaced, new, replaced.lineno) for replaced, new in _of_statement(node))
    elif isinstance(node, ast.expr):
        for new in _of_expression(node):
            text = ast.unparse(new)
            yield node, text if isinstance(new, ast.Slice) else f"({text})", statement
    elif isinstance(node, ast.comprehension):
        yield from ((condition, "(True)", statement) for condition in node.ifs)
    for child in _children(node):
        yield from _replacements(child, statement)


def _of_statement(node: ast.stmt) -> Iterator[tuple[_Place, str]]:
    if isinstance(node, ast.If) and not _is_for_types(node) and not _only_chooses_words(node):
        yield from ((node.test, "(True)"), (node.test, "(False)"))
    if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        yield node.test, "(False)"
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, "return None"
    for body in _bodies(node):
        only_one = len(body) == 1 and isinstance(
            node, ast.If
        )  # deleting the only statement would be the same as dropping the condition
        for item in () if only_one else body:
            if _may_go(item):
                yield item, "pass"


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                swapped = _COMPARED[type(operator)]()
                changed = [*operators[:place], swapped, *operators[place + 1 :]]
                yield ast.Compare(node.left, changed, node.comparators)
        case ast.BoolOp(op=joined, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(joined, ast.And) else ast.And(), values)
            for place in range(len(values)):
                others = values[:place] + values[place + 1 :]
                yield ast.BoolOp(joined, others) if len(others) > 1 else others[0]
        case ast.BinOp(op=computed) if type(computed) in _COMPUTED and not _is_text(node):
            yield ast.BinOp(node.left, _COMPUTED[type(computed)](), node.right)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Slice():
            if node.lower is not None:
                yield ast.Slice(None, node.upper, node.step)
            if node.upper is not None:
                yield ast.Slice(node.lower, None, node.step)
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED_NAMES:
            yield ast.Call(ast.Name(_SWAPPED_NAMES[name]), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _SWAPPED_NAMES:
            yield ast.Call(ast.Attribute(owner, _SWAPPED_NAMES[name]), node.args, node.keywords)
        case _:
            return


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node that are mutated."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Raise():
            return
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name not in _SILENT_FUNCTIONS:
                yield from [
                    *node.args.defaults,
                    *(default for default in node.args.kw_defaults if default),
                    *node.body,
                ]
        case ast.ClassDef():
            yield from node.body
        case ast.AnnAssign(value=value):
            yield from [] if value is None else [value]
        case ast.If() if _is_for_types(node):
            yield from node.orelse
        case ast.If() if _only_chooses_words(node):
            return
        case ast.IfExp() if _is_text(node.body) or _is_text(node.orelse):
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _SILENT_CALLS:
            return
        case ast.keyword(arg=name) if name in _SILENT_KEYWORDS:
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    if not isinstance(node, ast.ClassDef):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])
        for handler in getattr(node, "handlers", []):
            yield handler.body


def _may_go(node: ast.stmt) -> bool:
    """True if a statement may be deleted, because it has an effect and does not bind a name."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name not in _SILENT_CALLS
        case ast.Return(value=value):
            return value is None
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case _:
            return isinstance(node, _DELETED)


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.IfExp():
            return _is_text(node.body) or _is_text(node.orelse)
        case ast.BinOp():
            return _is_text(node.left) or _is_text(node.right)
        case _:
            return isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            )


def _only_chooses_words(node: ast.If) -> bool:
    """True if a condition only selects the text of a message."""
    return all(
        isinstance(item, ast.Assign)
        and isinstance(item.targets[0], ast.Name)
        and item.targets[0].id == "message"
        for item in [*node.body, *node.orelse]
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
