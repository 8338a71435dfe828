"""Following a run: its window waits for a SuperLink that is away, and says when a run has failed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssa.deploy.address import Address
from fedssa.deploy.server import submit
from fedssa.deploy.server.directory import init
from fedssa.deploy.server.submit import Submitted
from fedssa.errors import AnswerError, ModelError, SettingsError
from fedssa.runs.files import CHECKPOINT

AWAY = SettingsError("flwr list: is the SuperLink running?")
Follow = Callable[..., list[str]]


def status(name: str, details: str = "") -> dict[str, Any]:
    return {"runs": [{"status": name, "status-details": details}]}


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Follow a run about which Flower's commands say this; what the user is told."""
    init(tmp_path / "hq", Address("127.0.0.1", 9092, 9092, insecure=True), ["north"])
    monkeypatch.setattr(submit, "ASK_STATUS", 0)

    def follow(*answers: "dict[str, Any] | SettingsError", has_begun: bool = False) -> list[str]:
        said, told = iter([{"run-id": "1"}, *answers]), list[str]()

        def flwr(*_: object) -> dict[str, Any]:
            answer = next(said)
            if has_begun:  # the server has made its directory
                (tmp_path / "run").mkdir(exist_ok=True)
                (tmp_path / "run" / CHECKPOINT).touch()
            if isinstance(answer, SettingsError):
                raise answer
            return answer

        monkeypatch.setattr(submit, "flwr", flwr)
        assert list(Submitted(tmp_path / "hq", tmp_path / "run").records(told.append)) == []
        return told

    return follow


def test_while_the_superlink_is_away_the_window_says_so_once_and_waits(follow: Follow) -> None:
    told = follow(status("running"), AWAY, AWAY, status("running"), AWAY, status("finished:completed"))
    assert told == ["the SuperLink does not answer; the run can do without it for a while"] * 2


def test_it_does_not_wait_for_ever(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "PATIENCE", 0)
    with pytest.raises(SettingsError, match="is the SuperLink running"):
        follow(AWAY)


@pytest.mark.parametrize(
    ("reason", "has_begun", "advice"),
    [
        ("No heartbeat received from the task", False, "; to try again: fedssa federation run {hq} --out {run}"),
        (
            "No heartbeat received from the task",
            True,
            "; to continue it: fedssa federation run {hq} --out {run} --resume",
        ),
        ("1 of 3 clients; then: fedssa federation run hq --out run --resume", True, ""),
    ],
)
def test_a_run_that_failed_is_an_error_with_its_reason_and_what_to_do(
    follow: Follow, tmp_path: Path, reason: str, has_begun: bool, advice: str
) -> None:
    with pytest.raises(AnswerError) as caught:
        follow(status("finished:failed", reason), has_begun=has_begun)
    hq, run = tmp_path / "hq", tmp_path / "run"
    assert str(caught.value) == f"{run}: {reason}{advice.format(hq=hq, run=run)}"


def test_a_shared_model_that_cannot_be_built_is_refused_before_the_superlink_is_asked(tmp_path: Path) -> None:
    init(tmp_path / "hq", Address("127.0.0.1", 9092, 9092, insecure=True), ["north"], input_shape=[6])
    agreed = 'clients = ["north"]\n[task]\nclasses = 10\ninput_shape = [6]\n[models]\nshared = "cnn-5"\n'
    (tmp_path / "hq" / "federation.toml").write_text(f'{agreed}[method]\nname = "fedmrl"\n')
    with pytest.raises(ModelError, match=r"^models\.shared = 'cnn-5': .* of 100 numbers \(cnn-5 needs images"):
        Submitted(tmp_path / "hq", tmp_path / "run")
