"""The paper's experiments: which runs they are, and where those lie."""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedssa.core.public import Labels
from fedssa.errors import SettingsError
from fedssa.methods import METHODS, PRESETS
from fedssa.settings.about import account_in
from fedssa.settings.recipe import parse_settings, read_recipe
from fedssa.studies.cells import SCALES
from fedssa.studies.paper import (
    CONTROL,
    EXPERIMENTS,
    VARIANTS,
    each_once,
    every_run,
    experiment_command,
    own_header_scale,
    runs_of,
)
from fedssa.studies.plan import plan
from fedssa.studies.public import as_needed, public_methods

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("data", ["cifar100", "cifar10"])
def test_the_largest_cells_are_our_recipes_to_the_last_setting(data: str) -> None:
    """So that a comparison of the recipe and the experiment are the same runs."""
    ours = runs_of("table-hetero", "reduced", range(3), data=[data], clients=[100])
    methods = [run.label for run in ours]
    compared = plan(read_recipe(ROOT / "recipes" / f"{data}.toml"), methods, 3, Path("out"), keep_models=False)
    assert [run.path.rpartition("/")[2] for run in ours] == [run.path.name for run in compared]
    assert [parse_settings(run.table()).table for run in ours] == [run.settings.table for run in compared]
    assert ours[0].path == f"reduced/{data}/hetero-n100-c0.1/standalone-s0"


def test_one_architecture_allows_fedavg_and_is_the_shared_one() -> None:
    runs = runs_of("table-homo", "full", [0], data=["cifar10"], clients=[50])
    hetero = runs_of("table-hetero", "full", [0], data=["cifar10"], clients=[50])
    assert [run.label for run in runs] == [*(run.label for run in hetero), "fedavg"]
    settings = parse_settings(next(run for run in runs if run.label == "fml").table())
    assert settings.models.archs == ("cnn-1",)
    assert settings.shared[0] == "cnn-1"
    assert "fedavg" in {run.label for run in runs}


@pytest.mark.parametrize(
    ("scale", "clients", "epochs", "rounds", "fraction"),
    [
        ("full", 10, 10, 100, 1.0),
        ("full", 50, 10, 500, 0.2),
        ("full", 100, 10, 500, 0.1),
        ("long", 10, 10, 50, 1.0),
        ("long", 50, 10, 100, 0.2),
        ("long", 100, 10, 100, 0.1),
        ("reduced", 10, 2, 15, 1.0),
        ("reduced", 50, 2, 50, 0.2),
        ("reduced", 100, 2, 100, 0.1),
    ],
)
def test_the_scales(scale: str, clients: int, epochs: int, rounds: int, fraction: float) -> None:
    for run in runs_of("table-hetero", scale, [0], clients=[clients]):
        settings = parse_settings(run.table())
        assert settings.partition.clients == clients
        assert (settings.local.epochs, settings.local.batch_size, settings.local.lr) == (epochs, 64, 0.01)
        assert (settings.rounds.total, settings.rounds.fraction) == (rounds, fraction)
        classes = settings.table["partition"]["classes_per_client"]
        assert classes == {"cifar10": 2, "cifar100": 10}[run.cell.data]


def test_attacks_and_rules_are_brief_at_the_usual_scale_only() -> None:
    runs = runs_of("hostile", "reduced", [0])
    assert len(runs) == 6 * 25 + 2 * 5 + 2  # and Standalone where nobody attacks
    assert Counter(run.cell.attack for run in runs if run.label == "standalone") == {"none": 2}
    for run in runs:
        settings = parse_settings(run.table())
        assert (settings.models.archs, settings.data_share) == (("cnn-5",), 0.2)
        assert (settings.rounds.total, settings.rounds.fraction, settings.num_clients) == (10, 1.0, 20)
        assert (settings.local.epochs, settings.local.batch_size, settings.local.lr) == (1, 16, 0.02)
    for run in runs_of("hostile", "long", [0]):
        settings = parse_settings(run.table())
        assert (settings.models.archs, settings.data_share, settings.rounds.total) == (("cnn-1",), 1, 50)


def test_noise_is_on_uploads_of_fedssa_with_one_clip() -> None:
    runs = runs_of("privacy", "reduced", [0])
    found = {run.label: parse_settings(run.table()) for run in runs}
    assert list(found)[:3] == ["standalone", CONTROL, "fedssa"]
    noised = [settings for settings in found.values() if settings.privacy is not None]
    assert len(noised) == len(found) - 3
    assert len({settings.privacy.clip for settings in noised if settings.privacy}) == 1
    first, *epsilons = [account.table.get("epsilon", 0.0) for run in noised if (account := account_in(run))]
    assert first == 0  # without noise there is no ε
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] == pytest.approx(10.5, abs=1)
    for settings in found.values():
        assert (settings.data_share, settings.local.batch_size, settings.rounds.total) == (0.2, 16, 30)
        assert len(settings.models.archs) == 5


@pytest.mark.parametrize(("scale", "header_scales"), [("reduced", (1.0,)), ("smoke", (1.0, 3.0))])
def test_equal_settings_are_one_directory_and_other_settings_another(
    scale: str, header_scales: tuple[float, ...]
) -> None:
    """The other scales have the cells of `reduced`, each in a folder of its own."""
    runs = each_once(run for _, run in every_run(seed=3, header_scales=header_scales) if run.cell.scale == scale)
    tables = {run.path: json.dumps(parse_settings(run.table()).table) for run in runs}
    assert len(tables) == len(runs)
    assert len(set(tables.values())) == len(runs)


def test_every_scale_has_a_folder_of_its_own() -> None:
    named = list(every_run(seed=3))
    runs = {run for _, run in named}
    assert len({run.path for run in runs}) == len(runs)
    assert {(run.cell.scale, run.path.partition("/")[0]) for run in runs} == {(scale, scale) for scale in SCALES}
    usual = [run for name, run in named if name not in ("hostile", "privacy")]  # these have fewer data at one scale
    beside = {scale: {run.path.partition("/")[2] for run in usual if run.cell.scale == scale} for scale in SCALES}
    assert beside["full"] == beside["long"] == beside["reduced"]


def test_every_method_is_every_one_that_such_a_federation_allows() -> None:
    runs = runs_of("every-method", "reduced", [0], data=["cifar100"])
    allowed = {name for name, method in METHODS.items() if method.needs_public == "no" and not method.needs_same_models}
    assert [run.label for run in runs] == list(dict.fromkeys(run.label for run in runs))
    assert {run.label for run in runs} == allowed | {CONTROL}
    assert {run.cell.words for run in runs} == {"N = 20, C = 50%, k = 10"}
    assert {parse_settings(run.table()).rounds.total for run in runs} == {30}
    assert {run.table()["rounds"]["total"] for run in runs_of("every-method", "long", [0])} == {50}


def test_larger_headers_are_other_runs_but_for_what_has_its_own() -> None:
    """Old names stay; a label and a scale that some other run has already are that run."""
    runs = runs_of("table-homo", "long", [1], data=["cifar10"], clients=[50], header_scales=[1.0, 3.0])
    usual, larger = ([run for run in runs if run.cell.header_scale == scale] for scale in (1.0, 3.0))
    assert [run.path for run in usual] == [f"long/cifar10/homo-n50-c0.2/{run.label}-s1" for run in usual]
    assert [run.label for run in larger] == [run.label for run in usual if run.label != CONTROL]
    assert {run.path for run in larger} & {run.path for run in usual} == {usual[1].path}
    assert larger[0].path == usual[1].path
    assert larger[1].path == "long/cifar10/homo-n50-c0.2-x3/fedssa-s1"
    assert [parse_settings(run.table()).models.header_scale for run in larger] == [3.0] * len(larger)
    assert len(each_once(runs)) == len(runs) - 1
    groups = runs_of("groups", "reduced", [0], data=["cifar100"], header_scales=[1.0, 3.0])
    in_both = [path for path, count in Counter(run.path for run in groups).items() if count == 2]
    parts = {label for label in VARIANTS if label.startswith("groups-")}
    own = {CONTROL, "fedssa-groups", "fedssa-plus-convex-x3"} | parts
    assert {path.rpartition("/")[2] for path in in_both} == {f"{label}-s0" for label in own}
    (elsewhere,) = runs_of("groups", "smoke", [0], methods=["fedssa-groups"], header_scales=[2.0])
    assert elsewhere.path == "smoke/digits/hetero-n4-c0.5/fedssa-groups-s0"
    doubled = runs_of("curves", "smoke", [0], methods=["standalone"], header_scales=[2.0])
    assert [run.path for run in doubled] == ["smoke/digits/hetero-n4-c0.5-x2/standalone-s0"]


def test_what_has_its_own_headers_is_what_its_file_says() -> None:
    for run in {run for _, run in every_run(seed=0) if run.cell.scale == "smoke"}:
        assert parse_settings(run.table()).models.header_scale == (own_header_scale(run.label) or 1.0), run.label


def test_every_public_is_every_method_with_public_data_that_the_labels_allow() -> None:
    kinds: list[tuple[str, str, Labels]] = [("cifar100", "slice", "own"), ("cifar10", "cifar100", "foreign")]
    for data, public, labels in kinds:
        runs = runs_of("every-public", "reduced", [0], data=[data])
        assert {run.label for run in runs} == set(public_methods(labels))
        settings = {run.label: parse_settings(run.table()) for run in runs}
        assert all(s.table["public"]["name"] == public for s in settings.values())
        assert all(as_needed(s.table, name) == s.table for name, s in settings.items())
        assert {s.rounds.total for name, s in settings.items() if name != "fedkt"} == {30}
        assert (settings["fedkt"].rounds.total, settings["fedkt"].rounds.fraction) == (2, 1.0)
        assert {run.path.split("/")[2] for run in runs} == {f"hetero-n20-c0.5-public-{public}"}
        assert ("fedgems" in settings) == (labels == "own")
    assert {run.cell.words for run in runs} == {"N = 20, C = 50%, k = 2, public: cifar100"}


def test_experiments_share_their_runs() -> None:
    paths = {name: {run.path for run in runs_of(name, "reduced", [0])} for name in EXPERIMENTS}
    assert paths["curves"] == paths["individual"] == paths["tradeoff"] == paths["table-hetero"]
    assert len(paths["table-hetero"]) == 6 * 10
    assert len(paths["table-homo"]) == 6 * 11
    shared = {name: len(paths[name] & paths["table-hetero"]) for name in EXPERIMENTS}
    new = {name: len(paths[name] - paths["table-hetero"]) for name in EXPERIMENTS}
    assert (shared["participation"], new["participation"]) == (4, 20)  # C = 0.1 is there already
    assert (shared["noniid-classes"], new["noniid-classes"]) == (4, 2 * (4 + 5))
    assert (shared["noniid-dirichlet"], new["noniid-dirichlet"]) == (0, 20)
    assert (shared["ablation-m1"], new["ablation-m1"]) == (6, 12)
    assert (shared["ablation-m2"], new["ablation-m2"]) == (6, 12)
    assert (shared["shaking"], new["shaking"]) == (2, 4)
    assert len(paths["shaking"] - paths["table-hetero"] - paths["ablation-m2"]) == 2  # t_stable = 10
    assert paths["tsne"] == {f"reduced/cifar10/hetero-n100-c0.1-tsne/{name}-s0" for name in ("fedssa", "fedproto")}


def test_tsne_keeps_representations_and_shaking_has_both_t_stable() -> None:
    assert {parse_settings(run.table()).run.representations for run in runs_of("tsne", "full", [0])} == {2000}
    methods = [parse_settings(run.table()).table["method"] for run in runs_of("shaking", "full", [0])]
    assert {(m["name"], m["t_stable"], m["fusion"]) for m in methods} == {
        ("fedssa", 2, "sum"),
        ("fedssa", 10, "sum"),
        ("m2-b", 2, "replace"),
    }


def test_a_smoke_is_one_small_cell_where_a_table_has_six() -> None:
    smokes = {run.path: run for name, run in every_run(seed=0) if run.cell.scale == "smoke"}
    assert {run.cell.data for run in smokes.values()} == {"digits"}
    assert {(run.cell.clients, run.table()["rounds"]["total"]) for run in smokes.values()} == {(4, 2)}
    cells = Counter(run.cell.name for run in runs_of("table-hetero", "smoke", [0]))
    assert len(cells) == 1


def test_seed_by_seed() -> None:
    runs = runs_of("table-hetero", "reduced", [4, 5], clients=[100])
    assert [run.seed for run in runs] == [4] * 20 + [5] * 20
    assert [run.cell.data for run in runs[:20]] == ["cifar100"] * 10 + ["cifar10"] * 10


@pytest.mark.parametrize(
    ("name", "scale", "chosen", "message"),
    [
        ("table", "full", {}, "table: there is no such experiment; there are: table-hetero"),
        ("curves", "tiny", {}, "--scale tiny: is not in scale; the scales: full, long, reduced, smoke"),
        ("tsne", "full", {"data": ["cifar100"]}, "--data cifar100: is not in tsne at scale full; it has: cifar10"),
        ("table-homo", "full", {"clients": [20]}, "it has: 100, 50, 10"),
        ("shaking", "full", {"methods": ["fd"]}, "it has: m2-b, fedssa, fedssa-t10"),
        ("table-hetero", "full", {"methods": ["fedavg"]}, "--methods fedavg: is not in table-hetero"),
        ("participation", "full", {"cells": ["hetero"]}, "it has: hetero-n100-c0.1, hetero-n100-c0.3"),
    ],
)
def test_what_is_not_there_is_named(name: str, scale: str, chosen: dict[str, list[str]], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        runs_of(name, scale, [0], **chosen)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_all_names_of_the_paper_are_methods_or_presets() -> None:
    assert {run.label for _, run in every_run(seed=0)} - VARIANTS.keys() <= METHODS.keys() | PRESETS.keys()
    assert CONTROL in PRESETS


def test_a_cell_of_the_paper_is_one_short_command() -> None:
    (run,) = runs_of("table-hetero", "reduced", [2], data=["cifar100"], clients=[100], methods=["fedssa"])
    expected = "fedssa experiment table-hetero --scale reduced --data cifar100 --clients 100 --methods fedssa --seed 2"
    assert experiment_command("table-hetero", run) == expected


def test_the_command_of_every_cell_gives_that_cell_alone() -> None:
    larger = runs_of("table-homo", "long", [3], header_scales=[3.0])
    for name, run in [*every_run(seed=3), *(("table-homo", run) for run in larger)]:
        words = shlex.split(experiment_command(name, run))
        assert words[:3] == ["fedssa", "experiment", name]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        chosen: dict[str, Any] = {key: [options[f"--{key}"]] for key in ("data", "cells") if f"--{key}" in options}
        if "--clients" in options:
            chosen["clients"] = [int(options["--clients"])]
        if "--header-scale" in options:
            chosen["header_scales"] = [float(options["--header-scale"])]
        found = runs_of(
            name, options["--scale"], [int(options["--seed"])], methods=options["--methods"].split(","), **chosen
        )
        assert found == [run]
