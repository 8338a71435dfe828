"""Rules of aggregation, with numbers worked out by hand and with any: what one upload can do, and what it cannot."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from torch import Tensor

from fedssa.core import averaging
from fedssa.core.averaging import RULES, Clipped, Combined, Cuts, Krum, Mean, Median, Rule, Trimmed, average, mean
from tests.conftest import same_bits

CUTTING = [Median(), Trimmed(), Clipped(), Krum()]


def column(*numbers: float) -> list[Tensor]:
    return [torch.tensor([float(number)]) for number in numbers]


def combined(rule: Rule, *numbers: float) -> tuple[float, list[int]]:
    """The result, and whom the rule has cut."""
    value, cut = rule.combine(column(*numbers))
    return value.item(), [k for k, is_cut in enumerate(cut) if is_cut]


# -- by hand -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "numbers", "value", "cut"),
    [
        (Mean(), (1, 2, 9), 4, []),
        (Median(), (1, 2, 900), 2, [2]),  # distances 1, 0, 898: more than 3 · 1
        (Median(), (1, 2, 4, 900), 3, [3]),  # distances 2, 1, 1, 897, whose lower median is 1; (2 + 4) / 2
        (Median(), (1, 2, 3), 2, []),
        (Trimmed(), (1, 2, 900), 2, [2]),  # of 3 uploads 0.9 are left out at either end, rounded up
        (Trimmed(), (0, 1, 2, 3, 4, 900), 2.5, [5]),  # 1.8, rounded up: 2 and 3 stay; distances 2.5, 1.5, 0.5, …
        (Trimmed(share=0.1), (0, 1, 2, 3, 4, 900), 2.5, [5]),  # one at either end
        (Trimmed(share=0.49), (1, 2, 4, 900), 3, [3]),  # two at either end would leave nothing
        (Clipped(), (1, 2, 900), (1 + 2 + 4) / 3, [2]),  # 2 + 2 · 1 is as far as an upload may lie
        (Clipped(factor=4), (1, 2, 900), (1 + 2 + 6) / 3, [2]),
        (Clipped(), (1, 2, 4), 7 / 3, []),  # 4 lies at the bound
        (Clipped(), (5, 5, 5, -7), 5, [3]),  # half of them are alike, so that the others may differ by nothing
        (Krum(), (0, 1, 3, 4, 100), 2, [4]),  # f = 1, two neighbours each: 10, 5, 5, 10, 18,625
        (Krum(share=0.1), (0, 0, 0, 0, 0, 9, 9, 9, 9, 50), 4, [9]),  # f = 1
    ],
)
def test_rules_by_hand(rule: Rule, numbers: Sequence[float], value: float, cut: list[int]) -> None:
    found, who = combined(rule, *numbers)
    assert found == pytest.approx(value)
    assert who == cut


def test_distances_are_those_of_whole_pieces() -> None:
    """The third is clipped along its own direction: from (0, 0) by (30, 40), of length 50, to length 2 · 5."""
    value, cut = Clipped().combine([torch.tensor(row) for row in ([5.0, 0.0], [0.0, 0.0], [30.0, 40.0], [0.0, -5.0])])
    centre = torch.tensor([2.5, 0.0])  # the medians of 5, 0, 30, 0 and of 0, 0, 40, -5
    far = torch.tensor([30.0, 40.0]) - centre
    bound = 2 * torch.linalg.vector_norm(centre)  # the distances are 2.5, 2.5, 48.5 and 5.6
    moved = centre + far * bound / torch.linalg.vector_norm(far)
    last = centre + (torch.tensor([0.0, -5.0]) - centre) * bound / math.hypot(2.5, 5.0)
    torch.testing.assert_close(value, (torch.tensor([5.0, 0.0]) + moved + last) / 4)
    assert cut == (False, False, True, True)


def test_blocks_of_numbers_are_put_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.randn(3, 5, generator=torch.Generator().manual_seed(k)) for k in range(7)]
    whole = [rule.combine(values) for rule in CUTTING]
    monkeypatch.setattr(averaging, "BLOCK", 4)
    for rule, (value, cut) in zip(CUTTING, whole, strict=True):
        again = rule.combine(values)
        torch.testing.assert_close(again.value, value)
        assert again.cut == cut
    assert torch.equal(whole[0].value, torch.stack(values).median(dim=0).values)


def test_other_types_stay_what_they_are() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        for rule in CUTTING:
            assert rule.combine([value.to(dtype) for value in column(1, 2, 3, 4, 5)]).value.dtype == dtype


# -- any numbers ---------------------------------------------------------------------------------------------------
FLOATS = st.floats(-1e3, 1e3, width=32)


@st.composite
def uploads(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """What honest clients upload, and fewer hostile ones: those that every rule is meant for."""
    num_hostile = draw(st.integers(1, 3))
    num = draw(st.integers(2 * num_hostile + 3, 12).filter(lambda num: math.ceil(0.3 * num) >= num_hostile))
    size = draw(st.integers(1, 4))
    honest = draw(nps.arrays(np.float32, (num - num_hostile, size), elements=FLOATS))
    hostile = draw(nps.arrays(np.float32, (num_hostile, size), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
    return honest, hostile


@pytest.mark.parametrize("rule", CUTTING)
@settings(max_examples=50)
@given(uploads())
def test_a_few_uploads_move_the_result_by_no_more_than_honest_ones_differ(
    rule: Rule, given_: tuple[np.ndarray, np.ndarray]
) -> None:
    honest, hostile = given_
    value = rule.combine([torch.from_numpy(row) for row in (*honest, *hostile)]).value.double().numpy()
    low, high = honest.min(axis=0).astype(float), honest.max(axis=0).astype(float)
    spread, rounding = float(np.linalg.norm(high - low)), 1e-3
    if isinstance(rule, (Median, Trimmed)):
        assert (value >= low - rounding).all()
        assert (value <= high + rounding).all()
        return
    reach = rule.factor if isinstance(rule, Clipped) else math.sqrt(len(honest))
    assert np.linalg.norm(value - np.clip(value, low, high)) <= reach * spread + rounding


@pytest.mark.parametrize("rule", CUTTING)
@settings(max_examples=25)
@given(nps.arrays(np.float32, (7, 3), elements=FLOATS, unique=True), st.permutations(range(7)))
def test_the_order_of_uploads_does_not_matter(rule: Rule, rows: np.ndarray, order: list[int]) -> None:
    values = [torch.from_numpy(row) for row in rows]
    value, cut = rule.combine(values)
    shuffled = rule.combine([values[k] for k in order])
    if isinstance(rule, (Median, Trimmed)):
        assert torch.equal(shuffled.value, value)
        assert shuffled.cut == tuple(cut[k] for k in order)
    torch.testing.assert_close(shuffled.value, value, rtol=1e-4, atol=1e-2)


@settings(max_examples=50)
@given(nps.arrays(np.float32, st.tuples(st.integers(3, 8), st.just(3)), elements=FLOATS))
def test_where_nothing_is_clipped_the_result_is_the_mean_to_the_last_bit(rows: np.ndarray) -> None:
    values = [torch.from_numpy(row) for row in rows]
    value, cut = Clipped(factor=1e9).combine(values)
    if not any(cut):  # half of them may be alike, and then everything else is clipped
        assert same_bits({"value": value}, {"value": mean(values, [1] * len(values))})


# -- one piece of a round --------------------------------------------------------------------------------------------
def test_the_mean_has_weights_and_no_other_rule_does() -> None:
    values = dict(zip((3, 5, 8), column(1, 2, 9), strict=True))
    assert average(values, [1, 1, 6], Mean(), Cuts()).item() == pytest.approx(57 / 8)
    assert average(values, [1, 1, 6], Median(), Cuts()).item() == 2


@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
def test_too_few_uploads_are_averaged_and_counted(name: str) -> None:
    rule = RULES[name]()
    for num in range(1, 8):
        cuts = Cuts()
        found = average(dict(enumerate(column(*range(num)))), [1] * num, rule, cuts)
        assert cuts.too_few.total() == (num < rule.fewest)
        assert [cuts.share(k) is None for k in range(num)] == [num < rule.fewest] * num
        if num < rule.fewest:
            assert same_bits({"": found}, {"": mean(column(*range(num)), [1] * num)})


def test_who_was_cut_is_counted_by_client() -> None:
    cuts = Cuts()
    average(dict(zip((3, 5, 8), column(1, 2, 900), strict=True)), [1] * 3, Median(), cuts)
    average(dict(zip((3, 5, 8), column(1, 2, 3), strict=True)), [1] * 3, Median(), cuts)
    assert [cuts.share(client) for client in (3, 5, 8, 9)] == [0, 0, 0.5, None]


def test_counters_are_the_median_where_uploads_may_be_hostile() -> None:
    counters = dict(enumerate(torch.tensor([[7], [9], [2**62]])))
    cuts = Cuts()
    assert average(counters, [1] * 3, Mean(), cuts).item() == 2**62
    assert average(counters, [1] * 3, Krum(), cuts).item() == 9
    assert not cuts.pieces


def test_combined_says_one_thing_of_each_client() -> None:
    for rule in (Mean(), *CUTTING):
        assert isinstance(found := rule.combine(column(*range(6))), Combined)
        assert len(found.cut) == 6
