"""methods."""

from collections.abc import Iterator
from dataclasses import fields
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedssa.cli.common import app, first_line, print_list

if TYPE_CHECKING:
    from fedssa.core.client import AnyMethod


@app.command()
def methods(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A table for a page: what each one does, sends, needs and can be told.")
    ] = False,
) -> None:
    """List the methods and presets."""
    from fedssa.methods import METHODS, PRESETS

    if markdown:
        typer.echo("\n".join((*_table(), "", *_presets())))
        return
    fixed = {n: ", ".join(f"{k} = {v}" for k, v in preset.means.items()) for n, (_, preset) in PRESETS.items()}
    presets = {name: f"{cls.__name__} with {fixed[name]}" for name, (cls, _) in PRESETS.items()}
    print_list({name: first_line(cls) for name, cls in METHODS.items()} | presets)


def _table() -> Iterator[str]:
    """Yields the lines of the table, all of which is declared in the methods' own files."""
    from fedssa.methods import METHODS

    yield "| method | what it does | goes up | comes down | needs | options |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, cls in METHODS.items():
        module = cls.__module__.rpartition(".")[2]
        options = {option.name: option.default for option in fields(cls)}  # type: ignore[arg-type]
        cells = (
            f"[`{name}`](../src/fedssa/methods/{module}.py)",
            first_line(cls),
            _payload(cls, cls.messages().up),
            _payload(cls, cls.messages().down),
            ", ".join(_needs(cls)) or "–",
            _settings(options) or "–",
        )
        yield f"| {' | '.join(cells)} |"


def _presets() -> Iterator[str]:
    from fedssa.methods import METHODS

    yield "| preset | is | with |"
    yield "| --- | --- | --- |"
    for name, cls in METHODS.items():
        for preset, fixed in cls.presets.items():
            yield f"| `{preset}` | `{name}` | {_settings(fixed.means)} |"


def _settings(values: Any) -> str:
    from fedssa.settings.toml import inline

    return ", ".join(f"`{name} = {inline(value)}`" for name, value in values.items())


def _payload(cls: "type[AnyMethod]", kind: Any) -> str:
    """Lists the fields of a message with their shapes, in the paper's letters."""
    from fedssa.core.message import hints

    return "<br>".join(f"`{name}`{_shape(cls, hint)}{_absent(hint)}" for name, hint in hints(kind).items()) or "nothing"


def _shape(cls: "type[AnyMethod]", hint: Any) -> str:
    from fedssa.core.fields import Like, Shaped
    from fedssa.core.message import rules

    for rule in rules(hint):
        if isinstance(rule, Shaped):
            return f" [{', '.join(rule.dims)}]"
        if isinstance(rule, Like):
            return " of the whole model" if cls.needs_same_models else f" of the {rule.model} model"
    return ""


def _absent(hint: Any) -> str:
    """Says of `Tensor | None`, with or without a rule beside it, that it may be absent."""
    may_be = NoneType in (*get_args(hint), *(kind for part in get_args(hint) for kind in get_args(part)))
    return ", or none" if may_be else ""


def _needs(cls: "type[AnyMethod]") -> Iterator[str]:
    if cls.needs_same_models:
        yield "one architecture"
    if cls.needs_shared_model:
        yield "`models.shared`"
    if cls.needs_server_model:
        yield "`models.server`"
    if cls.needs_public != "no":
        yield f"`[public]`, {cls.needs_public}"
    if cls.groups == "layout":
        yield "groups of equal extractors"
    if cls.groups == "architecture":
        yield "groups of equal architectures"
    if cls.fixed_rounds is not None:
        yield f"{cls.fixed_rounds} rounds"
