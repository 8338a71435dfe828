"""Schedules say how the learning rate of a training, a client's or the server's, changes on its way."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal, final

from annotated_types import Ge, Gt, Le
from typing_extensions import override


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Gives the factor of lr in a step from its place in the run (`over` rounds) or in the phase (`over` steps).

    In the first `warmup` places it is multiplied by 1/warmup, 2/warmup, ..., 1; later places are where they would
    be without a warm-up. Subclass as a frozen, keyword-only dataclass.
    """

    over: Literal["rounds", "steps"] = "rounds"  # what a place is: a round of the run, or a step of a phase
    warmup: Annotated[int, Ge(0)] = 0  # so many places are grown into: 1/warmup, 2/warmup, …, 1

    def factor(self, t: int, num_rounds: int, step: int, num_steps: int) -> float:
        """Returns the factor in `step` of a phase of round t, both from 0; clients that sit out do not fall behind."""
        at, of = (t, num_rounds) if self.over == "rounds" else (step, num_steps)
        assert 0 <= at < of, f"place {at} of {of} {self.over}"
        warm = (at + 1) / self.warmup if at < self.warmup else 1.0
        return warm * self.shape(at, of)

    @abstractmethod
    def shape(self, at: int, of: int) -> float:
        """Returns the factor in place `at` = 0 ... `of` - 1, warm-up aside."""


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    @override
    def shape(self, at: int, of: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Falls from 1 along half a cosine, and would reach `final` in the place after the last."""

    final: Annotated[float, Ge(0), Le(1)] = 0.0  # the factor at the end

    @override
    def shape(self, at: int, of: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * at / of)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """The factor is gamma^⌊place / every⌋."""

    every: Annotated[int, Ge(1)]  # so many places have one factor
    gamma: Annotated[float, Gt(0), Le(1)] = 0.1  # by which each next one is multiplied

    @override
    def shape(self, at: int, of: int) -> float:
        return self.gamma ** (at // self.every)


SCHEDULES: dict[str, type[Schedule]] = {"constant": Constant, "cosine": Cosine, "step": StepDecay}
