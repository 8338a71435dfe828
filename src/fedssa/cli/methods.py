"""methods."""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedssa.cli.common import DataDir, Set, app, err, out, plain, print_list, recipe_table
from fedssa.cli.completion import methods as names
from fedssa.errors import ClientError, ModelError, SettingsError

if TYPE_CHECKING:
    from fedssa.studies.catalogue import Entry
    from fedssa.studies.listed import ListedMethod
    from fedssa.studies.rehearsal import Numbers

HEADINGS = ("method", "shares", "models", "needs", "trained by")
NONE = "–"
EXACT = 100_000  # smaller numbers are shown to the last digit
WIDTH = 100  # columns of the table, at most


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, to read all about it.", show_default=False, autocompletion=names)
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--for", metavar="RECIPE", help="Add the numbers a round, up and down, of a participant in this recipe."
        ),
    ] = None,
    assignments: Set = None,
    data_dir: DataDir = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Tables for a page: what each one does, sends, needs and can be told.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Write a picture of the family to this file (SVG or PNG).")
    ] = None,
) -> None:
    """List the methods and presets: what they share, which models may take part, what they need, and who trains."""
    if name is not None:
        _print_one(name)
    elif recipe is None and figure is None and not markdown:
        _print_list()
    else:
        table = None if recipe is None else recipe_table(recipe, assignments, None, data_dir)
        _print_from_classes(table, figure, markdown=markdown)


def _print_from_classes(table: Mapping[str, Any] | None, figure: Path | None, *, markdown: bool) -> None:
    """Asks the classes themselves, which takes torch."""
    from fedssa.studies.catalogue import entries

    found = entries()
    numbers = {} if table is None else _numbers(found, table)
    if figure is not None:
        _draw(found, figure)
    if markdown:
        typer.echo("\n".join((*_facts(found, numbers), "", *_messages(found), "", *_presets())))
        return
    if table is None:
        _print_list()
    else:
        _print_numbers(found, numbers)
    if figure is not None:
        out.print(f"picture: {figure}", soft_wrap=True, highlight=False)


def _draw(listed: "list[Entry]", figure: Path) -> None:
    from fedssa.core.method import Kind
    from fedssa.report.figures.family import Member
    from fedssa.report.figures.pictures import draw_family

    members = [
        Member(entry.name, entry.method.colour, entry.shares, entry.models, entry.method.server_trains)
        for entry in listed
    ]
    draw_family(members, get_args(Kind), figure)


# -- numbers a round -------------------------------------------------------------------------------------------------
def _numbers(listed: "list[Entry]", table: Mapping[str, Any]) -> "dict[str, Numbers | str]":
    """Returns what a participant sends and receives with each method, or why the recipe does not allow it."""
    from fedssa.studies.rehearsal import Rehearsal

    rehearsal = Rehearsal(table)  # what is wrong with the recipe itself is said here, once
    found: dict[str, Numbers | str] = {}
    with err.status("rehearsing") as status:
        for entry in listed:
            status.update(f"rehearsing {entry.name}")
            try:
                found[entry.name] = rehearsal.numbers(entry.name)
            except (SettingsError, ModelError, ClientError) as error:
                found[entry.name] = str(error).removeprefix(f"method.name = {entry.name!r}: ")
    return found


def _both_ways(entry: "Entry", numbers: "Numbers | str | None") -> list[str]:
    if numbers is None or isinstance(numbers, str):
        return [NONE, NONE]
    about = "≈ " if entry.sizes_vary else ""
    ways = ((numbers.up, numbers.bytes_up), (numbers.down, numbers.bytes_down))
    return [f"{_range(sizes)} bytes" if any(sizes) and not any(sent) else about + _range(sent) for sent, sizes in ways]


def _range(values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return _amount(low) if low == high else f"{_amount(low)} … {_amount(high)}"


def _amount(value: int) -> str:
    from fedssa.report.read.costs import short

    return f"{value:,}" if value < EXACT else short(value)


# -- on the terminal -------------------------------------------------------------------------------------------------
def _cells(method: "ListedMethod") -> list[str]:
    needed = ", ".join(method.needs) or NONE
    return [method.name, method.shared, method.models, needed, ", ".join(method.trained_by)]


def _print_table(rows: Iterable[list[str]], ways: tuple[str, ...] = ()) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "method")
    for heading in ways:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out.print(table, width=min(WIDTH, out.width))


def _print_list() -> None:
    from fedssa.studies.listed import listed

    found = listed().methods
    _print_table(map(_cells, found))
    presets = ((name, method.cls, fixed) for method in found for name, fixed in method.presets.items())
    said = {name: (cls, ", ".join(f"{key} = {value}" for key, value in fixed.items())) for name, cls, fixed in presets}
    print_list({name: f"{cls} with {fixed}" for name, (cls, fixed) in said.items()})
    out.print("\nMore: fedssa methods NAME, and --for RECIPE for the numbers a round", highlight=False)


def _print_numbers(found: "list[Entry]", numbers: "Mapping[str, Numbers | str]") -> None:
    _print_table([_cells(entry.listed) + _both_ways(entry, numbers[entry.name]) for entry in found], ("up", "down"))
    out.print("up, down: numbers that a participant sends and receives in a round, smallest … largest model;")
    out.print("bytes where it sends no floating-point number")
    if public := {each.num_public for each in numbers.values() if not isinstance(each, str)} - {0}:
        out.print(f"with public data: P = {max(public):,} public samples a round")
    if any(entry.sizes_vary and not isinstance(numbers[entry.name], str) for entry in found):
        out.print("≈: it depends on what the clients have learnt")
    for name, reason in numbers.items():
        if isinstance(reason, str):
            out.print(f"{name}: {plain(reason)}", highlight=False, soft_wrap=True)


def _print_one(name: str) -> None:
    """Prints the docstring of the method's file, which has its paper and equations, then what it is in our words."""
    from rich.text import Text

    from fedssa.settings.toml import inline
    from fedssa.studies.listed import listed

    ours = next((method for method in listed().methods if name in (method.name, *method.presets)), None)
    one, about = _imported(name) if ours is None else (ours, ast.get_docstring(ast.parse(ours.source.read_bytes())))
    options = one.options | one.presets.get(name, {})
    out.print(Text(about or ""), soft_wrap=True)
    facts = dict(zip(HEADINGS[1:], _cells(one)[1:], strict=True))
    out.print()
    print_list(facts | {"options": ", ".join(f"{key} = {inline(value)}" for key, value in options.items()) or NONE})


def _imported(name: str) -> "tuple[ListedMethod, str]":
    """Finds a method by its import path, and what its file says."""
    from fedssa.core.method import Method
    from fedssa.methods import METHODS, PRESETS
    from fedssa.settings.build import look_up
    from fedssa.studies.catalogue import Entry

    cls: Any = look_up("method", name, METHODS, PRESETS)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise SettingsError(f"method = {name!r}: should name a method")
    entry = Entry(name, cls)
    return entry.listed, inspect.getdoc(inspect.getmodule(cls)) or entry.about


# -- for a page ------------------------------------------------------------------------------------------------------
def _facts(listed: "list[Entry]", numbers: "Mapping[str, Numbers | str]") -> Iterator[str]:
    ways = ["up", "down"] if numbers else []
    yield from _head("method", "what it does", *HEADINGS[1:], *ways)
    for entry in listed:
        link = f"[`{entry.name}`](../src/fedssa/methods/{entry.module}.py)"
        yield _line(
            link, entry.about, *_cells(entry.listed)[1:], *(_both_ways(entry, numbers[entry.name]) if ways else ())
        )


def _messages(listed: "list[Entry]") -> Iterator[str]:
    yield from _head("method", "goes up", "comes down", "options")
    for entry in listed:
        up, down = ("<br>".join(fields) or "nothing" for fields in (entry.up, entry.down))
        yield _line(f"`{entry.name}`", up, down, _settings(entry.options) or NONE)


def _presets() -> Iterator[str]:
    from fedssa.methods import METHODS

    yield from _head("preset", "is", "with")
    for name, cls in METHODS.items():
        for preset, fixed in cls.presets.items():
            yield _line(f"`{preset}`", f"`{name}`", _settings(fixed.means))


def _head(*headings: str) -> Iterator[str]:
    yield _line(*headings)
    yield _line(*["---"] * len(headings))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _settings(values: Mapping[str, Any]) -> str:
    from fedssa.settings.toml import inline

    return ", ".join(f"`{name} = {inline(value)}`" for name, value in values.items())
