"""Scores that do not fit together are refused by the server before they are used."""

from dataclasses import replace

import pytest

from fedssa.deploy.server.scores import check_scores
from fedssa.errors import AnswerError
from fedssa.records import ClassCounts, Scores

COUNTS = ClassCounts(classes=(0, 2), num=(3, 2), hits=(2, 1), predicted=(3, 1))
SOUND = Scores({"head": 0.6}, 5, {"head": 0.5}, 2, COUNTS, {"auc": 0.7}, {"auc": 0.1})


def test_sound_scores_pass() -> None:
    check_scores(SOUND, 3, ["auc"])
    check_scores(replace(SOUND, per_class=None), 3, ["auc"])
    check_scores(replace(SOUND, val={}, num_val=0, val_metrics=None), 3, ["auc"])
    check_scores(replace(SOUND, metrics=None, val_metrics=None), 3, [])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"classes": (2, 0)}, "classes that are not in ascending order from 0 to 2"),
        ({"classes": (0, 3)}, "classes that are not in ascending order"),
        ({"classes": (-1, 2)}, "classes that are not in ascending order"),
        ({"classes": (), "num": (), "hits": (), "predicted": ()}, "classes that are not in ascending order"),
        ({"hits": (3,)}, "not one count for each class"),
        ({"hits": (4, -1)}, "counts that are none"),
        ({"num": (5, 0), "hits": (3, 0)}, "counts that are none"),
        ({"predicted": (1, 1)}, "counts that are none"),
        ({"num": (4, 2)}, "counts of another number of test samples"),
        ({"predicted": (3, 3)}, "counts of another number of test samples"),
        ({"hits": (1, 1)}, "counts of another accuracy"),
    ],
)
def test_counts_that_do_not_fit_are_refused(changed: dict[str, tuple[int, ...]], reason: str) -> None:
    with pytest.raises(AnswerError, match=f"^per_class: {reason}"):
        check_scores(replace(SOUND, per_class=replace(COUNTS, **changed)), 3, ["auc"])


def test_scores_are_of_the_methods_kinds_with_the_headline_first() -> None:
    known = ["head", "prototype", "untuned"]
    plain = replace(SOUND, per_class=None, metrics=None, val={}, num_val=0, val_metrics=None)
    for kinds in (["head"], ["head", "untuned"], ["head", "prototype", "untuned"]):
        check_scores(replace(plain, test=dict.fromkeys(kinds, 0.5)), 3, [], known)
    for kinds in (["prototype"], ["prototype", "head"], ["head", "global"], ["untuned"]):
        scores = replace(plain, test=dict.fromkeys(kinds, 0.5))
        check_scores(scores, 3, [])  # of a method that does not declare its kinds
        with pytest.raises(AnswerError, match="the method has head, prototype, untuned, the first in any case"):
            check_scores(scores, 3, [], known)


@pytest.mark.parametrize("metrics", [[], ["auc", "f2"], ["f2"]])
def test_other_metrics_than_those_agreed_on_are_refused(metrics: list[str]) -> None:
    with pytest.raises(AnswerError, match=r"^other metrics than run\.metrics$"):
        check_scores(SOUND, 3, metrics)
