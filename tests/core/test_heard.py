"""Who was heard so far, and the mean of their accuracies."""

from hypothesis import given
from hypothesis import strategies as st

from fedssa.core.heard import Heard
from fedssa.records import Scores

SAID = st.dictionaries(st.sampled_from(["prototype", "received"]), st.floats(0, 1))  # besides the headline
ROUNDS = st.lists(
    st.dictionaries(st.integers(0, 5), st.tuples(st.floats(0, 1), SAID), min_size=1), min_size=1, max_size=4
)


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


def test_a_kind_that_comes_later_is_told_apart_by_client() -> None:
    """As with prototypes, which nobody has at the start."""
    heard = Heard({k: scores(head=0.0) for k in range(3)})
    for k, accuracy in ((0, 0.25), (2, 0.5), (1, 0.75)):
        heard.hear({k: scores(head=0.0, prototype=accuracy)})
    assert heard.mean_accuracy()["prototype"] == 0.5


def test_nobody_heard_has_no_mean() -> None:
    assert Heard({}).mean_accuracy() == {}


@given(ROUNDS)
def test_the_mean_is_that_of_the_latest_scores_to_the_last_bit(
    rounds: list[dict[int, tuple[float, dict[str, float]]]],
) -> None:
    heard, latest = Heard({}), dict[int, dict[str, float]]()
    for said in rounds:
        tests = {client: {"head": accuracy, **others} for client, (accuracy, others) in said.items()}
        heard.hear({client: Scores(test=test, num_test=1, val={}, num_val=0) for client, test in tests.items()})
        latest |= tests
        common = set.intersection(*(set(test) for test in latest.values()))
        means = {kind: sum(test[kind] for test in latest.values()) / len(latest) for kind in common}
        assert heard.mean_accuracy() == means
