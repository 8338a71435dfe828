"""What a site says of its accuracy is checked before it is used, as closely as its payload."""

import re
from collections.abc import Collection, Sequence

from fedssa.core.client import AnyAnswer
from fedssa.errors import AnswerError
from fedssa.records import ClassCounts, Scores

MAX_KINDS = 8  # how many kinds of inference a site may report
ROUNDING = 1e-9  # how far an accuracy may be from that of the counts


def check_scores(
    scores: Scores, num_classes: int, metrics: Collection[str], known: Sequence[str] | None = None
) -> None:
    """Raises AnswerError unless they are of this task, of the metrics agreed on and of the method's known kinds."""
    _check_numbers(scores)
    kinds, accuracies = list(scores.test), (*scores.test.values(), *scores.val.values())
    if not 0 < len(kinds) <= MAX_KINDS or not all(re.fullmatch("[a-z_-]{1,20}", kind) for kind in kinds):
        raise AnswerError("kinds of inference that are none")
    if known is not None and kinds != [kind for kind in known if kind == known[0] or kind in kinds]:
        raise AnswerError(f"accuracies of {', '.join(kinds)}; the method has {', '.join(known)}, the first in any case")
    if scores.val and list(scores.val) != kinds:
        raise AnswerError("validation of other kinds than test")
    if not all(0 <= accuracy <= 1 for accuracy in accuracies):
        raise AnswerError("accuracies that are none")
    if scores.num_test and bool(scores.val) != bool(scores.num_val):
        raise AnswerError("numbers of samples that are none")
    for said, expected in ((scores.metrics, True), (scores.val_metrics, bool(scores.val))):
        if list(said or ()) != (list(metrics) if expected else []):
            raise AnswerError("other metrics than run.metrics")
    if scores.per_class is not None:
        _check_counts(scores.per_class, scores, num_classes)


def check_kept_back(answer: AnyAnswer) -> None:
    """Raises AnswerError if a site keeps back some of what goes together: then the answer is damaged."""
    scores = answer.scores
    if not bool(scores.test) == (answer.loss is not None) == (answer.header_norm is not None):
        raise AnswerError("accuracy, loss and norm of header rows: some of them, and not all")
    if not scores.test and (scores.val or scores.metrics or scores.val_metrics or scores.per_class):
        raise AnswerError("no test accuracy, and something else that was measured")
    _check_numbers(scores)
    if bool(scores.num_test) != bool(answer.steps):
        raise AnswerError("numbers of samples and steps: some of them, and not all")


def _check_numbers(scores: Scores) -> None:
    if scores.num_test < 0 or scores.num_val < 0 or (scores.num_val and not scores.num_test):
        raise AnswerError("numbers of samples that are none")


def _check_counts(counts: ClassCounts, scores: Scores, num_classes: int) -> None:
    classes, num, hits, predicted = list(counts.classes), counts.num, counts.hits, counts.predicted
    if not classes or classes != sorted(set(classes)) or not 0 <= classes[0] <= classes[-1] < num_classes:
        raise AnswerError(f"per_class: classes that are not in ascending order from 0 to {num_classes - 1}")
    if not len(classes) == len(num) == len(hits) == len(predicted):
        raise AnswerError("per_class: not one count for each class")
    if any(not (0 <= h <= n and h <= p and n >= 1) for n, h, p in zip(num, hits, predicted, strict=True)):
        raise AnswerError("per_class: counts that are none")
    if sum(num) != scores.num_test or sum(predicted) > scores.num_test:
        raise AnswerError("per_class: counts of another number of test samples")
    if abs(sum(hits) / scores.num_test - (scores.headline or 0.0)) > ROUNDING:
        raise AnswerError("per_class: counts of another accuracy")
