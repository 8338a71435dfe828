"""Schedules, in numbers worked out by hand."""

import math
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssa.core.schedules import SCHEDULES, Constant, Cosine, Schedule, StepDecay

Over = Literal["rounds", "steps"]
HALF = math.sqrt(0.5)


def factors(schedule: Schedule, of: int, other: int = 3) -> list[float]:
    """In all places of the unit it goes by; the other unit stays in one place."""
    if schedule.over == "rounds":
        return [schedule.factor(t, of, other - 1, other) for t in range(of)]
    return [schedule.factor(other - 1, other, step, of) for step in range(of)]


@pytest.mark.parametrize("over", ["rounds", "steps"])
@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (Constant, {}, [1, 1, 1, 1]),
        (Constant, {"warmup": 1}, [1, 1, 1, 1]),
        (Constant, {"warmup": 2}, [0.5, 1, 1, 1]),
        (Constant, {"warmup": 4}, [0.25, 0.5, 0.75, 1]),
        (Constant, {"warmup": 8}, [0.125, 0.25, 0.375, 0.5]),  # longer than the way: never all of lr
        (Cosine, {}, [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),  # cos of 0, 45, 90, 135 degrees
        (Cosine, {"final": 0.5}, [1, 0.75 + HALF / 4, 0.75, 0.75 - HALF / 4]),
        (Cosine, {"final": 1.0}, [1, 1, 1, 1]),
        (Cosine, {"warmup": 3}, [1 / 3, (1 + HALF) / 3, 0.5, (1 - HALF) / 2]),  # warm 1/3, 2/3, 1, 1
        (StepDecay, {"every": 1}, [1, 0.1, 0.01, 0.001]),
        (StepDecay, {"every": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5]),
        (StepDecay, {"every": 3, "gamma": 0.5}, [1, 1, 1, 0.5]),
        (StepDecay, {"every": 9, "gamma": 0.5}, [1, 1, 1, 1]),
        (StepDecay, {"every": 1, "gamma": 0.5, "warmup": 2}, [0.5, 0.5, 0.25, 0.125]),  # warm 1/2, 1, 1, 1
    ],
)
def test_four_places_by_hand(over: Over, cls: type[Schedule], options: dict[str, float], expected: list[float]) -> None:
    assert factors(cls(over=over, **options), of=4) == pytest.approx(expected)  # type: ignore[arg-type]


@given(st.integers(1, 10**6), st.data())
def test_constant_is_exactly_one(num: int, data: st.DataObject) -> None:
    """So that lr · factor keeps the bits of lr."""
    at = data.draw(st.integers(0, num - 1))
    assert Constant().factor(at, num, 0, 1) == 1.0
    assert Constant(over="steps").factor(0, 1, at, num) == 1.0


@given(
    st.sampled_from(["rounds", "steps"]),
    st.integers(1, 200),
    st.one_of(
        st.builds(lambda final: {"final": final}, st.floats(0, 1)),
        st.builds(lambda every, gamma: {"every": every, "gamma": gamma}, st.integers(1, 300), st.floats(1e-3, 1)),
    ),
)
def test_without_warm_up_lr_starts_whole_and_never_grows(over: Over, of: int, options: dict[str, float]) -> None:
    cls = Cosine if "final" in options else StepDecay
    found = factors(cls(over=over, **options), of)  # type: ignore[arg-type]
    assert found[0] == pytest.approx(1.0, rel=1e-15)
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(found))
    assert found[-1] >= options.get("final", 0.0) - 1e-15


@given(st.sampled_from([Constant(), Cosine(final=0.1), StepDecay(every=7)]), st.integers(1, 40), st.integers(1, 40))
def test_a_warm_up_rises_linearly_and_then_leaves_the_schedule_where_it_was(
    plain: Schedule, of: int, warmup: int
) -> None:
    warmed = factors(type(plain)(**{**vars(plain), "warmup": warmup}), of)
    shares = [now / before for now, before in zip(warmed, factors(plain, of), strict=True)]
    assert shares == pytest.approx([min(1.0, (at + 1) / warmup) for at in range(of)])


def test_what_is_not_its_unit_does_not_matter() -> None:
    assert [Cosine().factor(1, 2, step, 9) for step in range(9)] == [Cosine().factor(1, 2, 0, 1)] * 9
    assert [Cosine(over="steps").factor(t, 9, 1, 2) for t in range(9)] == [Cosine(over="steps").factor(0, 1, 1, 2)] * 9


def test_names_and_defaults() -> None:
    assert {"constant": Constant, "cosine": Cosine, "step": StepDecay} == SCHEDULES
    assert Constant() == Constant(over="rounds", warmup=0)
    assert Cosine() == Cosine(over="rounds", warmup=0, final=0.0)
    assert StepDecay(every=30) == StepDecay(over="rounds", warmup=0, every=30, gamma=0.1)
