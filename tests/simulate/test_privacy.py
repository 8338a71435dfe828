"""A simulation with noise: told before it starts, written down, refused where it makes no sense, resumed bit by bit."""

from contextlib import closing
from pathlib import Path

import pytest

import fedssa
from fedssa.accounting.privacy import epsilon
from fedssa.errors import FedSSAWarning, SettingsError
from fedssa.report.page.report import contents
from fedssa.report.read.collection import gather
from fedssa.runs.directory import RunDir
from fedssa.settings.command import command_of
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import Run, reopen, start
from tests.tiny import FEW, tiny

NOISY = {"clip": 1.0, "sigma": 0.1}


def test_a_run_tells_epsilon_before_it_starts_and_writes_it_down(tmp_path: Path) -> None:
    with pytest.warns(FedSSAWarning, match=r"ε = .* for all samples of a client in its 3 rounds of this run"):
        noisy = fedssa.run(tiny(data=FEW, privacy=NOISY), out=tmp_path / "noisy")
    plain = fedssa.run(tiny(data=FEW), out=tmp_path / "plain")
    run_dir = RunDir.open(noisy.path)
    assert run_dir.about["privacy"] == {"epsilon": epsilon(0.1, 1e-5, 3), "delta": 1e-5, "rounds": 3}
    assert run_dir.settings["privacy"] == {**NOISY, "delta": 1e-5}
    assert "--set 'privacy={clip = 1.0, sigma = 0.1}'" in command_of(run_dir)
    assert "privacy" not in RunDir.open(plain.path).settings
    first, same = noisy.records[1].clients[0], plain.records[1].clients[0]
    assert first.state_digest == same.state_digest  # nobody has received anything yet
    assert first.upload_digest != same.upload_digest
    assert first.params_up == same.params_up
    (table,) = [table for table in _tables(tmp_path) if "| ε |" in table]
    assert "| fedssa, privacy = clip 1 sigma 0.1 | 766 |" in table  # 600 + 2·√(600·ln 1e5)
    assert "| fedssa, privacy = none | – |" in table


def _tables(folder: Path) -> list[str]:
    return contents(gather([folder]))["tables.md"].decode().split("\n## ")


def test_a_resumed_run_has_the_same_noise(tmp_path: Path) -> None:
    settings = parse_settings(tiny(data=FEW, privacy=NOISY))
    files = []
    for name, rounds in (("whole", 4), ("cut", 2)):
        with (
            pytest.warns(FedSSAWarning, match="ε = "),
            closing(start(settings, tmp_path / name)) as begun,
            closing(begun.rounds()) as running,
        ):
            assert len([next(running) for _ in range(rounds)]) == rounds
        if name == "cut":
            again = reopen(tmp_path / name)
            assert isinstance(again, Run)
            with pytest.warns(FedSSAWarning, match="ε = "), closing(again):
                list(again.rounds())
        files.append((tmp_path / name / "rounds.jsonl").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"privacy": {"sigma": 1.0}}, r"^privacy\.clip is missing$"),
        ({"privacy": {}}, "is missing"),
        ({"privacy": {"clip": 0.0, "sigma": 1.0}}, r"^privacy\.clip = 0\.0: should be greater than 0$"),
        ({"privacy": {**NOISY, "delta": 1.0}}, r"^privacy\.delta = 1\.0: should be less than 1$"),
        ({"privacy": {**NOISY, "epsilon": 1.0}}, r"^unknown setting privacy\.epsilon"),
        ({"privacy": NOISY, "method": {"name": "fd"}}, r"^\[privacy\]: fd sends probabilities"),
        ({"privacy": NOISY, "method": {"name": "fedssa", "upload_form": "masked"}}, r"^\[privacy\]: fedssa marks rows"),
        (
            {"privacy": NOISY, "method": {"name": "standalone"}},
            r"^\[privacy\]: standalone sends nothing; leave it out$",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(sections: dict[str, dict[str, object]], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(**sections))
