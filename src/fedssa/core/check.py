"""A message is compared with the shapes of a federation before anybody uses it."""

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol, get_origin, runtime_checkable

from torch import Tensor

from fedssa.core.fields import Shapes
from fedssa.core.message import fields_of, join, tensors_in
from fedssa.core.tensors import all_finite, is_plain
from fedssa.errors import AnswerError


@runtime_checkable
class Verified(Protocol):
    """A message of this kind also checks how its fields belong together."""

    def verify(self, shapes: Shapes) -> None:
        """Raises AnswerError unless they belong together."""


def check(value: object, shapes: Shapes, kind: Any = None) -> None:
    """Raises AnswerError unless every field has its declared type, shape and range, and all numbers are finite."""
    for path, tensor in tensors_in(value).items():
        if not is_plain(tensor):
            raise AnswerError(f"{path[:100]} is {tensor.dtype}, {tensor.layout}: no message has such tensors")
    _check(value, shapes, kind, "")


def _check(value: object, shapes: Shapes, kind: Any, path: str) -> None:
    if value is None:
        return
    if is_dataclass(value) and not isinstance(value, type):
        inner = shapes.of_one_message()
        for field in fields_of(kind or type(value)):
            part, within = getattr(value, field.name), join(path, field.name)
            if part is not None:
                for rule in field.rules:
                    rule.check(within, part, inner)
            _check(part, shapes, field.form.kind if field.form.is_message else None, within)
        is_of_kind = kind is None or (get_origin(kind) or kind) is type(value)  # else its fields are not checked yet
        if is_of_kind and hasattr(value, "verify") and isinstance(value, Verified):  # which takes long to find out
            value.verify(inner)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _check(part, shapes, None, join(path, str(key)))
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            _check(part, shapes, None, join(path, str(i)))
    elif isinstance(value, Tensor) and not all_finite([value]):
        raise AnswerError(f"{path} holds NaN or infinity")
    elif isinstance(value, float) and not math.isfinite(value):
        raise AnswerError(f"{path} is not finite")
