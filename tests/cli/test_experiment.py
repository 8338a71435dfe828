"""fedssa experiment: all experiments of the paper, in small, and what a user sees of them."""

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from fedssa.cli.experiment import _at_other_scales
from fedssa.cli.progress import _Overall
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import EXPERIMENTS, experiment_command, runs_of
from fedssa.studies.plan import Planned
from tests.cli.test_cli import Command, command, here  # noqa: F401
from tests.python import Program, python
from tests.tiny import tree

AT_MOST = 180.0  # seconds, for all of them


# Some methods of the experiments that have all; each of the others runs in tests of its own.
SOME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("table-hetero", "curves", "individual", "tradeoff"), ("standalone", "fedssa", "fedproto")),
    "table-homo": ("fedssa", "fedavg"),
    "trained": ("standalone", "fedssa-convex"),
    "groups": ("fedssa-groups", "groups-svd", "fedssa-plus-convex-x3"),
    "every-method": ("standalone", "fedgh"),
    "every-public": ("standalone-public", "ds-fl"),
    "hostile": ("fedavg", "fedavg-median"),
    "privacy": ("fedssa-sigma0", "fedssa-sigma0.1"),
}


@pytest.mark.filterwarnings("ignore:.*uploads are clipped")
def test_all_experiments_in_small(command: Command, here: Path) -> None:  # noqa: F811
    began, ran, planned = time.monotonic(), 0, set[str]()
    for name in EXPERIMENTS:
        chosen = SOME.get(name, ())
        few = ["--methods", ",".join(chosen)] if chosen else []
        done = command("experiment", name, "--scale", "smoke", "--out", "all", "--workers", "1", *few)
        assert done.code == 0, done.err
        for run in runs_of(name, "smoke", [0], methods=chosen):
            planned.add(run.path)
            assert re.search(rf"^ {run.label} .*\d+\.\d", done.out, flags=re.MULTILINE), done.out
            assert RunDir.open(here / "all" / run.path).outcome()
        assert "next: fedssa report all" in done.out
        ran += int(re.findall(r"(\d+) left", done.err)[0])
    assert time.monotonic() - began < AT_MOST
    assert ran == len(planned)  # each one once

    assert "mean change of the global rows" in command("experiment", "shaking", "--scale", "smoke", "--out", "all").out
    with np.load(here / "all/smoke/digits/hetero-n4-c0.5-tsne/fedssa-s0/representations.npz") as kept:
        assert len(kept["labels"]) > 10

    before = tree(here / "all")
    again = command(
        "experiment", "tradeoff", "--scale", "smoke", "--out", "all", "--methods", ",".join(SOME["tradeoff"])
    )
    assert "3 runs, 3 there already, 0 left" in again.err
    assert "nothing is left to run" in again.err
    assert "vs standalone" in again.out
    assert tree(here / "all") == before


def test_a_slice_of_several_seeds(command: Command, here: Path) -> None:  # noqa: F811
    args = ("experiment", "noniid-classes", "--scale", "smoke", "--out", "all", "--workers", "1", "--methods", "fedssa")
    one = command(*args, "--cells", "hetero-n4-c0.5-k10", "--seed", "5")
    assert one.code == 0, one.err
    assert "1 runs, 0 there already, 1 left" in one.err
    (run,) = runs_of("noniid-classes", "smoke", [5], cells=["hetero-n4-c0.5-k10"], methods=["fedssa"])
    assert RunDir.open(here / "all" / run.path).about["command"] == experiment_command("noniid-classes", run)
    assert "a guess from how fast this machine trains" in one.err
    both = command(*args, "--cells", "hetero-n4-c0.5-k10", "--seed", "5", "--seeds", "2", "--tensorboard")
    assert "2 runs, 1 there already, 1 left" in both.err
    assert "an estimate from the rounds that were timed" in both.err
    assert re.search(r"fedssa +\d+\.\d ± \d+\.\d", both.out), both.out
    folder = here / "all" / "smoke" / "digits" / "hetero-n4-c0.5-k10"
    assert sorted(path.name for path in folder.iterdir()) == ["fedssa-s5", "fedssa-s6"]
    assert all(list((run / "tensorboard").iterdir()) for run in folder.iterdir())


def test_larger_headers_are_a_second_column_and_nothing_runs_twice(command: Command, here: Path) -> None:  # noqa: F811
    """Standalone with headers three times larger is the control, which lies beside the usual ones."""
    args = ("experiment", "table-hetero", "--scale", "smoke", "--out", "all", "--workers", "1")
    control = command(*args, "--methods", "standalone-scaled")
    assert control.code == 0, control.err
    both = command(*args, "--methods", "standalone,fedssa", "--header-scale", "1,3")
    assert both.code == 0, both.err
    assert "4 runs, 1 there already, 3 left" in both.err
    ran = sorted(str(path.parent.relative_to(here / "all/smoke/digits")) for path in here.rglob("settings.json"))
    usual = [f"hetero-n4-c0.5/{name}-s0" for name in ("fedssa", "standalone", "standalone-scaled")]
    assert ran == sorted([*usual, "hetero-n4-c0.5-x3/fedssa-s0"])
    scaled = RunDir.open(here / "all/smoke/digits/hetero-n4-c0.5-x3/fedssa-s0")
    assert scaled.settings["models"]["header_scale"] == 3.0
    assert scaled.about["command"].startswith("fedssa experiment table-hetero --scale smoke --header-scale 3 ")
    assert "header × 3" in both.out
    assert re.search(r"^ standalone +\d+\.\d +\d+\.\d", both.out, flags=re.MULTILINE), both.out
    assert both.out.count("vs standalone") == 2
    listed = command(*args, "--header-scale", "1,3", "--dry-run").out
    assert listed.count("standalone-scaled-s0") == 1
    assert "18 runs in 2 federations" in listed


def test_without_a_name_there_is_a_list_and_a_dry_run_runs_nothing(command: Command, here: Path) -> None:  # noqa: F811
    before = tree(here)
    assert {line.split()[0] for line in command("experiment").out.splitlines()} == EXPERIMENTS.keys()
    listed = command("experiment", "participation", "--dry-run", "--seeds", "2", "--out", "there")
    assert listed.code == 0
    assert "48 runs in 12 federations" in listed.out
    assert "there/reduced/cifar100/hetero-n100-c0.3/fedproto-s1  (to do)" in listed.out
    assert (
        "fedssa experiment participation --scale reduced --data cifar100 --cells hetero-n100-c0.3 "
        "--methods fedproto --seed 1 --out there\n"
    ) in listed.out
    assert tree(here) == before


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rounds_of_other_scales_are_looked_for_where_a_scale_has_the_same_cells(name: str) -> None:
    """Some cells are of one scale only, and what no other scale has cannot lie anywhere."""
    runs = runs_of(name, "reduced", [0], header_scales=(1.0, 3.0))
    others = _at_other_scales(name, runs)
    assert {run.cell.scale for run in others} <= {"full", "long"}
    assert all(experiment_command(name, run) for run in others)
    assert bool(others) == (name not in ("hostile", "privacy"))


def test_a_command_from_the_list_repeats_the_cell(command: Command, here: Path) -> None:  # noqa: F811
    args = ("experiment", "noniid-dirichlet", "--scale", "smoke", "--methods", "fedssa", "--cells")
    assert command(*args, "hetero-n4-c0.5-gamma0.1", "--out", "a", "--workers", "1").code == 0
    listed = command(*args, "hetero-n4-c0.5-gamma0.1", "--dry-run").out
    (line,) = re.findall(r"fedssa (experiment .*)", listed)
    assert command(*line.split(), "--out", "b", "--workers", "1").code == 0
    path = "smoke/digits/hetero-n4-c0.5-gamma0.1/fedssa-s0/rounds.jsonl"
    assert (here / "a" / path).read_bytes() == (here / "b" / path).read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table"], "table: there is no such experiment"),
        (["curves", "--scale", "big"], "the scales: full, long, reduced, smoke"),
        (["curves", "--clients", "ten"], "--clients ten: should be a number"),
        (["curves", "--scale", "smoke", "--data", "cifar10"], "it has: digits"),
        (["tsne", "--data-dir", "."], "holds no cifar10"),
        (["curves", "--header-scale", "1,0"], "--header-scale 0: should be a number above 0, or several: 1,3"),
        (["curves", "--header-scale", "large"], "--header-scale large: should be a number above 0"),
        (["shaking", "--methods", "fd"], "--methods fd: is not in shaking at scale reduced"),
    ],
)
def test_mistakes(command: Command, here: Path, args: list[str], message: str) -> None:  # noqa: F811
    refused = command("experiment", *args)
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1
    assert not (here / "runs").exists()


def test_one_display_over_all_runs_and_what_diverged_is_not_waited_for() -> None:
    (first, *_, last) = [
        Planned(Path(run.path), parse_settings(run.table())) for run in runs_of("table-hetero", "smoke", [0])
    ]
    with Progress() as bar:
        overall = _Overall(bar, {first.path: 2 * first.work_a_round, last.path: 2 * last.work_a_round})
        overall.heard(first, RoundRecord(-1, {"head": 0.1}, 4))
        overall.heard(first, RoundRecord(0, {"head": 0.2}, 4))  # and then it diverges
        overall.heard(last, RoundRecord(0, {"head": 0.2}, 4))
        overall.heard(last, RoundRecord(1, {"head": 0.2}, 4))
        assert bar.tasks[0].finished
        assert bar.tasks[0].completed == 3 * first.work_a_round


def test_ctrl_c_stops_and_the_same_command_continues(tmp_path: Path) -> None:
    args = ("-m", "fedssa", "experiment", "tsne", "--scale", "smoke", "--out", "all", "--workers", "1")
    program = Program(*args, cwd=tmp_path)
    while program.runs and not any(file.stat().st_size for file in tmp_path.rglob("rounds.jsonl")):
        time.sleep(0.01)
    program.kill(signal.SIGINT)
    stopped = program.end()
    assert stopped.returncode == 130
    assert "stopped; the same command continues" in stopped.stderr
    done = python(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of them begun" in done.stderr
