"""Each field of a message says beside it what it may hold: its type, its shape in the paper's letters, its range."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedssa.core.tensors import Layout
from fedssa.errors import AnswerError

ON_THE_SIMPLEX = 1e-4  # how far from 1 the sum of probabilities may be
LARGEST_LOGIT = 10_000
SLACK_OF_GRAM = 1.0001  # by which factor a product may exceed that of the norms, since it is rounded


@dataclass(frozen=True)
class Shapes:
    """Says what the letters of shapes stand for, as the receiver of a message knows it."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    seen_classes: tuple[int, ...] | None = None  # what `ids("S_k")` must be
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # of the models that both sides know
    bound: dict[str, int] = field(default_factory=dict)  # letters that this message has used first

    def of_one_message(self) -> "Shapes":
        return replace(self, bound={})

    def size(self, dim: str, actual: int) -> int:
        """Returns the size of `d + 1`, say; a letter that nobody has said yet stands for the actual size."""
        total = 0
        for term in (part.strip() for part in dim.split("+")):
            if term.isdecimal():
                total += int(term)
            elif term in self.sizes:
                total += self.sizes[term]
            else:
                total += self.bound.setdefault(term, actual)
        return total


class Rule(ABC):
    """A rule stands in the `Annotated[…]` of a field."""

    without_noise: ClassVar[str] = ""  # what a value with noise would not be any more, if that breaks the rule

    @abstractmethod
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        """Raises AnswerError unless the value is what the field may hold."""


@dataclass(frozen=True)
class Shaped(Rule):
    dtype: torch.dtype
    dims: tuple[str, ...]

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        assert isinstance(value, Tensor)
        shape = tuple(value.shape)
        wanted = tuple(map(shapes.size, self.dims, shape)) if len(shape) == len(self.dims) else None
        if value.dtype != self.dtype or shape != wanted:
            said = f"{_short(self.dtype)} [{', '.join(self.dims)}]"
            known = f" = {list(wanted)}" if wanted else ""
            raise AnswerError(f"{name} is {_short(value.dtype)} {list(shape)}, not {said}{known}")

    def led_back(self, value: Tensor) -> Tensor:
        """Returns finite numbers as the field may hold them, if they are of its type and shape."""
        return value


def f32(*dims: str) -> Shaped:
    return Shaped(torch.float32, dims)


def i64(*dims: str) -> Shaped:
    return Shaped(torch.int64, dims)


def i32(*dims: str) -> Shaped:
    return Shaped(torch.int32, dims)


def u8(*dims: str) -> Shaped:
    return Shaped(torch.uint8, dims)


def flags(*dims: str) -> Shaped:
    return Shaped(torch.bool, dims)


@dataclass(frozen=True)
class Ids(Shaped):
    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        super().check(name, value, shapes)
        given = value.tolist()
        if self.dims == ("S_k",) and shapes.seen_classes is not None and given != list(shapes.seen_classes):
            raise AnswerError(f"{name} is not the client's own classes")
        if given != sorted(set(given)) or (given and not 0 <= given[0] <= given[-1] < shapes.size("S", 0)):
            raise AnswerError(f"{name} is not classes in ascending order")


def ids(dim: str) -> Shaped:
    """The field holds classes in ascending order; with "S_k" they are the client's own."""
    return Ids(torch.int64, (dim,))


def id_type(num: int) -> torch.dtype:
    """Returns the smallest type for ids below `num`."""
    return torch.uint8 if num <= 2**8 else torch.int16 if num <= 2**15 else torch.int32


@dataclass(frozen=True)
class _Labels(Shaped):
    or_none: bool

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        num_ids = shapes.size("S", 0) + self.or_none
        Shaped(id_type(num_ids), self.dims).check(name, value, shapes)
        if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < num_ids:
            raise AnswerError(f"{name} has ids that are no classes (0 to {num_ids - 1})")


def labels(*dims: str, or_none: bool = False) -> Shaped:
    """The field holds a class for each sample in the smallest type for them; with `or_none`, S stands for none."""
    return _Labels(torch.uint8, dims, or_none)


@dataclass(frozen=True)
class Counts(Shaped):
    total: str

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        super().check(name, value, shapes)
        given = value.tolist()  # a sum in int64 could wrap around
        if min(given, default=0) < 0:
            raise AnswerError(f"{name} has a count below 0")
        if sum(given) != shapes.size(self.total, sum(given)):
            raise AnswerError(f"{name} does not sum to its {shapes.size(self.total, 0)} training samples")


def sample_counts(dim: str, *, total: str) -> Shaped:
    """The field holds numbers of samples, whose sum is known."""
    return Counts(torch.int64, (dim,), total)


@dataclass(frozen=True)
class _Probabilities(Shaped):
    without_noise: ClassVar[str] = "probabilities"

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        super().check(name, value, shapes)
        sums = value.double().sum(dim=-1)
        if not bool(((value >= 0).all(dim=-1) & ((sums - 1).abs() <= ON_THE_SIMPLEX)).all()):
            raise AnswerError(f"{name} has rows that are no probabilities (at least 0, sum 1)")

    @override
    def led_back(self, value: Tensor) -> Tensor:
        above = value.double().clamp(min=0)
        total = above.sum(dim=-1, keepdim=True)
        return torch.where(total > 0, above / total, 1 / value.shape[-1]).to(value.dtype)


def probabilities(*dims: str) -> Shaped:
    """The field holds rows that are at least 0 and sum to 1."""
    return _Probabilities(torch.float32, dims)


@dataclass(frozen=True)
class _Bounded(Shaped):
    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        super().check(name, value, shapes)
        if bool(((value.abs() > LARGEST_LOGIT) & value.isfinite()).any()):
            raise AnswerError(f"{name} has logits beyond ±{LARGEST_LOGIT:,}")

    @override
    def led_back(self, value: Tensor) -> Tensor:
        return value.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


def bounded(*dims: str) -> Shaped:
    """The field holds logits, of which none is absurdly large."""
    return _Bounded(torch.float32, dims)


@dataclass(frozen=True)
class _Scores(Shaped):
    low: float
    high: float

    @override
    def led_back(self, value: Tensor) -> Tensor:
        return value.clamp(self.low, self.high)


def scores(dim: str, low: float, high: float) -> Shaped:
    """The field holds one score for each sample, whose range its method checks."""
    return _Scores(torch.float32, (dim,), low, high)


@dataclass(frozen=True)
class _Gram(Shaped):
    without_noise: ClassVar[str] = "a Gram matrix"
    of: str

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        n = shapes.sizes[self.of]
        triangle = n * (n + 1) // 2
        if value.dtype != self.dtype or tuple(value.shape) != (triangle,):
            said = f"{_short(self.dtype)} [{self.dims[0]}] = [{triangle}]"
            raise AnswerError(f"{name} is {_short(value.dtype)} {list(value.shape)}, not {said}")
        row, column = torch.triu_indices(n, n)
        norms = value[row == column].double()
        allowed = SLACK_OF_GRAM * (norms[row] * norms[column]).sqrt()
        if bool(value.isfinite().all() & ((norms < 0).any() | (value.abs() > allowed).any())):
            raise AnswerError(f"{name} is no Gram matrix: |K_ij| should be at most √(K_ii·K_jj), K_ii at least 0")

    @override
    def led_back(self, value: Tensor) -> Tensor:
        n = math.isqrt(2 * len(value))  # of n·(n + 1)/2 numbers
        row, column = torch.triu_indices(n, n)
        diagonal = value.abs()[row == column].double()
        allowed = (diagonal[row] * diagonal[column]).sqrt().to(value.dtype)
        return torch.where(row == column, allowed, torch.maximum(torch.minimum(value, allowed), -allowed))


def gram_of(of: str) -> Shaped:
    """The field holds the upper triangle of a Gram matrix of n points, row by row."""
    return _Gram(torch.float32, (f"{of}·({of} + 1)/2",), of)


@dataclass(frozen=True)
class Like(Rule):
    """A dict of tensors has exactly the names, types and shapes of a model that both sides know."""

    model: str

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        layout = shapes.layouts[self.model]
        if value.keys() != layout.keys():
            names = ", ".join(sorted(value.keys() ^ layout.keys())[:3])
            raise AnswerError(f"{name} has other tensors than the {self.model} model ({names[:100]})")
        for key, (dtype, shape) in layout.items():
            tensor = value[key]
            if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
                found = f"{_short(tensor.dtype)} {list(tensor.shape)}"
                raise AnswerError(f"{name}.{key} is {found}, not {_short(dtype)} {list(shape)}")


def like(model: str) -> Like:
    return Like(model)


@dataclass(frozen=True)
class Between(Rule):
    """A number, or every number of a dict or tuple, lies in a range."""

    low: float | None = None
    high: float | None = None

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
        for one in values:
            if (self.low is not None and one < self.low) or (self.high is not None and one > self.high):
                bounds = f"at least {self.low}" if self.high is None else f"from {self.low} to {self.high}"
                raise AnswerError(f"{name} = {one} should be {bounds}")


@dataclass(frozen=True)
class Text(Rule):
    """A string, or every key of a dict, matches a pattern."""

    pattern: str

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        for text in value if isinstance(value, Mapping) else (value,):
            if not re.fullmatch(self.pattern, text):
                raise AnswerError(f"{name} is not what it should be")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
