"""Methods side by side, worked by hand: means over seeds, targets, and costs that one seed did not pay."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedssa.records import Outcome
from fedssa.report.read.comparison import IN_A_ROW, TARGET_SHARE, MethodRow, compare_methods, target_of
from fedssa.report.read.costs import Cost
from fedssa.report.read.summary import RunSummary, summarise
from tests.report.fake_runs import Accuracy, finished_run, make_run, settings, with_flops

FLOPS = 1000  # of a client in a round
UP, DOWN = 10, 5  # numbers of a client in a round; nothing comes down in round 0
BYTES_UP, BYTES_DOWN = 44, 24


def curve(*accuracies: float) -> list[dict[int, Accuracy]]:
    """Two clients, the same accuracy for both, in every round; the first is the start."""
    return [{0: accuracy, 1: accuracy} for accuracy in accuracies]


def summary(path: Path, method: str, seed: int, rounds: Sequence[dict[int, Accuracy]], **options: object) -> RunSummary:
    second = str(options.pop("second")) if "second" in options else None
    run_dir = finished_run(path / f"{method}-{seed}", rounds, settings(method, seed=seed, **options), second=second)
    return summarise(with_flops(run_dir, FLOPS))


def row_of(rows: Sequence[MethodRow], method: str) -> MethodRow:
    return next(row for row in rows if row.method == method)


def test_the_constants_are_those_of_the_text() -> None:
    assert (TARGET_SHARE, IN_A_ROW) == (0.95, 3)


def test_a_cost_to_the_target_is_known_only_if_every_seed_reached_it(tmp_path: Path) -> None:
    """Seed 0 reaches 0.95 · 0.6 in its first round, seed 1 never: no mean of the lucky seed alone."""
    runs = [
        summary(tmp_path, "standalone", 0, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "standalone", 1, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "fast", 0, curve(0.1, 0.9, 0.9, 0.9, 0.9)),
        summary(tmp_path, "fast", 1, curve(0.1, 0.2, 0.2, 0.2, 0.2)),
    ]
    rows = compare_methods(runs, "standalone")
    assert row_of(rows, "fast").to_target is None
    assert row_of(rows, "standalone").to_target == Cost(1, 2 * UP, 2 * BYTES_UP, 2 * FLOPS)
    alone = compare_methods(runs[:3], "standalone")
    assert row_of(alone, "fast").to_target == Cost(1, 2 * UP, 2 * BYTES_UP, 2 * FLOPS)  # of the seed that there is


def test_a_seed_that_has_not_finished_leaves_the_cost_unknown(tmp_path: Path) -> None:
    runs = [
        summary(tmp_path, "standalone", 0, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "standalone", 1, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "fast", 0, curve(0.1, 0.9, 0.9, 0.9, 0.9)),
        summarise(make_run(tmp_path / "going", curve(0.1, 0.9, 0.9, 0.9), settings("fast", seed=1))),
    ]
    row = row_of(compare_methods(runs, "standalone"), "fast")
    assert (row.to_target, row.seeds, row.outcome) == (None, (0,), "finished, not finished")
    numbers, sent = ((4 * 2 * up + 3 * 2 * down) / 4 for up, down in ((UP, DOWN), (BYTES_UP, BYTES_DOWN)))
    assert row.per_round == Cost(1, numbers, sent, 2 * FLOPS)  # of the finished seed


def test_the_cost_is_the_mean_over_seeds_of_all_rounds_up_to_the_first_of_three(tmp_path: Path) -> None:
    """Target 0.57. Seed 0: rounds 1, 2, 3 are the first three in a row, so two rounds count. Seed 1: one round."""
    runs = [
        summary(tmp_path, "standalone", 0, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "standalone", 1, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "other", 0, curve(0.9, 0.56, 0.57, 0.6, 0.6)),
        summary(tmp_path, "other", 1, curve(0.1, 0.6, 0.6, 0.57, 0.1)),
    ]
    # numbers: 20 in the first round of a run, 30 in the others; bytes: 88 and 136
    found = row_of(compare_methods(runs, "standalone"), "other").to_target
    assert found == Cost((2 + 1) / 2, (20 + 30 + 20) / 2, (88 + 136 + 88) / 2, (2 + 1) / 2 * 2 * FLOPS)


def test_server_and_tuning_flops_are_carried_beside_the_clients(tmp_path: Path) -> None:
    """Target 0.57. Seed 0 needs two rounds, seed 1 one; two clients, and the second seed spends twice as much."""
    runs = [summary(tmp_path, "standalone", seed, curve(0.1, 0.6, 0.6, 0.6, 0.6)) for seed in (0, 1)]
    curves = [curve(0.9, 0.56, 0.57, 0.6, 0.6), curve(0.1, 0.6, 0.6, 0.57, 0.1)]
    for seed, accuracies in enumerate(curves):
        run_dir = finished_run(tmp_path / f"both-{seed}", accuracies, settings("both", seed=seed))
        runs.append(summarise(with_flops(run_dir, FLOPS, server=700 * (seed + 1), tuning=30 * (seed + 1))))
    rows = compare_methods(runs, "standalone")
    both, alone = row_of(rows, "both"), row_of(rows, "standalone")
    assert both.per_round
    assert (both.per_round.flops, both.per_round.server_flops, both.per_round.tuning_flops) == (2000, 1050, 90)
    assert both.to_target
    assert (both.to_target.flops, both.to_target.server_flops, both.to_target.tuning_flops) == (3000, 1400, 120)
    assert alone.per_round
    assert (alone.per_round.server_flops, alone.per_round.tuning_flops) == (None, None)


def test_two_rounds_at_the_target_are_not_enough(tmp_path: Path) -> None:
    runs = [
        summary(tmp_path, "standalone", 0, curve(0.1, 0.6, 0.6, 0.6, 0.6)),
        summary(tmp_path, "other", 0, curve(0.6, 0.6, 0.6, 0.1, 0.6)),  # the start is not a round
    ]
    assert row_of(compare_methods(runs, "standalone"), "other").to_target is None
    late = summary(tmp_path, "late", 0, curve(0.1, 0.1, 0.1, 0.6, 0.6))
    assert row_of(compare_methods([runs[0], late], "standalone"), "late").to_target is None


def test_the_target_is_the_runs_own_or_a_share_of_the_reference_with_that_seed(tmp_path: Path) -> None:
    references = {seed: summary(tmp_path, "standalone", seed, curve(0.1, 0.4 + 0.4 * seed)) for seed in (0, 1)}
    other = summary(tmp_path, "other", 1, curve(0.1, 0.5))
    assert target_of(other, references) == pytest.approx(0.95 * 0.8)
    assert target_of(other, {0: references[0]}) is None
    own = summary(tmp_path / "own", "other", 1, curve(0.1, 0.5), run__target=0.3)
    assert target_of(own, references) == 0.3
    assert target_of(own, {}) == 0.3
    diverged = make_run(tmp_path / "diverged", curve(0.1, 0.8), settings("standalone", seed=1))
    diverged.write_outcome(Outcome("diverged", "", 1, 0))
    assert target_of(other, {1: summarise(diverged)}) is None
    blind = summary(tmp_path / "blind", "standalone", 1, [])
    assert target_of(other, {1: blind}) is None


def test_accuracies_are_unweighted_means_over_finished_seeds(tmp_path: Path) -> None:
    """Validation is best in the first round of seed 0 and in the last of seed 1; test is what is told."""
    first: list[dict[int, Accuracy]] = [{}, {0: (0.2, 0.9), 1: (0.4, 0.9)}, {0: (0.6, 0.1), 1: (0.8, 0.1)}]
    second: list[dict[int, Accuracy]] = [{}, {0: (0.1, 0.1), 1: (0.1, 0.1)}, {0: (0.9, 0.9), 1: (0.9, 0.9)}]
    runs = [summary(tmp_path, "fml", 0, first), summary(tmp_path, "fml", 1, second)]
    (row,) = compare_methods(runs[::-1], "standalone")
    assert row.seeds == (0, 1)
    assert row.accuracies == pytest.approx((0.7, 0.9))
    assert row.mean == pytest.approx(0.8)
    assert row.spread == pytest.approx(0.02**0.5)  # √(0.1² + 0.1²) over 2 − 1
    assert row.chosen == pytest.approx((0.3, 0.9))
    assert row.best_by_validation == pytest.approx(0.6)
    assert row.difference is None  # there is no reference
    runs.append(summary(tmp_path, "fml", 2, second))
    (row,) = compare_methods(runs, "standalone")
    assert (row.mean, row.best_by_validation) == pytest.approx((2.5 / 3, 0.7))  # no medians


def test_a_row_without_a_finished_run_has_no_numbers(tmp_path: Path) -> None:
    runs = [
        summary(tmp_path, "standalone", 0, curve(0.1, 0.6)),
        summarise(make_run(tmp_path / "going", curve(0.1, 0.9), settings("fml"))),
    ]
    row = row_of(compare_methods(runs, "standalone"), "fml")
    assert (row.mean, row.spread, row.best_by_validation) == (None, None, None)
    assert (row.per_round, row.to_target, row.difference, row.second_accuracies) == (None, None, None, {})
    assert row.outcome == "not finished"
    diverged = make_run(tmp_path / "diverged", curve(0.1, 0.9), settings("fml", seed=1))
    diverged.write_outcome(Outcome("diverged", "", 1, 0))
    runs += [summarise(diverged), summary(tmp_path, "fml", 2, [])]
    row = row_of(compare_methods(runs, "standalone"), "fml")
    assert row.outcome == "diverged, round 1, finished, not finished"
    assert (row.mean, row.best_by_validation, row.seeds) == (None, None, (2,))  # finished, but nothing was measured


def test_a_finished_run_without_rounds_has_no_cost_a_round(tmp_path: Path) -> None:
    (row,) = compare_methods([summary(tmp_path, "fml", 0, curve(0.3))], "standalone")
    assert row.per_round is None
    assert row.mean == pytest.approx(0.3)


def test_the_difference_is_method_minus_reference_client_by_client(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.9}]
    reference: list[dict[int, Accuracy]] = [{}, {0: 0.4, 1: 0.5}]
    runs = [summary(tmp_path, "fml", seed, rounds) for seed in (0, 1)]
    runs += [summary(tmp_path, "standalone", seed, reference) for seed in (0, 1)]
    runs.append(summarise(make_run(tmp_path / "going", reference, settings("standalone", seed=2))))
    runs.append(summary(tmp_path, "fml", 2, [{}, {0: 0.0, 1: 0.0}]))
    rows = compare_methods(runs, "standalone")
    assert [row.method for row in rows] == ["fml", "standalone"]
    found = rows[0].difference
    assert found is not None
    assert found.mean == pytest.approx((0.1 + 0.4) / 2)
    assert (found.num_seeds, found.num_pairs) == (2, 4)  # seed 2 of the reference has not finished
    t = 0.25 / (2 * 0.3**2 / 4 / 4) ** 0.5  # clients differ by 0.3 in both seeds, which agree
    assert found.p == pytest.approx(1 - t / (2 + t**2) ** 0.5)
    assert found.verdict == "no difference shown"
    assert rows[1].difference is None


def test_p_values_are_corrected_for_the_methods_besides_the_reference(tmp_path: Path) -> None:
    """Sixteen pairs that agree: p is that of sixteen coins; of two methods compared twice that, of one once."""
    better: list[dict[int, Accuracy]] = [{}, {k: 0.6 + 0.01 * k for k in range(8)}]
    base: list[dict[int, Accuracy]] = [{}, dict.fromkeys(range(8), 0.5)]
    runs = [summary(tmp_path, name, seed, better) for name in ("fml", "fd") for seed in (0, 1)]
    runs += [summary(tmp_path, "standalone", seed, base) for seed in (0, 1)]
    for some, factor in ((runs, 2), (runs[2:], 1)):
        row = row_of(compare_methods(some, "standalone"), "fd")
        assert row.difference is not None
        assert row.difference.p == pytest.approx(factor * 2 / 2**16)
        assert row.difference.verdict == "higher"


def test_second_accuracies_are_means_over_seeds_that_all_have_them(tmp_path: Path) -> None:
    runs = [
        summary(tmp_path, "fedavg", seed, curve(0.1, last), second="received")
        for seed, last in enumerate((0.4, 0.4, 1.0))
    ]
    (row,) = compare_methods(runs, "standalone")
    assert row.second_accuracies == {"received": pytest.approx((0.2 + 0.2 + 0.5) / 3)}
    runs.append(summary(tmp_path, "fedavg", 3, curve(0.1, 0.4)))
    (row,) = compare_methods(runs, "standalone")
    assert row.second_accuracies == {}


def test_runs_may_be_named_otherwise(tmp_path: Path) -> None:
    runs = [summary(tmp_path, "fml", seed, curve(0.1, 0.4)) for seed in (0, 1)]
    rows = compare_methods(runs, "seed 0", name=lambda run: f"seed {run.seed}")
    assert [row.method for row in rows] == ["seed 0", "seed 1"]
