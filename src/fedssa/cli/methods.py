"""methods."""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

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
        typer.echo("\n".join(table()))
        return
    fixed = {n: ", ".join(f"{k} = {v}" for k, v in preset.settings.items()) for n, (_, preset) in PRESETS.items()}
    presets = {name: f"{cls.__name__} with {fixed[name]}" for name, (cls, _) in PRESETS.items()}
    print_list({name: first_line(cls) for name, cls in METHODS.items()} | presets)


def table() -> Iterator[str]:
    """Everything in it is declared in the method's own file."""
    from fedssa.methods import METHODS

    yield "| method | what it does | goes up | comes down | needs | options |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, cls in METHODS.items():
        kinds = cls.messages()
        module = cls.__module__.rpartition(".")[2]
        cells = (
            f"[`{name}`](../src/fedssa/methods/{module}.py)",
            first_line(cls),
            _payload(kinds.up),
            _payload(kinds.down),
            ", ".join(_needs(cls)) or "–",
            ", ".join(f"`{option.name} = {_toml(option.default)}`" for option in fields(cls)) or "–",  # type: ignore[arg-type]
        )
        yield f"| {' | '.join(cells)} |"


def _payload(kind: Any) -> str:
    """The fields of a message with their shapes, in the paper's letters."""
    from fedssa.core.message import hints

    return "<br>".join(f"`{name}`{_shape(hint)}" for name, hint in hints(kind).items()) or "nothing"


def _shape(hint: Any) -> str:
    from fedssa.core.fields import Like, Shaped

    for rule in getattr(hint, "__metadata__", ()):
        if isinstance(rule, Shaped):
            return f" [{', '.join(rule.dims)}]"
        if isinstance(rule, Like):
            return f" of the {rule.model} model"
    return ""


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
        yield "clients of one layout"
    if cls.groups == "architecture":
        yield "architectures that the server knows"
    if cls.fixed_rounds is not None:
        yield f"{cls.fixed_rounds} rounds"


def _toml(value: object) -> str:
    from fedssa.settings.toml import inline

    return inline(value)
