"""settings."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from fedssa.cli.common import app, out, plain
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.studies.listed import ListedPart

HEADINGS = ("key", "kind", "default", "meaning")


@app.command()
def settings(
    section: Annotated[str | None, typer.Argument(help="One section of a recipe.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables for a page.")] = False,
) -> None:
    """List every setting of a recipe: what it may be, its default and its meaning."""
    from fedssa.studies.listed import listed

    found = _from_classes() if markdown else listed().settings
    known = list(dict.fromkeys(part.section.split(".")[0] for part in found))
    if section is not None and section not in known:
        raise SettingsError(f"there is no section {section!r}; known: {', '.join(known)}")
    chosen = [part for part in found if section in (None, part.section.split(".")[0])]
    if markdown:
        typer.echo("\n".join(line for _, of in groupby(chosen, lambda part: part.section) for line in _page(list(of))))
        return
    for part in chosen:
        _print(part)


def _from_classes() -> "list[ListedPart]":
    from fedssa.studies.catalogue import as_listed

    return as_listed().settings


def _title(part: "ListedPart") -> str:
    section, _, key = part.section.partition(".")
    if part.name is None:
        return f"[{section}]"
    return f"{key or 'name'} = {part.name}" if part.name.endswith("]") else f'{key or "name"} = "{part.name}"'


def _print(part: "ListedPart") -> None:
    from rich import box
    from rich.table import Table

    where = "" if part.name is None else f"[{part.section.partition('.')[0]}] "
    out.print(f"[bold]{plain(where + _title(part))}[/]  {plain(part.about)}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "key")
    for setting in part.settings:
        table.add_row(*(plain(cell).replace("`", "") for cell in setting))
    if part.settings:
        out.print(table)


def _page(of: "list[ListedPart]") -> Iterator[str]:
    section, _, key = of[0].section.partition(".")
    yield f"## `[{section}]`: `{key}`" if key else f"## `[{section}]`"
    yield ""
    for part in of:
        if part.name is not None:
            yield from (f"### `{_title(part)}`", "")
        yield from (part.about, "") if part.about else ()
        if part.settings:
            yield from (f"| {' | '.join(HEADINGS)} |", f"| {' | '.join(['---'] * len(HEADINGS))} |")
        for setting in part.settings:
            key, kind, default, meaning = setting
            cells = (f"`{key}`", kind, f"`{default}`", meaning)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""
