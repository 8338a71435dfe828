"""A grid varies some settings of a recipe, in all combinations of the values given for them."""

import hashlib
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssa.errors import SettingsError
from fedssa.settings.recipe import override, parse_settings
from fedssa.settings.toml import inline, parsed
from fedssa.studies.plan import Planned

LONGEST_NAME = 100  # of a directory, in characters

Table = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """An axis such as `local.epochs=1,10` is a setting and the values it is to take."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Combination:
    choice: dict[str, Any]  # setting -> value
    table: Table  # the recipe with these values

    @property
    def assignments(self) -> list[str]:
        return [f"{key}={inline(value)}" for key, value in self.choice.items()]

    @property
    def folder(self) -> str:
        """Returns a readable name that follows from the values."""
        said = ",".join(self.assignments)
        plain = re.sub(r"[^A-Za-z0-9._=,+-]", "", said)
        if re.sub(r'[\s"]', "", said) == plain and len(plain) <= LONGEST_NAME:
            return plain
        return f"{plain[:LONGEST_NAME]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def read_axis(text: str) -> Axis:
    key, sign, listed = text.partition("=")
    key = key.strip()
    if not sign or not key or not listed.strip():
        raise SettingsError(f"--grid {text}: should be key=value,value, for example local.epochs=1,10")
    if key == "seed":
        raise SettingsError("--grid seed: use --seeds")
    if key.split(".")[0] in ("data", "partition", "public"):
        raise SettingsError(f"--grid {key}: would change the data that accuracy is measured on; sweep other settings")
    values = _values(listed)
    try:
        inline(values)
    except TypeError as error:  # such as a date
        raise SettingsError(f"--grid {text}: no setting takes such a value ({error})") from error
    if any(values.count(value) > 1 for value in values):
        raise SettingsError(f"--grid {text}: names a value twice")
    return Axis(key, tuple(values))


def _values(listed: str) -> list[Any]:
    """Reads TOML values separated by commas; a word that is no TOML is a string, as with --set."""
    try:
        return list(parsed(f"values = [{listed}]")["values"])
    except tomllib.TOMLDecodeError:
        return [override({}, f"value={word}")["value"] for word in listed.split(",")]


def combinations(table: Mapping[str, Any], axes: Sequence[Axis]) -> list[Combination]:
    keys = [axis.key for axis in axes]
    if not axes:
        raise SettingsError("what is to vary? For example: --grid local.epochs=1,10")
    if len(set(keys)) < len(keys):
        raise SettingsError(f"--grid {next(key for key in keys if keys.count(key) > 1)}: is given twice")
    return [
        _combination(table, dict(zip(keys, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def _combination(table: Mapping[str, Any], choice: dict[str, Any]) -> Combination:
    varied = dict(table)
    for key, value in choice.items():
        varied = override(varied, f"{key}={inline(value)}")
    return Combination(choice, varied)


def plan(combined: Sequence[Combination], num_seeds: int, out: Path) -> list[list[Planned]]:
    """Plans the runs of each combination, one a seed, and finds what is wrong with any before the first starts."""
    planned = []
    for one in combined:
        first = parse_settings(one.table).seed
        run = {**one.table.get("run", {}), "keep_models": False}
        planned.append(
            [
                Planned(
                    out / one.folder / f"s{seed}",
                    parse_settings({**one.table, "seed": seed, "run": run}),
                    ", ".join(one.assignments),
                )
                for seed in range(first, first + num_seeds)
            ]
        )
    return planned
