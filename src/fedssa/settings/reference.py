"""Every setting in words, read from the class that declares it: kind, range, default, and the comment at its line."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Len, Lt

from fedssa.core.averaging import RULES
from fedssa.core.hostile import ATTACKS
from fedssa.core.optim import OPTIMISERS
from fedssa.core.privacy import Privacy
from fedssa.core.rounds import Rounds
from fedssa.core.schedules import SCHEDULES
from fedssa.data import DATASETS
from fedssa.methods import METHODS
from fedssa.partition import PARTITIONS
from fedssa.settings.models import Models
from fedssa.settings.recipe import DataShare, PublicLimits, PublicSlice, RunOptions
from fedssa.settings.toml import inline
from fedssa.settings.training import LocalSection, ServerSection

WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "table"}


class Setting(NamedTuple):
    key: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Part:
    """A part of a recipe has its settings in a class; some sections have one class for each name."""

    section: str
    name: str | None
    cls: type

    @property
    def about(self) -> str:
        written = (self.cls.__doc__ or "").strip().splitlines()[0]
        return "" if written.startswith(f"{self.cls.__name__}(") else written  # a dataclass writes one by itself

    @property
    def settings(self) -> list[Setting]:
        assert is_dataclass(self.cls)
        hints, said = get_type_hints(self.cls, include_extras=True), _comments(self.cls)
        return [
            Setting(field.name, _kind(hints[field.name]), _default(field), said.get(field.name, ""))
            for field in fields(self.cls)
        ]


def parts() -> Iterator[Part]:
    yield from _named("data", {**DATASETS, "any of [data]": DataShare})
    yield from _named("public", {"slice": PublicSlice, "any of [data]": PublicLimits})
    yield from _named("partition", PARTITIONS)
    yield Part("models", None, Models)
    yield Part("local", None, LocalSection)
    yield from _named("local.optimizer", OPTIMISERS)
    yield from _named("local.schedule", SCHEDULES)
    yield Part("server", None, ServerSection)
    yield Part("rounds", None, Rounds)
    yield from _named("method", METHODS)
    yield Part("privacy", None, Privacy)
    yield from _named("aggregation.rule", RULES)
    yield from _named("hostile.attack", ATTACKS)
    yield Part("run", None, RunOptions)


def _named(section: str, classes: Mapping[str, type]) -> Iterator[Part]:
    return (Part(section, name, cls) for name, cls in classes.items())


def _default(field: "Field[Any]") -> str:
    if field.default is MISSING:
        return "required"
    return "none" if field.default is None else inline(field.default)


def _comments(cls: type) -> dict[str, str]:
    """Returns what the comments at the end of fields say, those of a base class included."""
    found: dict[str, str] = {}
    for part in reversed([part for part in cls.__mro__ if is_dataclass(part)]):
        source = textwrap.dedent(inspect.getsource(part))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.ClassDef)
        for line in tree.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.end_lineno in comments:
                found[line.target.id] = _in_toml(comments[line.end_lineno].lstrip("# "))
    return found


def _in_toml(text: str) -> str:
    return re.sub(r"\b(None|True|False)\b", lambda word: word[0].lower(), text)


def _kind(hint: Any) -> str:
    """Says in words what a value may be: `Annotated[int, Ge(1)] | None` is a whole number, ≥ 1."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return ", ".join(filter(None, (_kind(inner[0]), _range(inner[1:]))))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(kind) for kind in inner if kind is not type(None)))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if get_origin(hint) in (tuple, list):
        return f"list of {_kind(inner[0])}"
    return WORDS.get(get_origin(hint) or hint, str(getattr(hint, "__name__", hint)))


def _range(rules: tuple[Any, ...]) -> str:
    lows = [("≥", "[", rule.ge) if isinstance(rule, Ge) else (">", "(", rule.gt) for rule in rules if _is(rule, Ge, Gt)]
    highs = [
        ("≤", "]", rule.le) if isinstance(rule, Le) else ("<", ")", rule.lt) for rule in rules if _is(rule, Le, Lt)
    ]
    lengths = [f"at least {rule.min_length}" for rule in rules if isinstance(rule, Len)]
    if lows and highs:
        return f"in {lows[0][1]}{lows[0][2]}, {highs[0][2]}{highs[0][1]}"
    return ", ".join([*(f"{sign} {value}" for sign, _, value in (*lows, *highs)), *lengths])


def _is(rule: object, *kinds: type) -> bool:
    return isinstance(rule, kinds)
