"""What a run cost, worked by hand: sums, means, and when a mean is not known."""

import pytest

from fedssa.record import ClientRecord, RoundRecord, Scores
from fedssa.report.read.costs import Cost, Traffic, cost_of_round, mean_cost, short, total, traffic

SCORES = Scores({"head": 0.5}, 10, {}, 0)
FIRST = ClientRecord(0, SCORES, params_up=1, params_down=20, bytes_up=300, bytes_down=4000, flops=50_000)
SECOND = ClientRecord(1, SCORES, params_up=2, params_down=30, bytes_up=400, bytes_down=5000, flops=None)


def test_traffic_is_summed_by_column() -> None:
    sent = traffic([FIRST, SECOND])
    assert sent == Traffic(numbers_up=3, numbers_down=50, bytes_up=700, bytes_down=9000, num_participations=2)
    assert (sent.numbers, sent.bytes, sent.numbers_per_participation) == (53, 9700, 26.5)
    assert traffic([]) == Traffic(0, 0, 0, 0, 0)
    assert traffic([]).numbers_per_participation is None


def test_a_round_costs_what_its_clients_cost() -> None:
    assert cost_of_round(RoundRecord(3, {}, 0, (FIRST, SECOND))) == Cost(rounds=1, numbers=53, flops=50_000)
    assert cost_of_round(RoundRecord(3, {}, 0, ())) == Cost(1, 0, 0)


def test_the_total_is_the_sum() -> None:
    assert total([Cost(1, 10, 200), Cost(1, 30, 500)]) == Cost(2, 40, 700)
    assert total([]) == Cost(0, 0, 0)


def test_the_mean_is_over_all_or_not_known() -> None:
    assert mean_cost([Cost(1, 10, 200), Cost(4, 30, 500)]) == Cost(2.5, 20, 350)
    assert mean_cost([Cost(1, 10, 200), Cost(1, 10, 200), Cost(4, 40, 500)]) == Cost(2, 20, 300)  # no median
    assert mean_cost([Cost(1, 10, 200)]) == Cost(1, 10, 200)
    assert mean_cost([Cost(1, 10, 200), None]) is None
    assert mean_cost([None, Cost(1, 10, 200), Cost(1, 10, 200)]) is None
    assert mean_cost([None]) is None
    assert mean_cost([]) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1.2345, "1.23"),
        (999, "999"),
        (999.5, "1 k"),
        (1000, "1 k"),
        (1234, "1.23 k"),
        (999_499, "999 k"),
        (999_500, "1 M"),
        (1_234_567, "1.23 M"),
        (2.5e9, "2.5 G"),
        (5 * 10**12, "5 T"),
        (7.25e15, "7.25 P"),
        (9.999e17, "1e+03 P"),
    ],
)
def test_three_digits_that_count(number: float, text: str) -> None:
    assert short(number) == text
