"""What a client tells of itself besides its payload can be kept back or rounded, as its owner says.

What is kept back has a form of its own, so that a damaged answer is not taken for one: a count is 0, and accuracies,
loss and the norm of header rows are absent together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedssa.records import Scores

if TYPE_CHECKING:
    from fedssa.core.client import AnyAnswer, ClientInfo


@dataclass(frozen=True)
class Sharing:
    """Says what the server is told; by default everything, as it is."""

    accuracy: bool = True  # accuracies, own metrics, loss, the norm of header rows
    counts: bool = True  # numbers of samples and of steps
    digits: int | None = None  # to which all these are rounded, significant ones; None: they are not
    state_digest: bool = True  # whoever can guess the state could see by it that the guess is right

    def info(self, info: "ClientInfo", *, exact: bool) -> "ClientInfo":
        """Returns a hello; `exact` says that the method's messages depend on the number of training samples."""
        start = self._scores(info.start) if info.start is not None and self.accuracy else None
        if exact:
            return replace(info, start=start)
        return replace(info, start=start, num_train=max(self._count(info.num_train), self._least(info)))

    def answer(self, answer: "AnyAnswer") -> "AnyAnswer":
        return replace(
            answer,
            loss=self._number(answer.loss),
            steps=self._count(answer.steps),
            scores=self._scores(answer.scores),
            header_norm=self._number(answer.header_norm),
            state_digest=answer.state_digest if self.state_digest else "",
        )

    @property
    def in_words(self) -> list[str]:
        """Lists what is kept back or rounded."""
        kept = {
            "accuracies, loss and the norm of header rows": self.accuracy,
            "numbers of samples and steps": self.counts,
            "the digest of its state": self.state_digest,
        }
        said = [f"{what}: kept back" for what, shared in kept.items() if not shared]
        rounded = self.digits is not None and (self.accuracy or self.counts)
        return [*said, *([f"numbers: rounded to {self.digits} digits"] if rounded else [])]

    def _least(self, info: "ClientInfo") -> int:
        """Returns how many samples a client cannot have fewer of; rounded down it might seem so."""
        return len(info.seen_classes) if self.counts else 0

    def _scores(self, scores: Scores) -> Scores:
        per_class = scores.per_class if self.accuracy and self.counts and self.digits is None else None
        metrics, val_metrics = scores.metrics, scores.val_metrics
        return Scores(
            test=self._numbers(scores.test),
            num_test=self._count(scores.num_test),
            val=self._numbers(scores.val),
            num_val=self._count(scores.num_val),
            per_class=per_class,
            metrics=self._numbers(metrics) if metrics is not None and self.accuracy else None,
            val_metrics=self._numbers(val_metrics) if val_metrics is not None and self.accuracy else None,
        )

    def _numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return {name: self._rounded(number) for name, number in numbers.items()} if self.accuracy else {}

    def _number(self, number: float | None) -> float | None:
        return None if number is None or not self.accuracy else self._rounded(number)

    def _count(self, count: int) -> int:
        return round(self._rounded(count)) if self.counts else 0

    def _rounded(self, number: float) -> float:
        return number if self.digits is None else float(f"{number:.{self.digits}g}")


ALL = Sharing()
