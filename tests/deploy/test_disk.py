"""A site's disk: whole files or none, one process at a time, nothing believed that is damaged."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedssa.core.message import digest, tensors_in
from fedssa.core.task import facts_of
from fedssa.core.tensors import digest as digest_of_tensors
from fedssa.deploy.site.disk import Saved, StateBusy, StateDir
from fedssa.errors import RunDirError
from fedssa.methods import FedSSA
from fedssa.runs.files import write_durably
from fedssa.sites.agreement import parse_federation
from tests.conftest import make_client
from tests.deploy.in_process import sites_of
from tests.tiny import FEW, tiny

RUN = "0123456789abcdef"


METHOD = FedSSA()
FEDERATION = parse_federation({"clients": ["a"], "task": {"classes": 3, "input_shape": [4]}, "models": {"width": 2}})


def saved_after_a_round() -> Saved:
    client = make_client(method=METHOD)
    return Saved.after(RUN, 3, FEDERATION, client.run_round(None, 0), client)


def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path: Path) -> None:
    saved = saved_after_a_round()
    disk = StateDir(tmp_path / "new")
    with disk.locked():
        disk.save(saved)
    loaded = disk.load(RUN)
    assert loaded is not None
    assert (loaded.run, loaded.t, loaded.agreement) == (RUN, 3, FEDERATION.agreement)
    assert loaded.task == facts_of(FEDERATION.task)
    answers = [each.answer_of(METHOD) for each in (saved, loaded)]
    assert digest_of_tensors(loaded.state) == digest_of_tensors(saved.state) == answers[0].state_digest
    assert {name: tuple(t.shape) for name, t in tensors_in(answers[0].payload).items()} == {
        "rows": (2, 3),
        "classes": (2,),
    }
    assert digest(answers[0]) == digest(answers[1])
    assert disk.load("f" * 16) is None
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0  # nobody else reads a model


def test_a_crash_before_the_rename_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, disk = saved_after_a_round(), StateDir(tmp_path)
    disk.save(saved)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        disk.save(replace(saved, t=4))
    before = disk.load(RUN)
    assert before is not None
    assert before.t == 3
    latest = disk.latest()
    assert latest is not None
    assert latest.t == 3


def test_content_is_on_disk_before_its_name_and_the_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*arguments: object) -> None:
            order.append(name)
            real(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name))
    write_durably(tmp_path / "file", b"content")
    assert order == ["fsync", "replace", "fsync"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with StateDir(tmp_path).locked(), pytest.raises(StateBusy, match="another process"), StateDir(tmp_path).locked(0.1):
        pass
    with StateDir(tmp_path).locked(0):
        pass


@pytest.mark.parametrize("damage", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:100], lambda _: b""])
def test_a_damaged_state_is_not_believed(tmp_path: Path, damage: object) -> None:
    disk = StateDir(tmp_path)
    disk.save(saved_after_a_round())
    file = tmp_path / f"{RUN}.safetensors"
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RunDirError, match="cannot be read"):
        disk.load(RUN)


def test_an_nhwc_tensor_is_saved_by_value(tmp_path: Path) -> None:
    saved = saved_after_a_round()
    nhwc = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    disk = StateDir(tmp_path)
    disk.save(replace(saved, state={"net.w": nhwc}))
    loaded = disk.load(RUN)
    assert loaded is not None
    assert torch.equal(loaded.state["net.w"], nhwc)


@pytest.mark.parametrize(("number", "advice"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "see to its perm")])
def test_a_full_disk_costs_a_round_is_told_by_its_own_word_and_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, advice: str
) -> None:
    sites = sites_of(tiny(data=FEW, rounds={"total": 3, "fraction": 1.0}), tmp_path)
    state, replace_file = tmp_path / "state-1", os.replace

    def full(source: str, target: Path) -> None:
        if state in Path(target).parents and records[-1].t == 0:
            raise OSError(number, os.strerror(number))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    records = []
    for record in sites.run(sites.grid()):
        records.append(record)
        (kept,) = (file.name for file in state.glob("*") if file.name != "lock") if record.t >= 0 else ("",)
        assert not kept.endswith(".tmp")
    assert [record.absent for record in records] == [(), (), (1,), ()]
    (fault,) = sites.faults()
    assert (fault.t, fault.site, fault.kind, fault.word) == (1, "c1", "refused", "disk")
    assert fault.reason.startswith("its disk is full or cannot be written")
    assert f"{state}: cannot be written ({os.strerror(number)}); {advice}" in caplog.text
