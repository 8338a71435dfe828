"""Comparisons: what is run, what is not run again, and what the table says."""

import json
import re
import time
from pathlib import Path
from statistics import variance

import numpy as np
import pytest

import fedssa
from fedssa.errors import RunDirError, SettingsError
from fedssa.methods import METHODS
from fedssa.records import RoundRecord
from fedssa.report.read.comparison import compare_methods
from fedssa.report.read.summary import summarise
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.plan import one_pool, plan, run_all
from tests.cli.test_cli import RECIPE, Command, command, here  # noqa: F401
from tests.python import Program, python
from tests.tiny import FEW, tiny, tree, without_digest


def test_all_is_every_method_that_the_federation_allows_and_the_control(tmp_path: Path) -> None:
    different = {run.settings.table["method"]["name"] for run in plan(tiny(), ["all"], 1, tmp_path, keep_models=False)}
    same = {
        run.settings.table["method"]["name"]
        for run in plan(tiny(models={"archs": ["mlp-1"]}), ["all"], 1, tmp_path, keep_models=False)
    }
    usual = {name for name, kind in METHODS.items() if not kind.needs_same_models and kind.needs_public == "no"}
    assert {"standalone", "fedssa", "fedrep", "fedgh"} < usual
    assert different == usual | {"standalone-scaled"}
    assert same == different | {"fedavg"}
    public = {
        run.settings.table["method"]["name"]
        for run in plan(tiny(public={"per_round": 20}), ["all"], 1, tmp_path, keep_models=False)
    }
    with_public = {
        name
        for name, kind in METHODS.items()
        if kind.needs_public != "no" and not kind.needs_server_model and not kind.fixed_public and not kind.fixed_rounds
    }
    assert {"ds-fl", "fedkemf"} <= with_public
    assert public == different | with_public


def test_all_public_is_every_method_with_public_data_beside_its_controls(tmp_path: Path) -> None:
    table = tiny(public={"name": "slice", "per_round": 20}, models={"server": "mlp-1"})
    planned = {run.method: run.settings for run in plan(table, ["all-public"], 1, tmp_path, keep_models=False)}
    using = {name for name, kind in METHODS.items() if kind.needs_public != "no"}
    assert {"ds-fl", "fedkt", "fsfl"} < using
    assert list(planned)[:4] == ["standalone", "standalone-scaled", "standalone-public", "fedssa-plus"]
    assert planned.keys() == using | {"standalone", "standalone-scaled", "fedssa-plus"}
    for name, settings in planned.items():
        fixed = name in METHODS and METHODS[name].fixed_public
        assert settings.public is not None
        assert settings.public.per_round == (0 if fixed else 20)
        assert settings.rounds == parse_settings(table).rounds or name == "fedkt"
    assert (planned["fedkt"].rounds.total, planned["fedkt"].rounds.fraction) == (2, 1.0)


def test_all_public_leaves_out_whoever_needs_labels_of_the_tasks_classes(tmp_path: Path) -> None:
    other = {"name": "tests.studies.test_plan:letters", "per_round": 20}
    table = tiny(data={"name": "tests.studies.test_plan:figures"}, public=other, models={"server": "mlp-1"})
    planned = {run.method for run in plan(table, ["all-public"], 1, tmp_path, keep_models=False)}
    assert {"standalone-public", "fsfl", "ds-fl"} < planned
    assert "fedgems" not in planned
    with pytest.raises(SettingsError, match=r"--methods all-public: needs public data; add to the recipe: \[public\]"):
        plan(tiny(), ["all-public"], 1, tmp_path, keep_models=False)


def figures() -> dict[str, object]:
    return {"x": np.zeros((200, 6), np.float32), "y": np.arange(200) % 10, "class_names": list("0123456789")}


def letters() -> dict[str, object]:
    return {"x": np.ones((40, 6), np.float32), "y": np.arange(40) % 2, "class_names": ["a", "b"]}


def test_seeds_methods_and_the_recipes_own_options(tmp_path: Path) -> None:
    table = tiny(method={"name": "fedssa", "mu0": 0.25})
    planned = plan(table, ["standalone", "fedssa"], 2, tmp_path, keep_models=False)
    assert [run.path.name for run in planned] == ["standalone-s7", "fedssa-s7", "standalone-s8", "fedssa-s8"]
    assert planned[1].settings.table["method"]["mu0"] == 0.25
    assert not planned[0].settings.run.keep_models


def test_a_method_may_be_compared_with_itself_under_other_options(tmp_path: Path) -> None:
    table = tiny(method={"name": "fedssa", "mu0": 0.25})
    planned = plan(table, ["fedssa:t_stable=10:fusion=convex", "fedssa"], 1, tmp_path, keep_models=False)
    assert [run.path.name for run in planned] == ["fedssa-t_stable=10-fusion=convex-s7", "fedssa-s7"]
    assert [run.method for run in planned] == ["fedssa:t_stable=10:fusion=convex", "fedssa"]
    first, second = (run.settings.table["method"] for run in planned)
    assert first == second | {"t_stable": 10, "fusion": "convex"}
    own = plan(table, ["fedssa.methods.fedssa:FedSSA:mu0=0.5"], 1, tmp_path, keep_models=False)
    assert own[0].path.name == "FedSSA-mu0=0.5-s7"
    assert own[0].settings.table["method"]["mu0"] == 0.5


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedssa:t_stabel=10", r"unknown setting method\.t_stabel \(did you mean t_stable\?\)"),
        ("fedssa:t_stable=-1", r"method\.t_stable = -1: should be"),
        ("fedssa:t_stable", "--methods fedssa:t_stable: should be NAME or NAME:option=value"),
        ("mu0=0.3:fedssa", "--methods mu0=0.3:fedssa: should be NAME or NAME:option=value"),
        ("fedssa:=3", "--set method.=3: should be key=value"),
    ],
)
def test_a_bad_option_of_a_method_is_one_line(tmp_path: Path, method: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        plan(tiny(), ["standalone", method], 1, tmp_path, keep_models=False)


def test_a_mistake_in_the_last_method_is_found_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="averages whole models"):
        plan(tiny(), ["standalone", "fedavg"], 1, tmp_path / "out", keep_models=False)
    with pytest.raises(SettingsError, match="unknown"):
        plan(tiny(), ["standalone", "fedsa"], 1, tmp_path / "out", keep_models=False)
    assert list(tmp_path.iterdir()) == []


def test_runs_on_one_pool_are_the_runs_alone(tmp_path: Path) -> None:
    planned = plan(tiny(), ["standalone", "fedproto"], 1, tmp_path / "out", keep_models=False)
    heard: list[tuple[str, int]] = []

    def note(run: object, record: RoundRecord) -> None:
        heard.append((str(run), record.t))

    with one_pool(tmp_path / "out", 2) as pool:
        run_all(planned, pool, note)
    assert len(heard) == 2 * 4
    for run in planned:
        alone = fedssa.run(run.settings, out=tmp_path / run.path.name)
        assert (run.path / "rounds.jsonl").read_bytes() == (alone.path / "rounds.jsonl").read_bytes()
        assert run.rounds_left() == 0
        assert not (run.path / "models").exists()


def test_a_run_from_before_a_setting_was_added_is_not_run_again(tmp_path: Path) -> None:
    """Its table lacks the key, which stands at its default; with another value it is another run."""
    (run,) = plan(tiny(), ["fedssa"], 1, tmp_path, keep_models=False)
    fedssa.run(run.settings, out=run.path)
    head = without_digest(run.path / "settings.json")
    for section, key in (("local", "clip"), ("run", "store_memory"), ("method", "upload_form")):
        del head["settings"][section][key]
    (run.path / "settings.json").write_text(json.dumps(head))
    assert run.ended()
    assert run.rounds_left() == 0
    (clipped,) = plan(tiny(local={"clip": 1.0}), ["fedssa"], 1, tmp_path, keep_models=False)
    with pytest.raises(RunDirError, match="other settings"):
        clipped.ended()
    head["settings"]["local"]["unknown"] = 1  # as a later version may have written it
    (run.path / "settings.json").write_text(json.dumps(head))
    with pytest.raises(RunDirError, match="other settings"):
        run.ended()


def test_a_diverged_run_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    planned = plan(tiny(local={"lr": 1e12}), ["standalone", "fedssa"], 1, tmp_path, keep_models=False)
    planned += plan(tiny(), ["lg-fedavg"], 1, tmp_path, keep_models=False)
    with one_pool(tmp_path, 1) as pool:
        run_all(planned, pool, lambda *_: None)
    rows = compare_methods([summarise(RunDir.open(run.path)) for run in planned], "standalone")
    assert [row.outcome for row in rows] == ["diverged, round 0", "diverged, round 0", "finished"]
    assert rows[0].mean is None
    assert rows[2].mean is not None


def test_a_directory_of_other_settings_is_refused(tmp_path: Path) -> None:
    fedssa.run(tiny(seed=7, rounds={"total": 1}), out=tmp_path / "fedssa-s7")
    (planned,) = plan(tiny(), ["fedssa"], 1, tmp_path, keep_models=True)
    with pytest.raises(RunDirError, match="of other settings"):
        planned.rounds_left()


def test_the_table_by_hand(tmp_path: Path) -> None:
    """The same figures as from the records themselves."""
    runs = {}
    for name in ("standalone", "fedssa"):
        for seed in (1, 2):
            runs[name, seed] = fedssa.run(tiny(seed=seed, method={"name": name}), out=tmp_path / f"{name}{seed}")
    rows = {r.method: r for r in compare_methods([summarise(RunDir.open(r.path)) for r in runs.values()], "standalone")}
    fed, alone = ([runs[name, seed] for seed in (1, 2)] for name in ("fedssa", "standalone"))
    assert rows["fedssa"].mean == pytest.approx((fed[0].accuracy + fed[1].accuracy) / 2)
    assert rows["fedssa"].spread == pytest.approx(abs(fed[0].accuracy - fed[1].accuracy) / 2**0.5)
    pairs = [a.client_accuracies[k] - b.client_accuracies[k] for a, b in zip(fed, alone, strict=True) for k in range(4)]
    found = rows["fedssa"].difference
    assert found is not None
    assert (found.num_seeds, found.num_pairs) == (2, 8)
    assert found.mean == pytest.approx(sum(pairs) / 8)
    assert found.low is not None
    assert found.high is not None
    by_seed = [sum(pairs[:4]) / 4, sum(pairs[4:]) / 4]
    over_seeds = 12.7062 * abs(by_seed[0] - by_seed[1]) / 2  # Student's t of one degree of freedom at 95 %
    over_clients = 2.4469 * (sum(variance(pairs[i : i + 4]) / 4 for i in (0, 4)) ** 0.5 / 2)  # of six
    assert found.high - found.mean == pytest.approx(max(over_seeds, over_clients), rel=1e-4)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert rows["standalone"].difference is None
    chosen = [summarise(RunDir.open(run.path)).best_round for run in fed]
    assert rows["fedssa"].best_by_validation == pytest.approx(sum(best.test for best in chosen if best) / 2)
    sent = [c.params_up + c.params_down for run in fed for record in run.records[1:] for c in record.clients]
    flops = [c.flops or 0 for run in fed for record in run.records[1:] for c in record.clients]
    assert rows["fedssa"].per_round is not None
    assert rows["fedssa"].per_round.numbers == pytest.approx(sum(sent) / 6)
    assert rows["fedssa"].per_round.flops == pytest.approx(sum(flops) / 6)
    assert sum(flops) > 0


def test_the_command_prints_every_method_and_is_not_repeated(command: Command, here: Path) -> None:  # noqa: F811
    less = ("--set", "rounds.total=1", "--set", f"data.name={FEW['name']}")
    args = ("compare", "tiny.toml", "--methods", "all", "--out", "all", "--workers", "1", *less)
    shown = command(*args)
    assert shown.code == 0, shown.err
    for name in ("standalone", "standalone-scaled", "fedssa-plus", "fedproto", "fd", "fml", "fedkd", "fedclassavg"):
        assert re.search(rf"^ {name} +\d+\.\d ", shown.out, flags=re.MULTILINE), shown.out
    assert (here / "all" / "curves.png").stat().st_size > 10_000
    before = {name: content for name, content in tree(here / "all").items() if name != "lock"}
    again = command(*args)
    assert again.code == 0
    assert again.out == shown.out
    assert again.err == ""  # nothing ran
    assert {name: content for name, content in tree(here / "all").items() if name != "lock"} == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "fedssa"], "--reference standalone: is not one of the compared methods"),
        (["--methods", "standalone,fedavg"], "averages whole models"),
        (["--methods", "standalone", "--set", "local.lr=0"], "local.lr = 0: should be greater than 0"),
        (
            ["--methods", "standalone,fedkd", "--set", "method.name=fedkd", "--set", "method.t_start=0.99"],
            "is larger than",
        ),
    ],
)
def test_mistakes_in_a_comparison(command: Command, here: Path, args: list[str], message: str) -> None:  # noqa: F811
    refused = command("compare", "tiny.toml", "--out", "x", *args)
    assert refused.code == 2
    assert message in refused.err
    assert not (here / "x").exists()


def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    args = ("-m", "fedssa", "compare", "tiny.toml", "--methods", "standalone,fd", "--out", "all", "--workers")
    program = Program(*args, "2", cwd=tmp_path)
    rounds = tmp_path / "all" / "fd-s7" / "rounds.jsonl"
    while program.runs and not (rounds.exists() and rounds.stat().st_size):
        time.sleep(0.01)
    program.kill()
    program.end()
    done = python(*args, "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = fedssa.run(tiny(method={"name": "fd"}, run={"keep_models": False}), out=tmp_path / "whole")
    assert rounds.read_bytes() == (whole.path / "rounds.jsonl").read_bytes()
    assert json.loads((tmp_path / "all" / "fd-s7" / "outcome.json").read_text())["kind"] == "finished"
