"""The mistakes that are made. A rule gets a node and yields changes: these bytes of the source become that text."""

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.mutants.source import Placed, Source, dimension, indices, whole_number


class Change(NamedTuple):
    start: int
    end: int
    text: str


Changes = Iterator[Change]
Rule = Callable[[Source, ast.AST], Changes]

SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.And: "and", ast.Or: "or", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
OTHER_SIGN = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "**": "*"}
OTHER_MASK = {"&": "|", "|": "&"}
OTHER_LOGIC = {"and": "or", "or": "and"}
OTHER_COMPARISON = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in",
}  # fmt: skip
OTHER_REDUCTION = {
    "all": "any", "amax": "amin", "amin": "amax", "any": "all", "argmax": "argmin", "argmin": "argmax",
    "ceil": "floor", "floor": "ceil", "fmean": "median", "max": "min", "maximum": "minimum", "mean": "sum",
    "median": "fmean", "min": "max", "minimum": "maximum", "pstdev": "stdev", "std": "var", "stdev": "pstdev",
    "sum": "mean",
}  # fmt: skip
OTHER_MODE = {"eval": "train", "train": "eval"}
# x.f(…) may become x: values, memory or gradients change, the type does not
WITHOUT = {"abs", "clamp", "clip", "clone", "contiguous", "copy", "cumsum", "detach", "double", "exp", "log", "sqrt"}
# f(…, name=…) may be called without it: what names a random stream, and what has a default that is another number
LEFT_OUT = {"client", "ddof", "dim", "key", "keepdims", "max", "min", "minlength", "reverse", "step", "t"}


def _instead(source: Source, node: Placed, text: str) -> Change:
    return Change(source.start(node), source.end(node), text)


def _operator(source: Source, left: Placed, op: ast.AST, right: Placed, other: dict[str, str]) -> Changes:
    symbol = SYMBOLS.get(type(op), "")
    if symbol in other:
        yield Change(*source.symbol(source.end(left), source.start(right), symbol), other[symbol])


def sign(source: Source, node: ast.AST) -> Changes:
    """a + b → a - b, a * b → a / b, -a → a, a += b → a -= b."""
    match node:
        case ast.BinOp(left, op, right) if not (_is_text_or_list(left) or _is_text_or_list(right)):
            yield from _operator(source, left, op, right, OTHER_SIGN)
        case ast.AugAssign(target, op, value) if not _is_text_or_list(value):
            yield from _operator(source, target, op, value, OTHER_SIGN)
        case ast.UnaryOp(op=ast.USub()):
            yield Change(source.start(node), source.start(node) + 1, "")


def factor(source: Source, node: ast.AST) -> Changes:
    """a * w → a and → w, a / n → a."""
    match node:
        case ast.BinOp(_, ast.Mult(), _):
            yield from _one_operand(source, node, "*")
        case ast.BinOp(_, ast.Div(), _):
            yield from itertools.islice(_one_operand(source, node, "/"), 1)


def weights(source: Source, node: ast.AST) -> Changes:
    """Equal weights become unequal ones: ones_like(x) → x, ones(n) and [1] * n → 1, 2, …, n."""
    match node:
        case ast.Call(func=ast.Attribute(attr="ones_like"), args=[like, *_]):
            yield _instead(source, node, f"({ast.unparse(like)})")
        case ast.Call(func=ast.Attribute(attr="ones") as func, args=[size], keywords=[]):
            yield _instead(source, node, f"{ast.unparse(func.value)}.arange(1.0, {ast.unparse(size)} + 1)")
        case ast.BinOp(ast.List(elts=[ast.Constant(value=1)]), ast.Mult(), size):
            yield _instead(source, node, f"list(range(1, {ast.unparse(size)} + 1))")


def mask(source: Source, node: ast.AST) -> Changes:
    """a & b → a | b; a union, or a merged dict, without one of its halves."""
    dicts = (ast.Dict, ast.DictComp)  # of which there is no intersection
    match node:
        case ast.BinOp(left, (ast.BitAnd() | ast.BitOr()) as op, right):
            if not isinstance(left, dicts) and not isinstance(right, dicts):
                yield from _operator(source, left, op, right, OTHER_MASK)
            yield from _one_operand(source, node, SYMBOLS[type(op)])


def _one_operand(source: Source, node: ast.BinOp, symbol: str) -> Changes:
    start, end = source.symbol(source.end(node.left), source.start(node.right), symbol)
    first = len(source.text[source.start(node) : start].rstrip())
    second = len(source.text[end : source.end(node)].lstrip())
    yield Change(source.start(node) + first, source.end(node), "")
    yield Change(source.start(node), source.end(node) - second, "")


def _is_text_or_list(node: ast.expr) -> bool:
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def comparison(source: Source, node: ast.AST) -> Changes:
    """a < b → a <= b, a == b → a != b, a is b → a is not b, a in b → a not in b."""
    if isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from _operator(source, left, op, right, OTHER_COMPARISON)


def logic(source: Source, node: ast.AST) -> Changes:
    """a and b → a or b, → a, → b; not a → a, ~a → a."""
    match node:
        case ast.BoolOp(op, values):
            for left, right in itertools.pairwise(values):
                yield from _operator(source, left, op, right, OTHER_LOGIC)
            yield from (_instead(source, value, str(isinstance(op, ast.And))) for value in values)
        case ast.UnaryOp(op=ast.Not()):
            yield Change(source.start(node), source.start(node) + len("not"), "")
        case ast.UnaryOp(op=ast.Invert()):
            yield Change(source.start(node), source.start(node) + len("~"), "")


def branch(source: Source, node: ast.AST) -> Changes:
    """a if c else b → a and → b; [… if c] → [… if True]."""
    match node:
        case ast.IfExp():
            after_body, _ = source.symbol(source.end(node.body), source.start(node.test), "if")
            _, before_else = source.symbol(source.end(node.test), source.start(node.orelse), "else")
            yield _instead(source, node, _cut(source, source.start(node), after_body))
            yield _instead(source, node, _cut(source, before_else, source.end(node)))
        case ast.comprehension():
            for condition in node.ifs:
                yield _instead(source, condition, "True")


def _cut(source: Source, start: int, end: int) -> str:
    return source.text[start:end].decode().strip()


def index(source: Source, node: ast.AST) -> Changes:
    """x[0] → x[1], x[-1] → x[0], x[1] → x[0]; a bound of a slice is dropped."""
    if not isinstance(node, ast.Subscript):
        return
    for part in indices(node):
        number = whole_number(part)
        if number is not None:
            other = number - 1 if number > 0 else number + 1
            yield _instead(source, part, str(other))
    for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper):
                if bound is not None:
                    yield _instead(source, bound, "None")


def reduction(source: Source, node: ast.AST) -> Changes:
    """sum → mean, max → min, all → any, …; dim=0 → dim=1."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as func) if name in OTHER_REDUCTION:
            yield Change(source.end(func) - len(name), source.end(func), OTHER_REDUCTION[name])
        case ast.Call(func=ast.Name(id=name) as func) if name in OTHER_REDUCTION:
            other = {"sum": "max"}.get(name, OTHER_REDUCTION[name])  # Python's own has no mean
            yield _instead(source, func, other)
        case ast.keyword(value=value) if (dim := dimension(node)) is not None:
            yield _instead(source, value, "1" if dim == 0 else "0")


def number(source: Source, node: ast.AST) -> Changes:
    """n → n + 1 and → n - 1; x → 2x and → x / 2."""
    match node:
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int(value)):
            others: tuple[float, ...] = (value + 1, value - 1) if value else (1,)
        case ast.Constant(value=float(value)):
            others = (value * 2, value / 2) if value else (1.0,)
        case _:
            return
    yield from (_instead(source, node, repr(other)) for other in others)


def boolean(source: Source, node: ast.AST) -> Changes:
    """True → False."""
    match node:
        case ast.Constant(value=bool(value)):
            yield _instead(source, node, str(not value))


def mode(source: Source, node: ast.AST) -> Changes:
    """module.eval() → module.train()."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as func, args=[], keywords=[]) if name in OTHER_MODE:
            yield Change(source.end(func) - len(name), source.end(func), OTHER_MODE[name])


def statement(source: Source, node: ast.AST) -> Changes:
    """A call whose value is unused, a refusal, an early return, what is written into another object: gone."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Return(value=None) | ast.Delete():
            yield _instead(source, node, "pass")
        case ast.Assign(targets=[ast.Subscript()]):
            yield _instead(source, node, "pass")
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name != "self":
            yield _instead(source, node, "pass")


def jump(source: Source, node: ast.AST) -> Changes:
    """break → continue, and the other way."""
    if isinstance(node, ast.Break | ast.Continue):
        yield _instead(source, node, "break" if isinstance(node, ast.Continue) else "continue")


def call(source: Source, node: ast.AST) -> Changes:
    """x.detach() → x, and so with what copies, bounds, or maps number by number."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in WITHOUT and not _is_module(value):
            dot, _ = source.symbol(source.end(value), source.end(node), ".")
            yield Change(dot, source.end(node), "")


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("copy", "math", "np", "statistics", "torch")


def argument(source: Source, node: ast.AST) -> Changes:
    """f(x, client=k) → f(x): a random stream without one of its names, a count without its length."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg in LEFT_OUT:
                comma = re.compile(rb"\s*,").match(source.text, source.end(keyword))
                yield Change(source.start(keyword), comma.end() if comma else source.end(keyword), "")


def order(source: Source, node: ast.AST) -> Changes:
    """sorted(x) → list(x); a permutation that leaves everything in its place, a draw that takes the first."""
    match node:
        case ast.Call(func=ast.Name(id="sorted"), args=[first, *_]):
            inner = _cut(source, source.start(first), source.end(first))
            yield _instead(source, node, f"list({inner})")
        case ast.Call(func=ast.Attribute(attr="randperm"), args=[size, *_]):
            yield _instead(source, node, f"torch.arange({ast.unparse(size)})")
        case ast.Call(func=ast.Attribute(attr="permutation")):
            whole = _cut(source, source.start(node), source.end(node))
            yield _instead(source, node, f"np.sort({whole})")
        case ast.Call(func=ast.Attribute(attr="choice"), args=[_, size, *_]):
            yield _instead(source, node, f"range({ast.unparse(size)})")


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        sign, factor, weights, mask, comparison, logic, branch, index, reduction, number, boolean, mode, statement,
        jump, call, argument, order,
    )
}  # fmt: skip
