"""Who was heard so far, and the mean of their accuracies."""

from hypothesis import given
from hypothesis import strategies as st

from fedssa.core.heard import Heard
from fedssa.records import Scores

ROUNDS = st.lists(st.dictionaries(st.integers(0, 5), st.floats(0, 1), min_size=1), min_size=1, max_size=4)


def scores(num_test: int = 1, **test: float) -> Scores:
    return Scores(test=test, num_test=num_test, val={}, num_val=0)


def test_the_mean_does_not_weigh_clients() -> None:
    heard = Heard({3: scores(1000, head=1.0), 1: scores(head=0.0), 2: scores(head=0.5)})
    assert (heard.mean_accuracy(), len(heard)) == ({"head": 0.5}, 3)


def test_only_kinds_that_all_report_have_a_mean() -> None:
    both, one = scores(head=0.25, prototype=0.5), scores(head=0.75)
    assert Heard({0: both, 1: one}).mean_accuracy() == {"head": 0.5}
    assert Heard({0: one, 1: both}).mean_accuracy() == {"head": 0.5}
    assert list(Heard({0: both, 1: both}).mean_accuracy().items()) == [("head", 0.25), ("prototype", 0.5)]


def test_a_kind_has_a_mean_once_all_report_it() -> None:
    heard = Heard({0: scores(head=0.5), 1: scores(head=0.5)})
    heard.hear({1: scores(head=1.0, prototype=0.25)})
    assert heard.mean_accuracy() == {"head": 0.75}
    heard.hear({0: scores(prototype=0.75, head=0.0)})
    assert list(heard.mean_accuracy().items()) == [("prototype", 0.5), ("head", 0.5)]


def test_nobody_heard_has_no_mean() -> None:
    assert Heard({}).mean_accuracy() == {}


@given(ROUNDS)
def test_the_mean_is_that_of_the_latest_scores_to_the_last_bit(rounds: list[dict[int, float]]) -> None:
    heard, latest = Heard({}), dict[int, float]()
    for said in rounds:
        heard.hear({client: scores(head=accuracy) for client, accuracy in said.items()})
        latest |= said
        assert heard.mean_accuracy() == {"head": sum(latest.values()) / len(latest)}
