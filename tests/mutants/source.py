"""A Python source with the places of its nodes in bytes, and which of its nodes may be changed."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

Placed: TypeAlias = ast.expr | ast.stmt | ast.keyword

NO_CODE = {"Annotated", "Literal"}  # what stands in their brackets describes a type
TYPES = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple", "type"}
UNNOTICEABLE = {"repr", "strict"}  # keywords whose value no correct program can feel


class Source:
    """The syntax tree keeps the places of nodes in bytes of lines; here they are bytes of the file."""

    def __init__(self, text: bytes) -> None:
        self.text, self.tree = text, ast.parse(text)
        self._lines = [0, *(match.end() for match in re.finditer(b"\n", text))]

    def start(self, node: Placed) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: Placed) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def symbol(self, start: int, end: int, symbol: str) -> tuple[int, int]:
        """Where an operator or a keyword stands between two operands, of which the tree says nothing."""
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment.group()), self.text[start:end])
        words = rb"\s+".join(re.escape(word.encode()) for word in symbol.split())
        found = re.search(rb"\b" + words + rb"\b" if symbol[0].isalpha() else words, gap)
        assert found is not None, (symbol, gap)
        return start + found.start(), start + found.end()

    def line_number(self, place: int) -> int:
        return self.text.count(b"\n", 0, place) + 1

    def lines(self, start: int, end: int, text: bytes | None = None) -> str:
        """The whole lines from start to end as one, with a change between the two if there is one."""
        first = self.text.rfind(b"\n", 0, start) + 1
        last = self.text.find(b"\n", end)
        last = len(self.text) if last < 0 else last
        middle = self.text[start:end] if text is None else text
        return " ".join((self.text[first:start] + middle + self.text[end:last]).decode().split())

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes whose change could be seen from outside."""
        return list(_below(self.tree))


def _below(node: ast.AST) -> Iterator[ast.AST]:
    for child in _children(node):
        if not _describes_a_type(child):
            yield child
            yield from _below(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations, decorators, f-strings (names, messages), errors, our own invariants; indices have a rule."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            return
        case ast.FunctionDef():
            yield from (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None), *node.body)
        case ast.ClassDef():
            yield from node.body
        case ast.AnnAssign():
            yield from (node.target, *([node.value] if node.value else []))
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.keyword(arg=arg) if arg in UNNOTICEABLE or dimension(node) is not None:
            return
        case ast.Subscript():
            yield node.value
            yield from (index for index in indices(node) if whole_number(index) is None)
        case _:
            yield from ast.iter_child_nodes(node)


def _describes_a_type(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id=name)):
            return name in NO_CODE
        case ast.BinOp(op=ast.BitOr()):
            return _is_type(node)
    return False


def _is_type(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return _is_type(left) and _is_type(right)
        case ast.Constant(value=value):
            return value is None or isinstance(value, str)
        case ast.Subscript(value=value):
            return _is_type(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in TYPES or (name[0].isupper() and not name.isupper())
    return False


def indices(node: ast.Subscript) -> Iterator[ast.expr]:
    """Everything between the brackets: x[a, b:c] has three."""
    for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        if isinstance(part, ast.Slice):
            yield from (bound for bound in (part.lower, part.upper, part.step) if bound is not None)
        else:
            yield part


def whole_number(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None


def dimension(keyword: ast.keyword) -> int | None:
    return whole_number(keyword.value) if keyword.arg in ("dim", "axis") else None
