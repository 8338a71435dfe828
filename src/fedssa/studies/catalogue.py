"""What a method shares, needs and trains is read from its file, so that a list of methods is never out of date."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args

from torch import Tensor

from fedssa.core.client import AnyMethod
from fedssa.core.fields import Like, Shaped
from fedssa.core.message import Nothing, hints, rules
from fedssa.core.method import Kind
from fedssa.methods import METHODS
from fedssa.models import DESCRIPTIONS
from fedssa.settings.reference import parts
from fedssa.studies.listed import Listed, ListedMethod, ListedPart, names
from fedssa.studies.public import own_settings

Heterogeneity = Literal["any", "groups", "one"]


@dataclass(frozen=True)
class Entry:
    """An entry is one method of ours, in words for people."""

    name: str
    method: type[AnyMethod]

    @property
    def about(self) -> str:
        return (self.method.__doc__ or "").strip().splitlines()[0]

    @property
    def module(self) -> str:
        return self.method.__module__.rpartition(".")[2]

    @property
    def shares(self) -> tuple[Kind, ...]:
        return self.method.travels

    @property
    def shared(self) -> str:
        """Says the same in words; a method of somebody else's need not declare what it sends."""
        silent = self.method.messages()[1:] == (Nothing, Nothing)
        return ", ".join(self.shares) or ("nothing" if silent else "not declared")

    @property
    def models(self) -> Heterogeneity:
        """Says which clients can share: those with any models, those of a group with equal ones, or only if all are."""
        if self.method.needs_same_models:
            return "one"
        alone = self.method.groups == "layout" and set(self.shares) == {"extractors"}
        return "groups" if alone else "any"

    @property
    def needs(self) -> list[str]:
        return list(_needs(self.method))

    @property
    def trained_by(self) -> list[str]:
        return ["clients", "server"] if self.method.server_trains else ["clients"]

    @property
    def up(self) -> list[str]:
        return _payload(self.method, self.method.messages().up)

    @property
    def down(self) -> list[str]:
        return _payload(self.method, self.method.messages().down)

    @property
    def options(self) -> dict[str, Any]:
        return {option.name: option.default for option in fields(self.method)}  # type: ignore[arg-type]

    @property
    def sizes_vary(self) -> bool:
        """Tells whether some field has no declared size, because it depends on what a client has learnt."""
        return any(map(_varies, self.method.messages()[1:]))

    @property
    def listed(self) -> ListedMethod:
        presets = {name: preset.means for name, preset in self.method.presets.items()}
        about = self.shared, self.models, self.needs, self.trained_by
        own, augments = own_settings(self.method), self.method.num_views > 1
        return ListedMethod(self.name, self.method.__name__, self.module, *about, self.options, presets, own, augments)


def entries() -> list[Entry]:
    return [Entry(name, method) for name, method in METHODS.items()]


def as_listed() -> Listed:
    settings = [ListedPart(part.section, part.name, part.about, [list(s) for s in part.settings]) for part in parts()]
    return Listed(names(), [entry.listed for entry in entries()], DESCRIPTIONS, settings)


def _needs(method: type[AnyMethod]) -> Iterator[str]:
    if method.needs_shared_model:
        yield "shared model"
    if method.needs_server_model:
        yield "server model"
    if method.groups == "architecture":
        yield "models known to the server"
    if method.needs_public != "no":
        yield "public data" if method.needs_public == "unlabelled" else "labelled public data"
    if method.fixed_rounds is not None:
        yield "1 round" if method.fixed_rounds == 1 else f"{method.fixed_rounds} rounds"


def _payload(method: type[AnyMethod], kind: Any) -> list[str]:
    """Lists the fields of a message with their shapes, in the paper's letters."""
    return [f"`{name}`{_shape(method, hint)}{_absent(hint)}" for name, hint in hints(kind).items()]


def _shape(method: type[AnyMethod], hint: Any) -> str:
    for rule in rules(hint):
        if isinstance(rule, Shaped):
            return f" [{', '.join(rule.dims)}]"
        if isinstance(rule, Like):
            return " of the whole model" if method.needs_same_models else f" of the {rule.model} model"
    return ""


def _absent(hint: Any) -> str:
    """Says of `Tensor | None`, with or without a rule beside it, that it may be absent."""
    may_be = NoneType in (*get_args(hint), *(kind for part in get_args(hint) for kind in get_args(part)))
    return ", or none" if may_be else ""


def _varies(hint: Any) -> bool:
    if isinstance(hint, type) and is_dataclass(hint):
        return any(map(_varies, hints(hint).values()))
    if any(isinstance(rule, (Shaped, Like)) for rule in rules(hint)):
        return False
    return hint is Tensor or any(map(_varies, get_args(hint)))
