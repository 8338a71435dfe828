"""Which implementation runs: by the settings, the environment, and what the machine has."""

import json
from collections.abc import Callable
from contextlib import closing
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d, linear

import fedssa
from fedssa.cli import doctor
from fedssa.errors import RunDirError, SettingsError
from fedssa.kernels import (
    Kernel,
    conv_relu_pool,
    gather,
    in_c,
    in_torch,
    multiplies,
    resolve,
    steps_linear_layers,
    using,
    why_slow,
)
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from tests.python import python
from tests.tiny import tiny

Patch = pytest.MonkeyPatch
HERE = in_c.best_level()


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: Patch) -> None:
    monkeypatch.delenv("FEDSSA_KERNEL", raising=False)


def without_library(monkeypatch: Patch) -> None:
    monkeypatch.setattr(in_c, "_library", lambda: OSError("it was not built"))
    monkeypatch.setattr(in_c, "best_level", lambda: 0)


def without_avx2(monkeypatch: Patch) -> None:
    monkeypatch.setattr(in_c, "best_level", lambda: 0)


def with_avx2(monkeypatch: Patch) -> None:
    monkeypatch.setattr(in_c, "best_level", lambda: 1)


def with_avx512(monkeypatch: Patch) -> None:
    monkeypatch.setattr(in_c, "best_level", lambda: 3)


Machine = Callable[[Patch], None]
CAPPED = "AVX512_CORE_FP16"
KNOWN = "should be one of auto, c, c-avx512-linear, c-avx512, c-avx2, c-plain, torch"
LACKS = "this processor has no such instructions"
NOT_BUILT = "there is no C kernel (it was not built); install a C compiler (gcc or clang), then fedssa anew"


# -- names -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("machine", "setting", "variable", "expected"),
    [
        (with_avx2, "auto", None, "c-avx2"),
        (with_avx2, "auto", "", "c-avx2"),
        (with_avx2, "auto", "auto", "c-avx2"),
        (with_avx2, "auto", "torch", "torch"),
        (with_avx2, "c", "torch", "c-avx2"),
        (with_avx2, "torch", "c", "torch"),
        (with_avx2, "auto", "c-plain", "c-plain"),
        (with_avx512, "auto", None, "c-avx512-linear"),
        (with_avx512, "c", None, "c-avx512-linear"),
        (with_avx512, "auto", "c-avx512", "c-avx512"),
        (with_avx512, "auto", "c-avx2", "c-avx2"),
        (with_avx512, "c-avx512", "torch", "c-avx512"),
        (with_avx512, "c-plain", None, "c-plain"),
        (without_avx2, "auto", None, "torch"),
        (without_avx2, "auto", "c", "c-plain"),
        (without_avx2, "c", None, "c-plain"),
        (without_library, "auto", None, "torch"),
        (without_library, "torch", None, "torch"),
    ],
)
def test_what_a_setting_means(
    monkeypatch: Patch, machine: Machine, setting: str, variable: str | None, expected: str
) -> None:
    machine(monkeypatch)
    if variable is not None:
        monkeypatch.setenv("FEDSSA_KERNEL", variable)
    assert resolve(setting) == expected


@pytest.mark.parametrize(
    ("machine", "setting", "variable", "message"),
    [
        (without_library, "c", "", f"run.kernel = 'c': {NOT_BUILT}"),
        (without_library, "auto", "c", f"FEDSSA_KERNEL = 'c': {NOT_BUILT}"),
        (without_library, "c-avx2", "", f"run.kernel = 'c-avx2': {NOT_BUILT}"),
        (with_avx2, "auto", "gpu", f"FEDSSA_KERNEL = 'gpu': {KNOWN}"),
        (with_avx2, "gpu", "", f"run.kernel = 'gpu': {KNOWN}"),
        (with_avx2, "auto", "c-avx512", f"FEDSSA_KERNEL = 'c-avx512': {LACKS}; c is c-avx2 here"),
        (without_avx2, "c-avx2", "", f"run.kernel = 'c-avx2': {LACKS}; c is c-plain here"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    monkeypatch: Patch, machine: Machine, setting: str, variable: str, message: str
) -> None:
    machine(monkeypatch)
    monkeypatch.setenv("FEDSSA_KERNEL", variable)
    with pytest.raises(SettingsError) as error:
        resolve(setting)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("machine", "loss"),
    [
        (with_avx2, None),
        (without_avx2, "this processor has no AVX2, so the C kernel is no gain"),
        (without_library, NOT_BUILT),
    ],
)
def test_why_slow(monkeypatch: Patch, machine: Machine, loss: str | None) -> None:
    machine(monkeypatch)
    assert why_slow() == loss


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        (with_avx2, "c-avx2"),
        (with_avx512, "c-avx512-linear"),
        (without_avx2, "torch: this processor has no AVX2, so the C kernel is no gain"),
        (without_library, f"torch: {NOT_BUILT}"),
    ],
)
def test_the_doctor_says_it(monkeypatch: Patch, machine: Machine, line: str) -> None:
    machine(monkeypatch)
    assert next(text for name, text in doctor.examine() if name == "kernel") == line


def test_a_library_that_cannot_be_loaded_is_missing(monkeypatch: Patch, tmp_path: Path) -> None:
    """Another machine's, say: a file is there, and no library."""
    (tmp_path / f"_native{EXTENSION_SUFFIXES[0]}").write_text("no library")
    monkeypatch.setattr(in_c, "__file__", str(tmp_path / "in_c.py"))
    in_c._library.cache_clear()
    in_c.best_level.cache_clear()
    try:
        assert "file too short" in (in_c.missing() or "")
        assert in_c.best_level() == 0
        assert resolve("auto") == "torch"
    finally:
        in_c._library.cache_clear()
        in_c.best_level.cache_clear()


@pytest.mark.parametrize(("broken", "said", "isa"), [(1, "", CAPPED), (0, "", ""), (1, "AVX2", "AVX2")])
def test_onednn_is_kept_from_tiles_that_a_machine_hides_unless_a_user_says_otherwise(
    broken: int, said: str, isa: str
) -> None:
    """In a process of its own: a machine that is broken or not, as the library would say."""
    code = (
        "import os\nfrom fedssa.kernels import in_c\nfrom importlib import reload\nimport fedssa.kernels\n"
        "os.environ.pop('ONEDNN_MAX_CPU_ISA', None)\n"
        f"os.environ.update({{'ONEDNN_MAX_CPU_ISA': {said!r}}} if {said!r} else {{}})\n"
        f"in_c.amx_is_broken = lambda: bool({broken})\nreload(fedssa.kernels)\n"
        "print(os.environ.get('ONEDNN_MAX_CPU_ISA', ''))"
    )
    assert python("-c", code).stdout.strip() == isa


def test_16_bits_work_here() -> None:
    """Forward and backward, products and convolutions."""
    x, weight = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    kernel = torch.randn(4, 3, 5, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(x, weight).sum() + conv2d(torch.randn(2, 3, 8, 8), kernel).sum()
    out.backward()  # type: ignore[no-untyped-call]
    assert out.isfinite()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


# -- what runs -------------------------------------------------------------------------------------------------
def test_what_runs_is_what_was_named(monkeypatch: Patch) -> None:
    ran = []
    for module, name in ((in_c, "c"), (in_torch, "torch")):
        for function in ("conv_relu_pool", "gather"):
            monkeypatch.setattr(module, function, lambda *_, called=(name, function): ran.append(called))
    for kernel in ("c", "torch"):
        with using(kernel):
            conv_relu_pool(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), torch.zeros(1))
            gather(torch.zeros(1, 4, 4, 1), torch.tensor([0]))
    assert ran == [("c", "conv_relu_pool"), ("c", "gather"), ("torch", "conv_relu_pool"), ("torch", "gather")]


def test_the_choice_ends_with_its_block() -> None:
    x = torch.zeros(1, 4, 4, 1)
    with using("torch"):
        with using("c"), pytest.raises(ValueError, match="an index of"):
            gather(x, torch.tensor([0], dtype=torch.int32))  # C is particular
        assert gather(x, torch.tensor([0], dtype=torch.int32)).shape == x.shape


# -- whole runs ------------------------------------------------------------------------------------------------
C_NAME = in_c.LEVELS[HERE]


def images(kernel: str = "auto") -> dict[str, Any]:
    return tiny(
        models={"archs": ["cnn-5", "cnn-4"], "width": 8},
        local={"augment": True},
        rounds={"total": 2, "fraction": 0.5},
        run={"kernel": kernel},
    )


def stopped(settings: dict[str, Any], path: Path) -> Path:
    """After round 0."""
    with closing(start(parse_settings(settings), path)) as begun:
        for record in begun.rounds():
            if record.t == 0:
                break
    return path


def named(path: Path) -> str:
    name: str = json.loads((path / "environment.json").read_text())["kernel"]
    return name


# by the settings, and by the environment, which workers must hear of, too
@pytest.mark.parametrize(("setting", "variable"), [("c", ""), ("torch", ""), ("auto", "c"), ("auto", "torch")])
def test_serial_pool_and_resumed_give_the_same_file(
    tmp_path: Path, monkeypatch: Patch, setting: str, variable: str
) -> None:
    monkeypatch.setenv("FEDSSA_KERNEL", variable)
    runs = [
        fedssa.run(images(setting), out=tmp_path / "serial").path,
        fedssa.run(images(setting), out=tmp_path / "pool", workers=2).path,
        fedssa.resume(stopped(images(setting), tmp_path / "stopped")).path,
    ]
    files = [(path / "rounds.jsonl").read_bytes() for path in runs]
    assert files[0] == files[1] == files[2]
    assert {named(path) for path in runs} == {"torch" if "torch" in (setting, variable) else C_NAME}


def test_the_choice_changes_bits_and_next_to_no_result(tmp_path: Path) -> None:
    one, other = (fedssa.run(images(kernel), out=tmp_path / kernel).records[-1] for kernel in ("c", "torch"))
    states = [[client.state_digest for client in record.clients] for record in (one, other)]
    assert set(states[0]).isdisjoint(states[1])
    losses = [[client.loss for client in record.clients] for record in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ("c", "torch", rf"begun with kernel {C_NAME}, this is torch; resume it with FEDSSA_KERNEL={C_NAME}, or start"),
        ("torch", "c", rf"begun with kernel torch, this is {C_NAME}; resume it with FEDSSA_KERNEL=torch, or start"),
    ],
)
def test_no_run_is_resumed_with_another_kernel(
    tmp_path: Path, monkeypatch: Patch, then: str, now: str, message: str
) -> None:
    monkeypatch.setenv("FEDSSA_KERNEL", then)
    path = stopped(images(), tmp_path / "run")
    monkeypatch.setenv("FEDSSA_KERNEL", now)
    with pytest.raises(RunDirError, match=message):
        fedssa.resume(path)
    monkeypatch.setenv("FEDSSA_KERNEL", then)
    assert len(fedssa.resume(path).records) == 3


def test_no_run_is_resumed_with_other_instructions(tmp_path: Path, monkeypatch: Patch) -> None:
    path = stopped(images("c"), tmp_path / "run")
    monkeypatch.setattr(in_c, "best_level", lambda: int(not HERE))
    other = "c-plain" if HERE else "c-avx2"
    with pytest.raises(RunDirError, match=rf"begun with kernel {C_NAME}, this is {other}; resume it there, or"):
        fedssa.resume(path)


def test_a_run_is_resumed_with_wider_vectors_and_gives_the_same_file(tmp_path: Path, monkeypatch: Patch) -> None:
    """Where there are none, with the same ones."""
    narrow, wide = in_c.LEVELS[min(HERE, 1)], in_c.LEVELS[min(HERE, 2)]
    monkeypatch.setenv("FEDSSA_KERNEL", narrow)
    path, whole = stopped(images(), tmp_path / "run"), fedssa.run(images(), out=tmp_path / "whole").path
    monkeypatch.setenv("FEDSSA_KERNEL", wide)
    fedssa.resume(path)
    assert (path / "rounds.jsonl").read_bytes() == (whole / "rounds.jsonl").read_bytes()
    assert named(path) == named(whole) == narrow


def test_a_run_that_names_its_kernel_does_not_ask_the_environment(tmp_path: Path, monkeypatch: Patch) -> None:
    path = stopped(images("c"), tmp_path / "run")
    monkeypatch.setenv("FEDSSA_KERNEL", "torch")
    assert len(fedssa.resume(path).records) == 3
    assert named(path) == C_NAME


def test_without_the_library_a_run_that_wants_it_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    without_library(monkeypatch)
    with pytest.raises(SettingsError, match=r"^run\.kernel = 'c': there is no C kernel"):
        fedssa.run(images("c"), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert named(fedssa.run(tiny(rounds={"total": 1}), out=tmp_path / "run").path) == "torch"


def test_a_library_of_other_sources_is_not_used(monkeypatch: Patch) -> None:
    assert in_c.missing() is None
    monkeypatch.setattr(in_c, "_is_stale", lambda _: True)
    in_c._library.cache_clear()
    try:
        assert (in_c.missing() or "").startswith("there is no C kernel (it was built from other sources); install")
    finally:
        monkeypatch.undo()
        in_c._library.cache_clear()
    assert in_c._is_stale(b"of another time")


# -- steps of linear layers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kernel", "used"),
    [("c-avx512-linear", True), ("c-avx512", False), ("c-avx2", False), ("c-plain", False), ("torch", False)],
)
def test_only_its_own_kernel_computes_linear_layers(monkeypatch: Patch, kernel: Kernel, *, used: bool) -> None:
    with_avx512(monkeypatch)
    with using(kernel):
        assert multiplies() is used


@pytest.mark.parametrize(
    ("kernel", "used"),
    [("c-avx512-linear", True), ("c-avx512", True), ("c-avx2", False), ("c-plain", False), ("torch", False)],
)
def test_only_wide_vectors_take_steps(monkeypatch: Patch, kernel: Kernel, *, used: bool) -> None:
    with_avx512(monkeypatch)
    monkeypatch.setattr(in_c, "steps_like_torch", lambda: True)
    with using(kernel):
        assert steps_linear_layers() is used


def test_a_machine_whose_torch_adds_otherwise_takes_none(monkeypatch: Patch) -> None:
    with_avx512(monkeypatch)
    monkeypatch.setattr(in_c, "linear_step", lambda weight, *_, **__: weight.add_(1e-6))
    in_c.steps_like_torch.cache_clear()
    try:
        with using("c-avx512"):
            assert not steps_linear_layers()
        with using("c-avx512-linear"):
            assert steps_linear_layers()  # whose bits are its own
    finally:
        in_c.steps_like_torch.cache_clear()
