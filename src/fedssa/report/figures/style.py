"""The style of a method is one colour in every picture, and dashes, shades and marks where that is not enough.

A run directory says which colour its method has ("about" in settings.json, written when the run starts). A method that
says nothing gets a colour from its name. So no colour depends on what else is in a picture, or in which order.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from fedssa.report.figures.colours import colour_of_name, is_colour, shaded
from fedssa.runs.directory import RunDir

FIRST = ("standalone", "fedssa")  # families of methods that a reader looks for: the reference, then ours
DASHES = ("", "7 3", "2 3", "9 3 2 3")
SHAPES = ("circle", "square", "up", "diamond", "down", "cross", "plus", "star")


@dataclass(frozen=True)
class Style:
    series: int  # its number on the page
    label: str
    ink: str  # #rrggbb
    dash: str
    shape: str


def styles(labelled: Iterable[tuple[str, RunDir]]) -> dict[str, Style]:
    """Returns styles by label, in the order of tables. Dashes, then shades, tell labels of one method apart."""
    methods, colours = dict[str, str](), dict[str, set[str]]()
    for label, run_dir in labelled:
        method = methods.setdefault(label, str(run_dir.settings["method"]["name"]))
        colours.setdefault(method, set()).update(_declared(run_dir))
    found: dict[str, Style] = {}
    variants: dict[str, int] = {}
    for series, label in enumerate(sorted(methods, key=lambda label: _place(methods[label], label))):
        method = methods[label]
        variant = variants[method] = variants.get(method, -1) + 1
        colour = min(colours[method], default=colour_of_name(method))
        found[label] = _style(series, label, method, colour, variant)
    return found


def _declared(run_dir: RunDir) -> list[str]:
    colour = str(run_dir.about.get("colour", "")).lower()
    return [colour] if is_colour(colour) else []


def _style(series: int, label: str, method: str, colour: str, variant: int) -> Style:
    shape = SHAPES[(zlib.crc32(method.encode()) + variant) % len(SHAPES)]
    return Style(series, label, shaded(colour, variant // len(DASHES)), DASHES[variant % len(DASHES)], shape)


def _place(method: str, label: str) -> tuple[int, str, list[tuple[int, str]]]:
    family = next((i for i, name in enumerate(FIRST) if method.split("-")[0] == name), len(FIRST))
    parts = re.findall(r"\d+|\D+", label)  # 2 before 10
    return family, method, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
