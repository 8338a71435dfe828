"""A client scores its own model on its own data, once a round and once before the first."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedssa.core.linear import computed_in_c
from fedssa.core.samples import Samples
from fedssa.core.training import EVAL_BATCH, batch_of
from fedssa.errors import ClientError
from fedssa.records import ClassCounts, Scores

if TYPE_CHECKING:
    from fedssa.core.client import AnyMethod, Client

Metric = Callable[[Tensor, Tensor], Any]  # of logits [n, S] and labels int64 [n]; it returns a finite number


@dataclass(frozen=True)
class Measures:
    """Says what a client is measured by besides accuracy."""

    per_class: bool = False  # counts of each class of its test samples
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # a user's own


@dataclass(frozen=True)
class _Told:
    """Says what a model told of some samples; the logits are of the headline's kind."""

    answers: Mapping[str, Tensor]  # by kind of inference: the class of each sample
    logits: Tensor
    labels: Tensor

    @property
    def accuracy(self) -> dict[str, float]:
        return {kind: int((told == self.labels).sum()) / len(told) for kind, told in self.answers.items()}

    @property
    def per_class(self) -> ClassCounts:
        told = next(iter(self.answers.values()))
        num, hits, predicted = (torch.bincount(y) for y in (self.labels, told[told == self.labels], told))
        classes = num.nonzero().flatten()
        return ClassCounts(tuple(classes.tolist()), *(_at(classes, counts) for counts in (num, hits, predicted)))


def evaluate(client: "Client", method: "AnyMethod") -> Scores:
    """Scores the client's own model on its own validation and test samples."""
    modules = (client.net, *client.modules())
    for module in modules:
        module.eval()
    with computed_in_c(*modules):
        test, val = (_told(client, method, samples) for samples in (client.data.test, client.data.val))
    return Scores(
        test=test.accuracy,
        num_test=len(test.labels),
        val=val.accuracy,
        num_val=len(val.labels),
        per_class=test.per_class if client.measures.per_class and test.answers else None,
        metrics=_metrics(client, test),
        val_metrics=_metrics(client, val),
    )


@torch.no_grad()
def _told(client: "Client", method: "AnyMethod", samples: Samples) -> _Told:
    answers, logits = dict[str, list[Tensor]](), list[Tensor]()
    for batch in torch.split(torch.arange(len(samples), device=client.device), EVAL_BATCH) if len(samples) else ():
        found = method.predict(client, batch_of(client, samples, batch))
        for kind, values in found.items():
            answers.setdefault(kind, []).append(values.argmax(dim=1))
        if client.measures.metrics:
            logits.append(next(iter(found.values())))
    told = {kind: torch.cat(parts).cpu() for kind, parts in answers.items()}
    return _Told(told, torch.cat(logits or [_NONE]).cpu(), samples.y.cpu())


_NONE = torch.zeros(0)


def _at(classes: Tensor, counts: Tensor) -> tuple[int, ...]:
    """Returns the counts of these classes; one that is larger than any counted has none."""
    return tuple(int(counts[s]) if s < len(counts) else 0 for s in classes.tolist())


class MetricError(ClientError):
    """A user's own metric raises, or gives no finite number; whoever knows the client names it."""


def _metrics(client: "Client", told: _Told) -> dict[str, float] | None:
    if not client.measures.metrics or not told.answers:
        return None
    return {name: _value(name, metric, told) for name, metric in client.measures.metrics.items()}


def _value(name: str, metric: Metric, told: _Told) -> float:
    try:
        said = metric(told.logits, told.labels)
        value = math.nan if isinstance(said, (str, bytes)) else float(said)
    except Exception as error:  # a user's metric may raise anything
        raise MetricError(f"metric {name}: {type(error).__name__}: {error}") from error
    if not math.isfinite(value):
        raise MetricError(f"metric {name}: gives {said!r}, which is not a finite number")
    return value
