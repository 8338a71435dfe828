"""Samples are held in memory as they are stored, and become what a model takes: a tensor, or named tensors.

Bytes and floats with four axes are images [n, H, W, C]. Integers stay int64 and masks stay bool, at any rank.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedssa.kernels import Moves, gather
from fedssa.kernels.in_torch import as_floats

Inputs = Tensor | dict[str, Tensor]  # what a model takes; a dict goes to it as keyword arguments
InputType = Literal["float32", "int64", "bool"]
X = TypeVar("X", bound=Inputs)


@dataclass(frozen=True)
class Input:
    """An input of a model is told by its shape without the batch, and its type; an image's is [C, H, W]."""

    shape: tuple[int, ...]
    type: InputType = "float32"


Form = Input | dict[str, Input]  # of `Inputs`


def each(function: Callable[[Tensor], Tensor], x: X) -> X:
    """Applies a function to the tensor, or to each of the named tensors."""
    made: Any = {name: function(tensor) for name, tensor in x.items()} if isinstance(x, dict) else function(x)
    return made  # type: ignore[no-any-return]


def rows(x: X, index: Tensor | slice) -> X:
    return each(lambda tensor: tensor[index], x)


def count(x: Inputs) -> int:
    """Returns how many samples there are."""
    return len(next(iter(x.values())) if isinstance(x, dict) else x)


def joined(parts: Sequence[Any], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Any:
    """Joins batches of one form to one; `join` may also stack them."""
    if isinstance(parts[0], dict):
        return {name: join([part[name] for part in parts]) for name in parts[0]}
    return join(list(parts))


def named(x: Inputs) -> dict[str, Tensor]:
    """Returns all tensors by name; a single one is `x`, and those of a dict are `x.name`."""
    return {f"x.{name}": tensor for name, tensor in x.items()} if isinstance(x, dict) else {"x": x}


def is_image(x: Tensor) -> bool:
    """Tells whether stored samples are images [n, H, W, C]."""
    return x.ndim == 4 and (x.dtype == torch.uint8 or x.is_floating_point())


def form_of(x: Inputs, *, stored: bool = True) -> Form:
    """Says what a model gets of stored samples, or what a batch is that it takes."""
    one = _form_of_stored if stored else _form_of_taken
    return {name: one(tensor) for name, tensor in x.items()} if isinstance(x, dict) else one(x)


def _form_of_stored(x: Tensor) -> Input:
    return _form_of_taken(x.permute(0, 3, 1, 2)) if is_image(x) else _form_of_taken(x)


def _form_of_taken(x: Tensor) -> Input:
    floats = x.is_floating_point() or is_image(x)
    return Input(tuple(x.shape[1:]), "float32" if floats else "bool" if x.dtype == torch.bool else "int64")


def written(form: Form) -> dict[str, Input]:
    """Returns a form as it is written down: by names, "" if it has none; {} for floats, whose shape says it all."""
    if isinstance(form, dict):
        return form
    return {} if form.type == "float32" else {"": form}


def read(inputs: Mapping[str, Input], input_shape: tuple[int, ...]) -> Form:
    """Returns the form that was `written` beside the shape of a single input."""
    if not inputs:
        return Input(input_shape)
    return inputs[""] if "" in inputs else dict(inputs)


def as_json(form: Form) -> dict[str, Any]:
    return {name: asdict(one) for name, one in written(form).items()}


def from_json(inputs: Mapping[str, Any], input_shape: tuple[int, ...]) -> Form:
    found = {name: Input(tuple(one["shape"]), one["type"]) for name, one in inputs.items()}
    return read(found, input_shape)


def in_words(form: Form) -> str:
    if isinstance(form, dict):
        return ", ".join(f"{name} {in_words(one)}" for name, one in form.items())
    size = "×".join(map(str, form.shape)) or "single numbers"
    return size if form.type == "float32" else f"{size} of {form.type}"


@dataclass(frozen=True)
class Samples:
    """Holds samples as they come from the data set."""

    x: Any  # Inputs, stored: images uint8 or float32 [n, H, W, C], other tensors float32, int64 or bool [n, ...]
    y: Tensor  # int64 [n]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> "Samples":
        return Samples(rows(self.x, index), self.y[index])

    def on(self, device: torch.device) -> "Samples":
        return Samples(each(lambda tensor: tensor.to(device), self.x), self.y.to(device))

    def batch(self, index: Tensor, *, channels_last: bool, draw: Callable[[int, int], Moves] | None = None) -> Any:
        """Returns the samples at `index` as a model takes them; `draw(height, width)` draws the moves of images."""

        def gathered(x: Tensor) -> Tensor:
            moves = draw(x.shape[1], x.shape[2]) if draw is not None and is_image(x) else None
            return _as_input(gather(x, index, moves), channels_last)

        return each(gathered, self.x)


class LocalData(NamedTuple):
    train: Samples
    val: Samples
    test: Samples

    def on(self, device: torch.device) -> "LocalData":
        return LocalData(*(samples.on(device) for samples in self))


def untaught(train: Iterable[int], test: Iterable[int]) -> Counter[int]:
    """Counts a client's test samples of each class that it does not train on: nobody can tell these, so it is told."""
    taught = set(train)
    return Counter(label for label in test if label not in taught)


def advice_on_untaught(client: str, missing: Counter[int], num_test: int, names: Sequence[str] = ()) -> str:
    """Tells of them by the names of the classes, or by their numbers where there are none."""
    classes = ", ".join(names[c] if names else str(c) for c in sorted(missing)[:5]) + (
        ", …" if len(missing) > 5 else ""
    )
    which = f"class {classes}" if len(missing) == 1 else f"classes {classes}"
    are = "is" if missing.total() == 1 else "are"
    return f"{client}: {missing.total()} of its {num_test} test samples {are} of {which}, which it does not train on"


def as_input(x: X, *, channels_last: bool = False) -> X:
    """Makes stored samples what a model takes.

    Images [B, H, W, C] become floats [B, C, H, W], bytes in [-1, 1], in NHWC memory or contiguous; other integers
    become int64, and everything else stays as it is.
    """
    return each(lambda tensor: _as_input(_typed(tensor), channels_last), x)


def _typed(x: Tensor) -> Tensor:
    if is_image(x):
        return as_floats(x)
    return x if x.is_floating_point() or x.dtype == torch.bool else x.long()


def _as_input(x: Tensor, channels_last: bool) -> Tensor:
    if not is_image(x):
        return x
    x = x.permute(0, 3, 1, 2)
    # .contiguous() would not do: one channel is in both formats at once, and convolutions would go by the strides.
    return x if channels_last else x.clone(memory_format=torch.contiguous_format)
