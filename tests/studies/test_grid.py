"""Sweeps: what is varied, what chooses, and what is left alone."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedssa.errors import SettingsError
from fedssa.records import Outcome
from fedssa.report.tables.selection import candidate, choose, validation_accuracy
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import override, parse_settings
from fedssa.settings.toml import document
from fedssa.studies.grid import Axis, combinations, plan, read_axis
from tests.cli.test_cli import RECIPE, Command, command, here  # noqa: F401
from tests.report.fake_runs import make_run
from tests.tiny import TINY, tiny, tree


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("local.epochs=1,10", Axis("local.epochs", (1, 10))),
        ("local.lr=0.1, 1e-2", Axis("local.lr", (0.1, 0.01))),
        ("method.fusion=sum,convex", Axis("method.fusion", ("sum", "convex"))),
        ('models.archs=["mlp-1"],["mlp-1","mlp-2"]', Axis("models.archs", (["mlp-1"], ["mlp-1", "mlp-2"]))),
        ("local.augment=true,false", Axis("local.augment", (True, False))),
    ],
)
def test_values_are_toml(text: str, axis: Axis) -> None:
    assert read_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local.epochs", "should be key=value,value"),
        ("local.epochs=", "should be key=value,value"),
        ("=1,2", "should be key=value,value"),
        ("local.epochs=1,1", "names a value twice"),
        ("seed=1,2", "use --seeds"),
        ("local.lr=2020-01-01", "no setting takes such a value"),
        ("partition.clients=4,8", "would change the data that accuracy is measured on"),
    ],
)
def test_bad_grids(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_axis(text)


def test_all_combinations_each_with_its_own_directory(tmp_path: Path) -> None:
    axes = [read_axis("local.epochs=1,2"), read_axis('models.archs=["mlp-1"],["mlp-1","mlp-2"],["mlp-1/"]')]
    combined = combinations({**tiny(), "models": {"width": 16}}, axes)
    assert [next(iter(one.choice.values())) for one in combined] == [1, 1, 1, 2, 2, 2]
    folders = [one.folder for one in combined]
    assert len(set(folders)) == 6
    assert all("/" not in folder for folder in folders)
    planned = plan([one for one in combined if one.choice["models.archs"] != ["mlp-1/"]], 2, tmp_path)
    assert [[run.settings.seed for run in runs] for runs in planned] == [[7, 8]] * 4
    assert [runs[0].settings.local.epochs for runs in planned] == [1, 1, 2, 2]
    assert not planned[0][0].settings.run.keep_models
    assert combinations(tiny(), [read_axis("local.epochs=1,2")])[1].folder == "local.epochs=2"


def fake(path: Path, test: float, val: float | None, outcome: str = "finished") -> RunDir:
    run = make_run(path, [{0: 0.1, 1: 0.1}, {0: (test, val)}, {1: (test, val)}])
    run.write_outcome(Outcome(outcome, t=1))  # type: ignore[arg-type]
    return run


def test_validation_chooses_and_not_test(tmp_path: Path) -> None:
    low = candidate({"a": 1}, [fake(tmp_path / "low", test=0.9, val=0.5)])
    high = candidate({"a": 2}, [fake(tmp_path / "high", test=0.2, val=0.6)])
    equal = candidate({"a": 3}, [fake(tmp_path / "equal", test=1.0, val=0.6)])
    assert choose([low, high, equal]) is high  # of equal ones the first
    assert high.test() == (0.2,)


def test_every_seed_counts_and_must_have_finished(tmp_path: Path) -> None:
    good = [fake(tmp_path / f"good{i}", 0.5, val) for i, val in enumerate((0.4, 0.6))]
    bad = [fake(tmp_path / "bad0", 0.5, 0.9), fake(tmp_path / "bad1", 0.5, 0.9, "diverged")]
    candidates = [candidate({"a": 1}, bad), candidate({"a": 2}, good)]
    assert candidates[0].mean is None
    assert candidates[0].outcome == "diverged, round 1, finished"
    assert candidates[1].mean == pytest.approx(0.5)
    assert candidates[1].spread == pytest.approx(0.2 / 2**0.5)
    assert choose(candidates) is candidates[1]
    assert choose(candidates[:1]) is None


def test_the_latest_validation_of_each_client_that_has_one(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", [{0: (0.1, 0.1), 1: (0.1, None)}, {0: (0.5, 0.25)}, {1: (0.5, None)}, {0: (0.5, 0.75)}]
    )
    assert validation_accuracy(run) == 0.75
    assert validation_accuracy(make_run(tmp_path / "none", [{0: (0.1, None)}])) is None


def test_a_sweep_from_end_to_end(command: Command, here: Path) -> None:  # noqa: F811
    args = ["sweep", "tiny.toml", "--grid", "local.lr=0.1,1e12", "--grid", "method.fusion=sum,replace"]
    args += ("--seeds", "2", "--set", "rounds.total=2", "--workers", "1", "--out", "tried")
    done = command(*args)
    assert done.code == 0, done.err
    assert "4 combinations, 8 runs, 0 there already, 8 left" in done.err
    assert len(re.findall(r"^ 1000000000000\.0 +(?:sum|replace) +– +diverged, round 0", done.out, re.MULTILINE)) == 2
    assert len(re.findall(r"^ 0\.1 +(?:sum|replace) +\d+\.\d ± \d+\.\d", done.out, re.MULTILINE)) == 2
    assert done.out.count("chosen:") == 1
    assert "their test parts chose nothing" in done.out

    chosen = parse_settings(tomllib.loads((here / "tried" / "chosen.toml").read_text()))
    words = shlex.split(re.findall(r"run: +(.*)", done.out)[0])
    assert words[:3] == ["fedssa", "run", "tiny.toml"]
    said: dict[str, Any] = tomllib.loads(RECIPE)
    for assignment in words[4::2]:
        said = override(said, assignment)
    assert parse_settings(said).table == chosen.table
    assert chosen.local.lr == 0.1

    before = tree(here / "tried")
    again = command(*args)
    assert "8 there already, 0 left" in again.err
    assert again.out == done.out
    assert tree(here / "tried") == before


def test_a_sweep_that_finds_nothing(command: Command, here: Path) -> None:  # noqa: F811
    done = command("sweep", "tiny.toml", "--grid", "local.lr=1e12", "--workers", "1")
    assert done.code == 1
    assert "nothing to choose from" in done.err
    assert (here / "runs" / "sweep-tiny").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "what is to vary?"),
        (["--grid", "local.epochs=1,0"], "local.epochs = 0: should be greater than or equal to 1"),
        (["--grid", "local.epoch=1,2"], "unknown setting local.epoch (did you mean epochs?)"),
        (["--grid", "local.epochs=1,2", "--grid", "local.epochs=3"], "--grid local.epochs: is given twice"),
        (["--grid", "seed=1,2"], "use --seeds"),
        (["--grid", "local.lr=[0.1,0.2"], "local.lr"),
    ],
)
def test_mistakes_are_found_before_anything_runs(command: Command, here: Path, args: list[str], message: str) -> None:  # noqa: F811
    refused = command("sweep", "tiny.toml", *args)
    assert refused.code == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1
    assert not (here / "runs").exists()


def test_a_recipe_is_written_as_it_was_read() -> None:
    table = {**TINY, "data": {"name": "m:f", "a key": {"b": [1, 2.5, "ä\n"]}, "flag": True}}
    assert tomllib.loads(document(table)) == table
