"""What may be averaged, what may be compared, and what must never be."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedssa.records import Outcome
from fedssa.report.figures.families import families
from fedssa.report.page.report import contents
from fedssa.report.read.collection import gather
from fedssa.report.read.groups import Group, group_runs, subtitle, title
from fedssa.report.read.names import file_names
from fedssa.report.read.paper import paper_percent
from fedssa.report.read.public import num_public
from fedssa.report.read.summary import comparable, summarise
from fedssa.runs.directory import RunDir, fill_run_dir
from tests.report.fake_runs import Accuracy, finished_run, make_run, settings, with_flops
from tests.tiny import without_digest

ROUNDS: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.5, 1: 0.6, 2: 0.7}]


def groups_of(folder: Path) -> list[Group]:
    return group_runs(gather([folder]).runs)


def test_methods_and_seeds_come_together_and_nothing_else(tmp_path: Path) -> None:
    finished_run(tmp_path / "a", ROUNDS)
    finished_run(tmp_path / "b", ROUNDS, settings("standalone"))
    finished_run(tmp_path / "c", ROUNDS, settings(seed=1))
    finished_run(tmp_path / "d", ROUNDS, settings(run__keep_models=True, data__dir="/elsewhere", seed=2))
    changes: dict[str, dict[str, Any]] = {
        "e": {"local__epochs": 2},
        "f": {"rounds__fraction": 0.5},
        "g": {"models__width": 8},
        "h": {"run__target": 0.5},
    }
    for name, change in changes.items():
        finished_run(tmp_path / name, ROUNDS, settings(**change))
    finished_run(tmp_path / "i", ROUNDS, digest="other data")
    assert [[run.name for run in group.runs] for group in groups_of(tmp_path)] == [
        ["a", "b", "c", "d"], ["e"], ["f"], ["g"], ["h"], ["i"]
    ]  # fmt: skip


def test_a_file_with_data_goes_by_its_name_wherever_it_lies(tmp_path: Path) -> None:
    for name, folder in (("a", "/home/me"), ("b", "/scratch")):
        finished_run(tmp_path / name, ROUNDS, settings(seed=ord(name), data__name=f"{folder}/shop.py:tickets"))
    (group,) = groups_of(tmp_path)
    assert title(group).startswith("shop.py:tickets, 3 clients")


@pytest.mark.parametrize("optimizer", ["adam", {"name": "adam", "beta1": 0.8}])
def test_an_optimiser_that_is_not_the_usual_one_is_told(tmp_path: Path, optimizer: Any) -> None:
    finished_run(tmp_path / "a", ROUNDS, settings(local__lr=0.1))
    finished_run(tmp_path / "b", ROUNDS, settings(local__lr=0.1, local__optimizer=optimizer))
    usual, other = map(subtitle, groups_of(tmp_path))
    assert other == f"adam · {usual}"


def test_other_versions_are_never_averaged_with_these(tmp_path: Path) -> None:
    for name, version in (("a", "0.1"), ("b", "0.1"), ("c", "0.2")):
        run = finished_run(tmp_path / name, ROUNDS, settings(seed=ord(name)))
        fill = RunDir.open(run.path)
        content = run.rounds_file.read_bytes()
        fill_run_dir(fill, {"fedssa": version, "torch": "2"})
        run.rounds_file.write_bytes(content)
    first, second = groups_of(tmp_path)
    assert [run.name for run in first.runs] == ["a", "b"]
    assert (first.version, second.version) == ("fedssa 0.1, torch 2", "fedssa 0.2, torch 2")


def test_runs_with_other_public_data_are_another_experiment(tmp_path: Path) -> None:
    """A slice is taken away before clients are dealt theirs, so clients without it have other data."""
    public = {"name": "slice", "share": 0.1, "per_round": 32}
    kinds: dict[str, dict[str, Any] | None] = {
        "a": None,
        "b": public,
        "c": public | {"share": 0.2},
        "d": public | {"per_round": 64},
        "e": {"name": "cifar100", "size": 500, "per_round": 32},
    }
    for name, table in kinds.items():
        for method in ("standalone", "ds-fl"):
            changes = {} if table is None else {"public": table}
            finished_run(tmp_path / name / method, ROUNDS, settings(method, **changes))
    found = groups_of(tmp_path)
    assert [[run.name for run in group.runs] for group in found] == [
        [f"{name}/ds-fl", f"{name}/standalone"] for name in kinds
    ]
    assert ["public" in group.settings for group in found] == [False, True, True, True, True]
    assert found[2].settings["public"]["share"] == 0.2
    assert [title(group).partition("a round, 3 rounds of 1 epoch")[2].removeprefix(", ") for group in found] == [
        "",
        "public: 10 % of the data",
        "public: 20 % of the data",
        "public: 10 % of the data",
        "public: cifar100 (500 samples)",
    ]
    assert ["32 public samples" in subtitle(group) for group in found] == [False, True, True, False, True]
    assert [group.rows[0].difference is not None for group in found] == [True] * 5  # each to its own reference


@pytest.mark.parametrize(
    ("public", "told"),
    [
        ({"name": "cifar100", "size": 500}, 500),
        ({"name": "slice", "share": 0.1}, 0),
        ({"size": 500, "per_round": 9}, 9),
    ],
)
def test_runs_of_before_tell_of_p_what_their_settings_do(tmp_path: Path, public: dict[str, Any], told: int) -> None:
    run = make_run(tmp_path / "run", ROUNDS, settings("ds-fl", public={"per_round": 0} | public))
    assert num_public(run) == told


def test_a_method_with_rounds_of_its_own_stands_beside_the_others(tmp_path: Path) -> None:
    """As a comparison makes its runs; FedKT's first name must not make it the one whose rounds are told."""
    public = {"name": "slice", "share": 0.1, "per_round": 32}
    everyone: dict[str, Any] = {"public": public, "rounds": {"total": 3, "fraction": 0.5}}
    fixed: dict[str, Any] = {"public": public | {"per_round": 0}, "rounds": {"total": 2, "fraction": 1.0}}
    for name, changes in (("fedkt", fixed), ("cfd", everyone | {"public": fixed["public"]}), ("standalone", everyone)):
        finished_run(tmp_path / name, ROUNDS, settings(name, **changes))
    (group,) = groups_of(tmp_path)
    assert [run.name for run in group.runs] == ["cfd", "fedkt", "standalone"]
    assert "50 % a round, 3 rounds of 1 epoch" in title(group)
    assert [row.method for row in group.rows if row.difference is not None] == ["cfd", "fedkt"]
    page = contents(gather([tmp_path]))["tables.md"].decode()
    assert "Other rounds: fedkt has 2 rounds, 100 % of the clients in each." in page
    assert page.count("Other rounds") == 1
    finished_run(tmp_path / "another", ROUNDS, settings(**everyone | {"rounds": {"total": 4, "fraction": 0.5}}))
    assert sorted([run.name for run in group.runs] for group in groups_of(tmp_path)) == [
        ["another"], ["cfd", "standalone"], ["fedkt"]
    ]  # fmt: skip


def test_a_method_that_always_augments_images_stands_beside_those_that_do_too(tmp_path: Path) -> None:
    for name in ("standalone", "fedclassavg", "fedssa"):
        finished_run(tmp_path / "plain" / name, ROUNDS, settings(name))
    (plain,) = groups_of(tmp_path)
    assert [row.method for row in plain.rows] == ["fedclassavg", "fedssa", "standalone"]
    for name in ("standalone", "fedssa-plus"):
        finished_run(tmp_path / "with" / name, ROUNDS, settings(name, local__augment=True))
    augmented, plain = groups_of(tmp_path)  # in the order of their first runs
    assert [row.method for row in plain.rows] == ["fedssa", "standalone"]
    assert [row.method for row in augmented.rows] == ["fedclassavg", "fedssa-plus", "standalone"]
    assert title(augmented) == f"{title(plain)} on augmented images"
    assert file_names([plain, augmented])[1] == f"{file_names([plain])[0]}-augmented"


def test_runs_on_a_share_of_the_data_are_another_experiment_and_say_so(tmp_path: Path) -> None:
    shares: dict[str, dict[str, Any]] = {"a": {}, "b": {"data__share": 0.1}, "c": {"data__share": 0.25}}
    for name, share in shares.items():
        finished_run(tmp_path / name, ROUNDS, settings(data__name="cifar10", **share))
    found = groups_of(tmp_path)
    assert [title(group).partition(", ")[0] for group in found] == [
        "CIFAR-10",
        "10 % of CIFAR-10",
        "25 % of CIFAR-10",
    ]
    one, other, _ = (summarise(run.summary.run_dir) for group in found for run in group.runs)
    assert not comparable(one, other)


def test_attacks_are_experiments_and_rules_are_methods(tmp_path: Path) -> None:
    """Also where nobody attacks, accuracy is that of the clients who would not."""
    for attack in ("none", "scale"):
        for rule in ("mean", "median"):
            table = settings(hostile={"attack": attack, "clients": 0.2}, aggregation={"rule": rule})
            finished_run(tmp_path / f"{attack}-{rule}", ROUNDS, table)
    none, scale = groups_of(tmp_path)
    assert title(none).endswith(", no attack, without 20 %")
    assert title(scale).endswith(", 20 % hostile (scale)")
    assert list(scale.by_label) == ["fedssa, rule = mean", "fedssa, rule = median"]


def test_noise_on_uploads_is_a_method_of_its_own(tmp_path: Path) -> None:
    finished_run(tmp_path / "a", ROUNDS)
    finished_run(tmp_path / "b", ROUNDS, settings(privacy={"clip": 6.0, "sigma": 0.1, "delta": 1e-5}))
    finished_run(tmp_path / "c", ROUNDS, settings(privacy={"clip": 6.0, "sigma": 0.0, "delta": 1e-5}))
    finished_run(tmp_path / "d", ROUNDS, settings("standalone"))
    (group,) = groups_of(tmp_path)
    assert group.repeated == ()
    assert group.labels == {
        "a": "fedssa, privacy = none",
        "b": "fedssa, privacy = clip 6 sigma 0.1",
        "c": "fedssa, privacy = clip 6 sigma 0",
        "d": "standalone",
    }
    assert [row.difference is not None for row in group.rows if row.method != "standalone"] == [True] * 3


def test_public_data_are_what_their_digest_says_wherever_they_lie(tmp_path: Path) -> None:
    public = {"name": "npz", "size": 500, "per_round": 32}
    for name, file, digest in (("a", "/here", "one"), ("b", "/there", "one"), ("c", "/here", "two")):
        table = settings(seed=ord(name), public=public | {"file": file})
        run = finished_run(tmp_path / name, ROUNDS, table)
        head = without_digest(run.path / "settings.json")
        (run.path / "settings.json").write_text(json.dumps(head | {"public_digest": digest}))
    assert [[run.name for run in group.runs] for group in groups_of(tmp_path)] == [["a", "b"], ["c"]]


def test_runs_of_the_first_edition_are_equal_to_runs_with_the_settings_that_came_later(tmp_path: Path) -> None:
    later = {
        "models__server": None,
        "models__prototypes": None,
        "local__optimizer": "sgd",
        "local__schedule": "constant",
        "server": {"epochs": 1},
    }
    old = finished_run(tmp_path / "a", ROUNDS, settings("standalone"))
    now = finished_run(tmp_path / "b", ROUNDS, settings("fedgh", **later))
    other = finished_run(tmp_path / "c", ROUNDS, settings("fedgh", **later | {"local__optimizer": "adam"}))
    assert [[run.name for run in group.runs] for group in groups_of(tmp_path)] == [["a", "b"], ["c"]]
    assert comparable(summarise(old), summarise(now))
    assert not comparable(summarise(old), summarise(other))


def test_how_a_server_trains_tells_runs_apart_where_it_does(tmp_path: Path) -> None:
    for epochs in (1, 5):
        table = settings("fedgh", server={"epochs": epochs, "lr": 0.1})
        with_flops(finished_run(tmp_path / f"fedgh{epochs}", ROUNDS, table), 10, server=100)
        finished_run(tmp_path / f"alone{epochs}", ROUNDS, settings("standalone", server={"epochs": epochs}))
    (group,) = groups_of(tmp_path)
    labels = [(run.name, group.labels[run.name]) for run in group.runs]
    assert labels == [
        ("alone1", "standalone"),
        ("fedgh1", "fedgh, server.epochs = 1"),
        ("fedgh5", "fedgh, server.epochs = 5"),
    ]
    assert group.repeated == (("alone5", "alone1"),)


def test_options_tell_methods_of_one_name_apart(tmp_path: Path) -> None:
    for name, t_stable in (("a", 2), ("b", 10)):
        finished_run(tmp_path / name, ROUNDS, settings(method__t_stable=t_stable, method__mu0=0.5))
    finished_run(tmp_path / "c", ROUNDS, settings("fedproto", method__lam=1.0))
    finished_run(tmp_path / "d", ROUNDS, settings("fd", method__gamma=0.5))
    finished_run(tmp_path / "e", ROUNDS, settings("fd"))
    (group,) = groups_of(tmp_path)
    assert list(group.labels.values()) == [
        "fedssa, t_stable = 2",
        "fedssa, t_stable = 10",
        "fedproto",
        "fd, gamma = 0.5",
        "fd, gamma = None",
    ]
    assert [row.method for row in group.rows] == list(group.labels.values())


def test_a_run_that_is_there_twice_counts_once_and_the_whole_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", ROUNDS[:1])
    finished_run(tmp_path / "b", ROUNDS)
    finished_run(tmp_path / "c", ROUNDS)
    (group,) = groups_of(tmp_path)
    assert [run.name for run in group.runs] == ["b"]
    assert set(group.repeated) == {("a", "b"), ("c", "b")}
    assert list(group.rows[0].accuracies) == pytest.approx([0.6])


def test_unfinished_and_diverged_runs_are_told_and_not_averaged(tmp_path: Path) -> None:
    finished_run(tmp_path / "a", ROUNDS, settings("standalone"))
    make_run(tmp_path / "b", ROUNDS[:1])
    make_run(tmp_path / "c", ROUNDS[:1], settings("fml")).write_outcome(Outcome("diverged", "", 0, 0))
    (group,) = groups_of(tmp_path)
    rows = {row.method: row for row in group.rows}
    assert (rows["fedssa"].mean, rows["fedssa"].outcome) == (None, "not finished")
    assert (rows["fml"].mean, rows["fml"].outcome, rows["fml"].difference) == (None, "diverged, round 0", None)


PAPERS: dict[str, Any] = {
    "data__name": "cifar100",
    "partition__clients": 100,
    "partition__classes_per_client": 10,
    "rounds__fraction": 0.1,
    "models__archs": [f"cnn-{i}" for i in range(1, 6)],
}


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({}, ("hetero", "cifar100", 100)),
        ({"models__archs": ["cnn-1"]}, ("homo", "cifar100", 100)),
        ({"models__archs": ["cnn-2"]}, None),
        ({"rounds__fraction": 0.2}, None),
        ({"partition__classes_per_client": 20}, None),
        ({"data__name": "digits"}, None),
        ({"data__share": 0.5}, None),
        ({"hostile": {"attack": "none", "clients": 0.2}}, None),
    ],
)
def test_the_papers_settings_are_recognised(tmp_path: Path, changes: dict[str, Any], cell: object) -> None:
    finished_run(tmp_path / "a", ROUNDS, settings(**(PAPERS | changes)))
    (group,) = groups_of(tmp_path)
    assert group.paper_cell == cell
    assert "100 clients" in title(group)


@pytest.mark.parametrize(
    ("changes", "percent"),
    [
        ({}, 57.29),
        ({"aggregation": {"rule": "mean"}}, 57.29),
        ({"aggregation": {"rule": "median"}}, None),
        ({"privacy": {"clip": 1.0, "sigma": 0.1, "delta": 1e-5}}, None),
    ],
)
def test_the_paper_has_no_figure_for_noise_and_rules(
    tmp_path: Path, changes: dict[str, Any], percent: float | None
) -> None:
    finished_run(tmp_path / "a", ROUNDS, settings(**(PAPERS | changes)))
    (group,) = groups_of(tmp_path)
    assert [paper_percent(group, method) for method in group.by_label] == [percent]


def test_experiments_that_differ_in_one_setting_are_a_family(tmp_path: Path) -> None:
    for i, fraction in enumerate((1.0, 0.1, 0.5)):
        finished_run(tmp_path / f"c{i}", ROUNDS, settings(rounds__fraction=fraction))
    for i, classes in enumerate((4, 6)):
        finished_run(tmp_path / f"k{i}", ROUNDS, settings(partition__classes_per_client=classes))
    finished_run(tmp_path / "other", ROUNDS, settings(rounds__fraction=0.7, local__epochs=3))
    found = {family.axis.name: [value for value, _ in family.members] for family in families(groups_of(tmp_path))}
    assert found == {"participation": [0.1, 0.5, 1.0], "noniid-classes": [2, 4, 6]}
