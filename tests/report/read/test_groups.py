"""What may be averaged, what may be compared, and what must never be."""

from pathlib import Path
from typing import Any

import pytest

from fedssa.record import Outcome, RunDir, fill_run_dir
from fedssa.report.figures.families import families
from fedssa.report.read.collection import gather
from fedssa.report.read.groups import Group, group_runs, title
from tests.report.fake_runs import Accuracy, finished_run, make_run, settings

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
    make_run(tmp_path / "c", ROUNDS[:1], settings("fml")).write_outcome(Outcome("diverged", "", 1, 0))
    (group,) = groups_of(tmp_path)
    rows = {row.method: row for row in group.rows}
    assert (rows["fedssa"].mean, rows["fedssa"].outcome) == (None, "not finished")
    assert (rows["fml"].mean, rows["fml"].outcome, rows["fml"].difference) == (None, "diverged, round 1", None)


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({}, ("hetero", "cifar100", 100)),
        ({"models__archs": ["cnn-1"]}, ("homo", "cifar100", 100)),
        ({"models__archs": ["cnn-2"]}, None),
        ({"rounds__fraction": 0.2}, None),
        ({"partition__classes_per_client": 20}, None),
        ({"data__name": "digits"}, None),
    ],
)
def test_the_papers_settings_are_recognised(tmp_path: Path, changes: dict[str, Any], cell: object) -> None:
    table = settings(
        data__name="cifar100",
        partition__clients=100,
        partition__classes_per_client=10,
        rounds__fraction=0.1,
        models__archs=[f"cnn-{i}" for i in range(1, 6)],
    )
    for key, value in changes.items():
        section, _, name = key.partition("__")
        table[section][name] = value
    finished_run(tmp_path / "a", ROUNDS, table)
    (group,) = groups_of(tmp_path)
    assert group.paper_cell == cell
    assert "100 clients" in title(group)


def test_experiments_that_differ_in_one_setting_are_a_family(tmp_path: Path) -> None:
    for i, fraction in enumerate((1.0, 0.1, 0.5)):
        finished_run(tmp_path / f"c{i}", ROUNDS, settings(rounds__fraction=fraction))
    for i, classes in enumerate((4, 6)):
        finished_run(tmp_path / f"k{i}", ROUNDS, settings(partition__classes_per_client=classes))
    finished_run(tmp_path / "other", ROUNDS, settings(rounds__fraction=0.7, local__epochs=3))
    found = {family.axis.name: [value for value, _ in family.members] for family in families(groups_of(tmp_path))}
    assert found == {"participation": [0.1, 0.5, 1.0], "noniid-classes": [2, 4, 6]}
