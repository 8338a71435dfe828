"""What a run cost, worked by hand: sums, means, and when a mean is not known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedssa.records import ClientRecord, RoundRecord, Scores
from fedssa.report.read.costs import (
    Cost,
    Traffic,
    cost_of_round,
    extra_flops,
    mean_cost,
    short,
    total,
    total_traffic,
    traffic,
    with_start,
)

SCORES = Scores({"head": 0.5}, 10, {}, 0)
FIRST = ClientRecord(0, SCORES, params_up=1, params_down=20, bytes_up=300, bytes_down=4000, flops=50_000)
SECOND = ClientRecord(1, SCORES, params_up=2, params_down=30, bytes_up=400, bytes_down=5000, flops=None)


def spent_in(record: RoundRecord) -> Cost:
    return cost_of_round(record, traffic(record.clients))


def costs(records: Sequence[RoundRecord]) -> tuple[Cost, ...]:
    return with_start([spent_in(record) for record in records if record.t >= 0], records)


def test_traffic_is_summed_by_column() -> None:
    sent = traffic([FIRST, SECOND])
    assert sent == Traffic(numbers_up=3, numbers_down=50, bytes_up=700, bytes_down=9000, num_participations=2)
    assert (sent.numbers, sent.bytes, sent.numbers_per_participation) == (53, 9700, 26.5)
    assert traffic([]) == Traffic(0, 0, 0, 0, 0)
    assert traffic([]).numbers_per_participation is None
    assert total_traffic([sent, traffic([SECOND])]) == Traffic(5, 80, 1100, 14_000, 3)
    assert total_traffic([]) == traffic([])


def test_a_round_costs_what_its_clients_cost() -> None:
    spent = Cost(rounds=1, numbers=53, bytes=9700, flops=50_000)
    assert spent_in(RoundRecord(3, {}, 0, (FIRST, SECOND))) == spent
    assert spent_in(RoundRecord(3, {}, 0, ())) == Cost(1, 0, 0, 0)


def test_training_at_the_server_and_tuning_are_counted_apart() -> None:
    clients = (replace(FIRST, tuning_flops=70), replace(SECOND, tuning_flops=5), replace(SECOND, id=2))
    found = spent_in(RoundRecord(3, {}, 0, clients, server_flops=4_000_000))
    assert (found.flops, found.server_flops, found.tuning_flops) == (50_000, 4_000_000, 75)
    assert found.extra_flops == {"server": 4_000_000, "tuning": 75}
    counted = spent_in(RoundRecord(3, {}, 0, (replace(FIRST, tuning_flops=0),), server_flops=0))
    assert counted.extra_flops == {"server": 0, "tuning": 0}  # nothing was spent, which is not unknown


def test_what_a_server_trains_before_the_first_round_counts_with_it() -> None:
    start, first, second = (RoundRecord(t, {}, 0, server_flops=flops) for t, flops in ((-1, 100), (0, 20), (1, 3)))
    assert [cost.server_flops for cost in costs([start, first, second])] == [120, 3]
    resting = replace(first, server_flops=None)
    assert [cost.server_flops for cost in costs([start, resting])] == [100]
    assert [cost.server_flops for cost in costs([replace(start, server_flops=None), resting])] == [None]
    assert costs([start]) == costs([]) == ()


def test_only_kinds_of_flops_that_somebody_has_get_a_column() -> None:
    plain, server, tuned = Cost(1, 2, 3, 4), Cost(1, 2, 3, 4, server_flops=0), Cost(1, 2, 3, 4, tuning_flops=5)
    assert extra_flops([plain, None]) == extra_flops([]) == []
    assert extra_flops([plain, server]) == ["server"]
    assert extra_flops([tuned, None, plain]) == ["tuning"]
    assert extra_flops([tuned, server]) == ["server", "tuning"]


def test_the_total_is_the_sum() -> None:
    assert total([Cost(1, 10, 40, 200), Cost(1, 30, 130, 500)]) == Cost(2, 40, 170, 700)
    both = [Cost(1, 10, 40, 200, 6, 3), Cost(1, 30, 130, 500, 5, 4), Cost(1, 0, 0, 0)]  # nobody answered in the last
    assert total(both) == Cost(3, 40, 170, 700, 11, 7)
    assert total([]) == Cost(0, 0, 0, 0)


def test_the_mean_is_over_all_or_not_known() -> None:
    one = Cost(1, 10, 40, 200)
    assert mean_cost([one, Cost(4, 30, 140, 500)]) == Cost(2.5, 20, 90, 350)
    assert mean_cost([one, one, Cost(4, 40, 160, 500)]) == Cost(2, 20, 80, 300)  # no median
    assert mean_cost([Cost(1, 10, 40, 200, 6, 8), Cost(1, 10, 40, 200, 2, 3)]) == Cost(1, 10, 40, 200, 4, 5.5)
    assert mean_cost([Cost(1, 10, 40, 200, 6, None), one]) == Cost(1, 10, 40, 200, 3, None)
    assert mean_cost([one]) == one
    assert mean_cost([one, None]) is None
    assert mean_cost([None, one, one]) is None
    assert mean_cost([None]) is None
    assert mean_cost([]) is None


def test_every_known_amount_is_changed() -> None:
    assert Cost(4, 10, 40, 200, 6, 8).each(lambda amount: amount / 4) == Cost(1, 2.5, 10, 50, 1.5, 2)
    assert Cost(4, 10, 40, 200).each(lambda amount: amount + 1) == Cost(5, 11, 41, 201)


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
