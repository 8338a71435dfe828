"""Every setting in words: kinds and ranges, defaults, comments; and the command that prints them."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

from fedssa.settings.recipe import SECTIONS
from fedssa.settings.reference import Part, Setting, parts
from tests.cli.test_cli import Command, command, here

__all__ = ["command", "here"]  # the fixtures


@dataclass
class Base:
    kept: Annotated[float, Gt(0), Le(1)]  # of the base; None: all
    said_again: int | None = 0  # here


@dataclass
class Mine(Base):
    """The first line tells.

    The second does not.
    """

    said_again: Annotated[int, Ge(1)] | None = None  # there
    mode: Literal["a", "b"] = "a"
    names: Annotated[tuple[str, ...], Len(1)] = ("x", "y")
    limit: Annotated[float, Lt(2)] = 0.5
    either: str | dict[str, int] = "so"  # a name
    on: bool = True


def test_a_class_is_told_in_words() -> None:
    part = Part("mine", None, Mine)
    assert part.about == "The first line tells."
    assert part.settings == [
        Setting("kept", "number, in (0, 1]", "required", "of the base; none: all"),
        Setting("said_again", "whole number, ≥ 1", "none", "there"),
        Setting("mode", "`a`, `b`", '"a"', ""),
        Setting("names", "list of text, at least 1", '["x", "y"]', ""),
        Setting("limit", "number, < 2", "0.5", ""),
        Setting("either", "text or table", '"so"', "a name"),
        Setting("on", "true or false", "true", ""),
    ]
    assert Part("base", None, Base).about == ""  # nobody wrote a docstring


def test_every_section_of_a_recipe_is_there() -> None:
    assert list(dict.fromkeys(part.section.split(".")[0] for part in parts())) == list(SECTIONS)


def test_every_setting_has_a_meaning() -> None:
    """It is the comment at its line, or the first line of the class speaks of it."""
    dumb = [(part, key.key) for part in parts() for key in part.settings if not key.meaning]
    assert [(part.section, part.name, key) for part, key in dumb if key not in part.about] == []


def test_a_section_is_printed(command: Command) -> None:
    shown = command("settings", "rounds")
    assert shown.code == 0
    assert re.search(r"fraction +number, in \(0, 1\] +1\.0 +C, ", shown.out)
    assert "[local]" not in shown.out
    page = command("settings", "local", "--markdown").out
    assert '\n### `schedule = "step"`\n' in page
    assert "| `gamma` | number, in (0, 1] | `0.1` | by which each next one is multiplied |" in page


def test_a_section_that_is_not_there_is_refused_in_one_line(command: Command) -> None:
    shown = command("settings", "round")
    assert shown.code == 2
    assert shown.err.startswith("error: there is no section 'round'; known: data, public, partition, models, local,")
