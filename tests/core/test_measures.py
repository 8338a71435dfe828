"""What a client is measured by besides accuracy: counts per class, and a user's own metrics."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssa.core.evaluation import Measures, Metric, evaluate
from fedssa.core.training import LocalData
from fedssa.errors import ClientError
from fedssa.methods import FedBABU, Standalone
from fedssa.records import ClassCounts, Scores, mean_measures, recall_by_class
from tests.conftest import bare_net, make_client
from tests.core import own_metrics
from tests.core.test_evaluation import IDENTITY, TwoKinds, part

PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


def scores_of(pairs: list[tuple[int, int]], method: Any = None, metrics: dict[str, Metric] | None = None) -> Scores:
    """Of pairs (answer, label) as test samples; one validation sample is told right."""
    answers, labels = zip(*pairs, strict=True)
    data = LocalData(part((0,), (0,)), part((1,), (1,)), part(answers, labels))
    client = make_client(net=bare_net(IDENTITY), data=data, client_id=3)
    client.measures = Measures(per_class=True, metrics=metrics or {})
    return evaluate(client, method or Standalone())


def test_counts_are_of_the_classes_that_the_test_samples_have() -> None:
    # of class 0: three, two told right, and a 2 is taken for it; of class 2: two, one right; nothing is of class 1
    counts = scores_of([(0, 0), (0, 0), (1, 0), (0, 2), (2, 2)]).per_class
    assert counts == ClassCounts(classes=(0, 2), num=(3, 2), hits=(2, 1), predicted=(3, 1))
    assert counts.recall == {0: 2 / 3, 2: 1 / 2}
    assert counts.balanced_accuracy == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert counts.macro_f1 == pytest.approx((2 * 2 / (3 + 3) + 2 * 1 / (2 + 1)) / 2)


@given(PAIRS)
@settings(max_examples=30)
def test_balanced_accuracy_and_macro_f1_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import f1_score, recall_score  # which takes longer than all tests here

    scores = scores_of(pairs)
    assert scores.per_class is not None
    answers, labels = zip(*pairs, strict=True)
    known = sorted(set(labels))
    f1 = f1_score(labels, answers, labels=known, average="macro", zero_division=0)
    recall = recall_score(labels, answers, labels=known, average="macro", zero_division=0)
    assert scores.measures == pytest.approx({"balanced accuracy": recall, "macro F1": f1})
    assert sum(scores.per_class.hits) / scores.num_test == scores.headline


def test_counts_are_of_the_headline() -> None:
    pairs = [(0, 0), (0, 1), (2, 2)]
    assert scores_of(pairs, TwoKinds()).per_class == scores_of(pairs).per_class


def test_nothing_but_accuracy_is_measured_unless_it_is_asked_for() -> None:
    scores = evaluate(make_client(), Standalone())
    assert (scores.per_class, scores.metrics, scores.val_metrics, scores.measures) == (None, None, None, {})


def test_after_tuning_the_counts_are_of_the_tuned_model() -> None:
    client = make_client(method=FedBABU())
    client.measures = Measures(per_class=True)
    scores = client.run_round(None, 0).scores
    assert scores.per_class == evaluate(client, client.method).per_class
    assert "untuned" in scores.test


def test_over_all_clients() -> None:
    first, second = scores_of([(0, 0), (1, 0), (2, 2)]), scores_of([(0, 0), (0, 0)])
    assert recall_by_class([first, second]) == {0: 3 / 4, 2: 1.0}
    assert mean_measures([first, second])["balanced accuracy"] == pytest.approx((0.75 + 1.0) / 2)
    assert mean_measures([first, evaluate(make_client(), Standalone())]) == {}  # not all of them report it
    assert (mean_measures([]), recall_by_class([])) == ({}, {})


# -- own metrics -------------------------------------------------------------------------------------------------
def test_own_metrics_see_logits_and_labels_of_test_and_validation() -> None:
    seen = []

    def share_of_zeros(logits: torch.Tensor, labels: torch.Tensor) -> float:
        seen.append((logits.shape, labels.tolist()))
        return float((labels == 0).float().mean())

    pairs = [(0, 0)] * 200 + [(1, 1)] * 200  # more than one batch
    scores = scores_of(pairs, TwoKinds(), {"zeros": share_of_zeros, "top_two": own_metrics.top_two})
    assert scores.metrics == {"zeros": 0.5, "top_two": 1.0}
    assert scores.val_metrics == {"zeros": 0.0, "top_two": 1.0}
    assert seen == [((400, 3), [0] * 200 + [1] * 200), ((1, 3), [1])]
    assert list(scores.measures) == ["balanced accuracy", "macro F1", "zeros", "top_two"]


def test_a_metric_may_return_any_number() -> None:
    value = scores_of([(0, 0)], metrics={"margin": own_metrics.margin}).metrics
    assert value == {"margin": 1.0}
    assert type(value["margin"]) is float


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (own_metrics.raising, "ValueError: only one class"),
        (own_metrics.nan, "gives nan, which is not a finite number"),
        (own_metrics.words, "gives '0.5', which is not a finite number"),
        (own_metrics.many, "(ValueError|RuntimeError): .*"),
        (lambda *_: None, "TypeError: .*"),
        (lambda *_: math.inf, "gives inf, which is not a finite number"),
    ],
)
def test_a_metric_without_a_number_is_told(metric: Metric, reason: str) -> None:
    with pytest.raises(ClientError, match=rf"^metric mine: {reason}$"):
        scores_of([(0, 0)], metrics={"mine": metric})
