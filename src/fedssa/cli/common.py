"""All commands share the application, its two consoles and the options that recur."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedssa.cli.completion import methods, recipes
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.runs.trackers import Tracking
    from fedssa.settings.recipe import Settings

WIDE = 160  # columns of a table that is not shown on a terminal

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Model-heterogeneous personalized federated learning: FedSSA and the methods it is compared with.",
    epilog="Exit codes: 0 done · 1 the run failed (diverged, a client's own code) · 2 bad input · 130 interrupted",
)
out = Console(width=None if sys.stdout.isatty() else WIDE, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)

Recipe = Annotated[
    Path, typer.Argument(help="A recipe: one run as a TOML file.", show_default=False, autocompletion=recipes)
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. local.epochs=2.")
]
MethodName = Annotated[
    str | None, typer.Option("--method", help="Another method (its options at their defaults).", autocompletion=methods)
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds the data (data.dir).")]
Figure = Annotated[Path | None, typer.Option("--figure", help="Write a picture (PNG) to this file.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: one per core]")]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Workers as Ray actors: on the cluster with this address (auto: this machine's); local: start Ray here.",
    ),
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write events for TensorBoard into the run directory, live.")
]

Trackers = Annotated[
    list[str] | None,
    typer.Option("--tracker", metavar="NAME", help="tensorboard, mlflow, wandb, or an import path; may be repeated."),
]


def tracking(names: list[str] | None, *, tensorboard: bool) -> "Tracking":
    from fedssa.runs.trackers import Tracking
    from fedssa.settings.trackers import trackers_of

    return Tracking(trackers_of(dict.fromkeys([*(names or []), *(["tensorboard"] if tensorboard else [])])))


def recipe_settings(
    recipe: Path | None, assignments: list[str] | None, method: str | None, data_dir: Path | None
) -> "Settings":
    from fedssa.settings.recipe import parse_settings

    return parse_settings(recipe_table(recipe, assignments, method, data_dir))


def recipe_table(
    recipe: Path | None, assignments: list[str] | None, method: str | None, data_dir: Path | None
) -> dict[str, Any]:
    from fedssa.settings.recipe import read_recipe

    table = changed(read_recipe(recipe) if recipe else {}, assignments, method)
    if data_dir and isinstance(table.get("data", {}), dict):
        table["data"] = {**table.get("data", {}), "dir": str(data_dir)}
    return table


def changed(table: dict[str, Any], assignments: list[str] | None, method: str | None) -> dict[str, Any]:
    """Puts what the options say in the place of what a file says."""
    from fedssa.settings.recipe import override

    table = {**table, "method": {"name": method}} if method else table
    for assignment in assignments or []:
        table = override(table, assignment)
    return table


def need_flower() -> None:
    """Says how to install Flower if it is missing, before a command about sites imports anything of theirs."""
    if find_spec("flwr") is None:
        raise SettingsError("across sites needs Flower: pip install 'fedssa[flower]'")


def print_list(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for name, text in lines.items():
        out.print(f"[bold]{name:<{width}}[/]  {plain(text)}", highlight=False, soft_wrap=True)


def first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def plain(text: str) -> str:
    """Makes one line of a text, no part of which is taken for markup."""
    return " ".join(text.split()).replace("[", r"\[")
