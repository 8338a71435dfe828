"""A message with a field of every kind, for the tests of the codec."""

from dataclasses import field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedssa.core.fields import f32
from fedssa.core.message import message


@message
class Row:
    values: Annotated[Tensor, f32("m")]
    weight: float = 1.0


@message
class Kinds:
    """A field of every kind."""

    tensor: Tensor
    number: int
    real: float
    yes: bool
    text: str
    choice: Literal["seen", "all"]
    row: Row
    weights: dict[str, Tensor]
    by_client: dict[int, Row]
    last: dict[int, int]
    scores: dict[str, float]
    several: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    rows: tuple[Row, ...]
    maybe_tensor: Tensor | None = None
    maybe_number: int | None = None
    maybe_row: Row | None = None
    maybe_weights: dict[str, Tensor] | None = None
    maybe_last: dict[int, int] | None = None
    counted: int = 0
    made: dict[str, Row] = field(default_factory=dict)


def kinds(**others: Any) -> Kinds:
    plain: dict[str, Any] = {
        "tensor": torch.tensor([[1.5, -0.0]]),
        "number": -3,
        "real": 0.1,
        "yes": True,
        "text": 'ü "\n',
        "choice": "all",
        "row": Row(torch.tensor([1.0]), 2.0),
        "weights": {"extractor.0.weight": torch.ones(2, 2), "b": torch.tensor(7), "a.b.c": torch.zeros(0)},
        "by_client": {10: Row(torch.tensor([10.0])), 2: Row(torch.tensor([2.0]), 0.5)},
        "last": {3: 1, -1: 4},
        "scores": {"head": 0.5, "a.b": 1.0},
        "several": (3, 1, 2),
        "tensors": (torch.tensor([1]), torch.tensor([True])),
        "rows": (Row(torch.tensor([5.0])),),
    }
    return Kinds(**(plain | others))
