"""The shell command that repeats a run, typed at the root of a checkout. Nothing here imports torch."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedssa.defaults import SECTIONS, without_defaults
from fedssa.paper import PaperRun, every_run, runs_of
from fedssa.toml import inline

BASE = "recipes/quickstart.toml"  # which says nothing about [run]; every other section is said anew
FOUND_ANYWHERE = ("cifar10", "cifar100")  # or downloaded: where they lie here is of no use there


def command_of(table: Mapping[str, Any]) -> str:
    """Of a run's settings (RunDir.settings): a cell of the paper's experiments, or a recipe changed throughout."""
    wanted = without_defaults(table)
    if wanted["data"].get("name") in FOUND_ANYWHERE:
        wanted["data"].pop("dir", None)
    found = _paper_runs().get(_key(wanted | {"seed": 0}))
    if found is not None:
        name, run = found
        return experiment_command(name, PaperRun(run.cell, run.label, wanted["seed"]))
    return _run_command(wanted)


def experiment_command(name: str, run: PaperRun) -> str:
    """With as few restrictions as leave this run alone."""
    cell, chosen = run.cell, dict[str, list[Any]]()
    words = ["fedssa", "experiment", name, "--scale", cell.scale]
    for option, value in {"data": cell.data, "clients": cell.clients, "cells": cell.name}.items():
        narrowed = {**chosen, option: [value]}
        if _num_cells(name, cell.scale, narrowed) < _num_cells(name, cell.scale, chosen):
            chosen = narrowed
            words += [f"--{option}", str(value)]
    return shlex.join([*words, "--methods", run.label, "--seed", str(run.seed)])


def _num_cells(name: str, scale: str, chosen: Mapping[str, Any]) -> int:
    return len({run.cell for run in runs_of(name, scale, [0], **chosen)})


def _run_command(table: Mapping[str, Any]) -> str:
    words = ["fedssa", "run", BASE, "--set", f"seed={table['seed']}"]
    for section in (*SECTIONS, "method"):
        if table[section] or section != "run":
            words += ["--set", f"{section}={inline(table[section])}"]
    return shlex.join(words)


@cache
def _paper_runs() -> dict[str, tuple[str, PaperRun]]:
    runs: dict[str, tuple[str, PaperRun]] = {}
    for name, run in every_run(seed=0):
        runs.setdefault(_key(without_defaults(run.table())), (name, run))
    return runs


def _key(table: Mapping[str, Any]) -> str:
    return json.dumps(table, sort_keys=True)
