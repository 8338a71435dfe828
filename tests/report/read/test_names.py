"""Names of files: they say what is in them, and stay when something else is added."""

from pathlib import Path

from fedssa.report.page.report import contents
from fedssa.report.read.collection import gather
from fedssa.report.read.groups import group_runs
from fedssa.report.read.names import file_names, slug
from tests.report.fake_runs import finished_run, settings

ROUNDS = [{0: 0.1, 1: 0.2}, {0: 0.3, 1: 0.4}]


def names_of(folder: Path) -> list[str]:
    return file_names(group_runs(gather([folder]).runs))


def test_what_is_added_changes_no_name(tmp_path: Path) -> None:
    """The new run comes before the others: another data set, and one that differs in what names do not say."""
    finished_run(tmp_path / "m", ROUNDS, settings(rounds__fraction=0.5))
    finished_run(tmp_path / "n", ROUNDS, settings(models__archs=["mlp-1"]))
    before = contents(gather([tmp_path])).keys()
    assert names_of(tmp_path) == ["digits-n3-cnn-1-to-cnn-2-k2-c0.5-e1-r3", "digits-n3-mlp-1-k2-c1-e1-r3"]
    finished_run(tmp_path / "a", ROUNDS, settings(data__name="cifar10"))
    finished_run(tmp_path / "z", ROUNDS, settings(rounds__fraction=0.5, local__lr=0.5))
    first, *others, last = names_of(tmp_path)
    assert first == "cifar10-n3-cnn-1-to-cnn-2-k2-c1-e1-r3"
    assert others == ["digits-n3-cnn-1-to-cnn-2-k2-c0.5-e1-r3", "digits-n3-mlp-1-k2-c1-e1-r3"]
    assert last.startswith(f"{others[0]}-")
    assert before < contents(gather([tmp_path])).keys()


def test_other_ways_to_deal_and_public_data_are_in_the_name(tmp_path: Path) -> None:
    dealt = {"name": "dirichlet", "clients": 3, "gamma": 0.25}
    finished_run(tmp_path / "a", ROUNDS, settings(partition=dealt, public={"name": "slice", "share": 0.1}))
    assert names_of(tmp_path) == ["digits-n3-cnn-1-to-cnn-2-gamma0.25-c1-e1-r3-public-slice"]


def test_shares_of_the_data_and_attacks_are_in_the_name(tmp_path: Path) -> None:
    hostile = {"attack": "sign-flip", "clients": 0.2}
    finished_run(tmp_path / "a", ROUNDS, settings(data__share=0.2))
    finished_run(tmp_path / "b", ROUNDS, settings(data__share=0.2, hostile=hostile))
    plain = "digits-share0.2-n3-cnn-1-to-cnn-2-k2-c1-e1-r3"
    assert names_of(tmp_path) == [plain, f"{plain}-sign-flip"]


def test_anything_becomes_a_part_of_a_name() -> None:
    assert slug("../<Own> Data") == "own-data"
    assert slug("x" * 50) == "x" * 20
    assert slug(0.1) == "0.1"
