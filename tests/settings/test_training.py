"""What a recipe may say of optimiser and schedule, and the one line that everything else gets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from fedssa.core.optim import OPTIMISERS, SGD, Adam, AdamW, FromTorch, Optimiser, Steps
from fedssa.core.schedules import SCHEDULES, Constant, Cosine, Schedule, StepDecay
from fedssa.core.training import Training
from fedssa.errors import SettingsError
from fedssa.settings.imports import import_path
from fedssa.settings.training import (
    Chosen,
    as_chosen,
    local_training,
    name_and_options,
    optimiser_from,
    schedule_from,
    server_training,
)


def choose(key: str, value: object, found: object = None) -> Chosen:
    """As the settings do; `found`: instead of what the name stands for."""
    name, options = name_and_options(key, value)
    known: dict[str, Any] = {**OPTIMISERS, **SCHEDULES}
    return Chosen(key, name, options, found or (import_path(key, name) if ":" in name else known[name]))


def optimiser(value: object, found: object = None, **beside_lr: float | None) -> Optimiser:
    return optimiser_from(choose("local.optimizer", value, found), beside_lr)


def schedule(value: object, found: object = None) -> Schedule:
    return schedule_from(choose("local.schedule", value, found))


@dataclass(frozen=True, kw_only=True)
class Signs(Optimiser):
    """Somebody's own: p ← p - lr·scale·sign(g)."""

    scale: float = 1.0

    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Ramp(Schedule):
    @override
    def shape(self, at: int, of: int) -> float:
        return 1 - at / of


class NoDataclass(Optimiser):
    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("value", "beside_lr", "expected"),
    [
        ("sgd", {}, SGD(momentum=0.9, weight_decay=0.0)),
        ("sgd", {"momentum": None, "weight_decay": None}, SGD(momentum=0.9, weight_decay=0.0)),
        ("sgd", {"momentum": 0.0, "weight_decay": 0.5}, SGD(momentum=0.0, weight_decay=0.5)),
        ({"name": "sgd"}, {"momentum": 0.5}, SGD(momentum=0.5)),
        ("adam", {"momentum": None}, Adam()),
        ({"name": "adam", "beta1": 0.5, "eps": 1}, {"weight_decay": 0.25}, Adam(beta1=0.5, eps=1.0, weight_decay=0.25)),
        ("adamw", {"weight_decay": None}, AdamW(weight_decay=0.01)),
        ("adamw", {"weight_decay": 0.0}, AdamW(weight_decay=0.0)),
        ("torch.optim:RMSprop", {}, FromTorch(factory=torch.optim.RMSprop)),
        (
            {"name": "torch.optim:SGD", "momentum": 0.5, "weight_decay": 0.1},
            {"momentum": None},
            FromTorch(factory=torch.optim.SGD, options={"momentum": 0.5, "weight_decay": 0.1}),
        ),
    ],
)
def test_optimisers(value: object, beside_lr: dict[str, float | None], expected: Optimiser) -> None:
    assert optimiser(value, **beside_lr) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("constant", Constant()),
        ({"name": "constant", "warmup": 2}, Constant(warmup=2)),
        ("cosine", Cosine()),
        ({"name": "cosine", "final": 0.1}, Cosine(final=0.1)),
        (
            {"name": "step", "over": "steps", "every": 30, "gamma": 0.5, "warmup": 2},
            StepDecay(over="steps", every=30, gamma=0.5, warmup=2),
        ),
    ],
)
def test_schedules(value: object, expected: Schedule) -> None:
    assert schedule(value) == expected


def test_both_at_once() -> None:
    training, _ = server_training({"optimizer": "sgd", "schedule": "cosine", "weight_decay": 0.5})
    assert training == Training(optimiser=SGD(weight_decay=0.5), schedule=Cosine())


def test_dataclasses_of_somebody_else() -> None:
    assert optimiser({"name": "mine:Signs", "scale": 2.0}, Signs) == Signs(scale=2.0)
    assert schedule({"name": "mine:Ramp", "warmup": 3}, Ramp) == Ramp(warmup=3)


def seven(params: Any, lr: float) -> int:
    return 7


def refusing(params: Any, lr: float) -> Any:
    raise RuntimeError("two\n  lines")


@pytest.mark.parametrize(
    ("value", "found", "beside_lr", "line"),
    [
        (5, None, {}, 'local.optimizer = 5: should be a name or a table with one, {name = "..."}'),
        ({"beta1": 0.9}, None, {}, "local.optimizer = {'beta1': 0.9}: should be a name or a table with one"),
        ({"name": 3}, None, {}, "local.optimizer = {'name': 3}: should be a name or a table with one"),
        ("adam", None, {"momentum": 0.9}, "local.momentum = 0.9: adam has no momentum, leave it out"),
        ("adamw", None, {"momentum": 0.0}, "local.momentum = 0.0: adamw has no momentum, leave it out"),
        ("m:Signs", Signs, {"weight_decay": 0.1}, "local.weight_decay = 0.1: m:Signs has no weight_decay, leave it"),
        ({"name": "sgd", "momentum": 0.5}, None, {}, "local.optimizer.momentum: give it as local.momentum"),
        ({"name": "adam", "weight_decay": 0.5}, None, {}, "optimizer.weight_decay: give it as local.weight_decay"),
        ({"name": "adam", "beta1": 1.0}, None, {}, "local.optimizer.beta1 = 1.0: should be less than 1"),
        ({"name": "adam", "beta2": -0.1}, None, {}, "local.optimizer.beta2 = -0.1: should be greater than or equal"),
        ({"name": "adam", "eps": 0.0}, None, {}, "local.optimizer.eps = 0.0: should be greater than 0"),
        ({"name": "adam", "beta": 0.9}, None, {}, "unknown setting local.optimizer.beta (did you mean beta"),
        ("sgd", None, {"momentum": 1.0}, "local.optimizer.momentum = 1.0: should be less than 1"),
        ("m:five", 5, {}, "local.optimizer = 'm:five': should be an optimiser, or make one of torch's"),
        ("m:NoDataclass", NoDataclass, {}, "local.optimizer = 'm:NoDataclass': should be a dataclass"),
        ("builtins:int", None, {}, "local.optimizer = 'builtins:int': cannot be used as an optimiser (TypeError: "),
        ("builtins:dict", None, {}, "local.optimizer = 'builtins:dict': cannot be used as an optimiser (TypeError: "),
        ("m:f", seven, {}, "'m:f': cannot be used as an optimiser (TypeError: gives int, not a torch.optim.Opt"),
        ("m:f", refusing, {}, "local.optimizer = 'm:f': cannot be used as an optimiser (RuntimeError: two lines)"),
        ("torch.optim:LBFGS", None, {}, "'torch.optim:LBFGS': cannot be used as an optimiser (TypeError: "),
        ({"name": "torch.optim:SGD", "nu": 1}, None, {}, "'torch.optim:SGD': cannot be used as an optimiser (TypeErr"),
        ("torch.optim:SGD", None, {"momentum": 0.5}, "options in the table: momentum = 0.5 should stand there"),
    ],
)
def test_one_line_for_what_is_no_optimiser(
    value: object, found: object, beside_lr: dict[str, float | None], line: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        optimiser(value, found, **beside_lr)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "found", "line"),
    [
        (None, None, "local.schedule = None: should be a name or a table with one"),
        ("step", None, "local.schedule.every is missing"),
        ({"name": "step", "every": 0}, None, "local.schedule.every = 0: should be greater than or equal to 1"),
        ({"name": "step", "every": 1, "gamma": 0.0}, None, "local.schedule.gamma = 0.0: should be greater than 0"),
        (
            {"name": "step", "every": 1, "gamma": 1.5},
            None,
            "local.schedule.gamma = 1.5: should be less than or equal to 1",
        ),
        ({"name": "cosine", "final": 1.5}, None, "local.schedule.final = 1.5: should be less than or equal to 1"),
        ({"name": "cosine", "final": -0.5}, None, "local.schedule.final = -0.5: should be greater than or equal to 0"),
        ({"name": "cosine", "warmup": -1}, None, "local.schedule.warmup = -1: should be greater than or equal to 0"),
        ({"name": "cosine", "warmup": 0.5}, None, "local.schedule.warmup = 0.5: should be a valid integer"),
        ({"name": "cosine", "over": "epochs"}, None, "local.schedule.over = 'epochs': should be 'rounds' or 'steps'"),
        ({"name": "constant", "final": 0.5}, None, "unknown setting local.schedule.final"),
        ("m:five", 5, "local.schedule = 'm:five': should be a dataclass that extends Schedule"),
        ("m:SGD", SGD, "local.schedule = 'm:SGD': should be a dataclass that extends Schedule"),
    ],
)
def test_one_line_for_what_is_no_schedule(value: object, found: object, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        schedule(value, found)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["sgd", {"name": "adam", "beta1": 0.5}, "adamw", {"name": "torch.optim:SGD", "momentum": 0.5}]
)
def test_an_optimiser_is_written_down_with_its_defaults_and_read_back(value: object) -> None:
    first = optimiser(value, weight_decay=None)
    written = as_chosen(name_and_options("", value)[0], first)
    beside_lr = {option: getattr(first, option, None) for option in ("momentum", "weight_decay")}
    assert optimiser(written, **beside_lr) == first


def test_what_is_written_down() -> None:
    """A name alone, if every option is its default: what is beside lr in a recipe stays there."""
    assert as_chosen("sgd", SGD(momentum=0.5)) == "sgd"
    assert as_chosen("adamw", AdamW()) == "adamw"
    assert as_chosen("adamw", AdamW(beta1=0.8, weight_decay=0.5)) == {"name": "adamw", "beta1": 0.8}
    assert as_chosen("a:b", FromTorch(factory=torch.optim.SGD)) == "a:b"
    assert as_chosen("a:b", FromTorch(factory=torch.optim.SGD, options={"momentum": 0.5})) == {
        "name": "a:b",
        "momentum": 0.5,
    }
    assert as_chosen("step", StepDecay(every=3)) == {"name": "step", "every": 3}
    assert as_chosen("step", StepDecay(every=3, over="steps", warmup=2, gamma=0.5)) == {
        "name": "step",
        "over": "steps",
        "warmup": 2,
        "every": 3,
        "gamma": 0.5,
    }
    assert schedule(as_chosen("step", StepDecay(every=3))) == StepDecay(every=3)


SECTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sgd": {"momentum": 0.0, "weight_decay": 0.1, "epochs": 3, "batch_size": 7, "clip": 1.5},
    "adam": {"optimizer": {"name": "adam", "beta1": 0.5}, "schedule": {"name": "cosine", "final": 0.1, "warmup": 1}},
    "adamw": {"optimizer": "adamw", "schedule": {"name": "step", "every": 2, "over": "steps"}, "lr": 1},
    "torch's": {"optimizer": {"name": "torch.optim:RMSprop", "momentum": 0.5}},
    "somebody's": {"schedule": {"name": "tests.settings.test_training:Ramp", "warmup": 2}},
}


@pytest.mark.parametrize("said", SECTIONS.values(), ids=SECTIONS)
def test_a_section_is_written_down_with_every_default_and_read_back(said: dict[str, Any]) -> None:
    for read in (local_training, server_training):
        training, table = read(said)
        again, same = read({key: value for key, value in table.items() if value is not None})
        assert (again, same) == (training, table)
        assert read(table) == (training, table)  # a run directory holds what is None, too


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"optimizer": "adm"}, "local.optimizer = 'adm': unknown (did you mean adam?); known: sgd, adam, adamw"),
        ({"schedule": "cosin"}, "local.schedule = 'cosin': unknown (did you mean cosine?)"),
        ({"optimizer": "no_such.module:Thing"}, "local.optimizer = 'no_such.module:Thing': cannot be imported"),
        ({"optimizer": 5}, "local.optimizer = 5: should be a valid "),
        ({"lr": 0.0}, "local.lr = 0.0: should be greater than 0"),
    ],
)
def test_one_line_for_what_is_no_section(said: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        local_training(said)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
