"""A group is the clients that may share extractors, because these have the same layout and the same start.

The server knows a group by an id and a length, no names and no shapes: an extractor travels as one flat vector. Clients
of a group each build the same first extractor, because averages of models that began apart are worth nothing.
"""

import re
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from fedssa.core.fields import Shapes, f32, i64
from fedssa.core.message import message
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Tensors, copy_in, digest, module_state
from fedssa.errors import AnswerError

LAYOUT_ID = "[0-9a-f]{16}(-[0-9]{1,12}){1,2}"  # as `layout_id` names a layout


@message
class Flat:
    """Holds a module's parameters and buffers, one after another."""

    floats: Annotated[Tensor, f32("L")]
    integers: Annotated[Tensor | None, i64("I")] = None  # counters of batch normalisation, say

    def verify(self, shapes: Shapes) -> None:
        verify_counters(self.integers, shapes)


def verify_counters(integers: Tensor | None, shapes: Shapes) -> None:
    if (integers is None) != (shapes.sizes.get("I", 0) == 0):
        raise AnswerError("integers do not fit the client's group")


def flat(module: nn.Module) -> Flat:
    floats, counters = _kinds(module)
    numbers = [tensor.reshape(-1).float() for tensor in floats.values()]
    wholes = [tensor.reshape(-1).long() for tensor in counters.values()]
    return Flat(torch.cat(numbers) if numbers else torch.zeros(0), torch.cat(wholes) if wholes else None)


def shapes_in(module: nn.Module) -> list[torch.Size]:
    """Returns the shapes of what follows one another in a module's `floats`."""
    return [tensor.shape for tensor in _kinds(module)[0].values()]


def set_flat(module: nn.Module, values: Flat) -> None:
    """Writes a vector into the module it was made of, or one of the same layout."""
    floats, counters = _kinds(module)
    copy_in(_cut(values.floats, floats) | _cut(values.integers, counters), floats | counters)


def _kinds(module: nn.Module) -> tuple[Tensors, Tensors]:
    """Returns the module's floating-point tensors, and the others."""
    state = module_state(module)
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    return floats, {name: tensor for name, tensor in state.items() if name not in floats}


def _cut(vector: Tensor | None, target: Tensors) -> Tensors:
    """Cuts a vector into parts in the shapes of the target."""
    sizes = [tensor.numel() for tensor in target.values()]
    given = 0 if vector is None else len(vector)
    if given != sum(sizes):
        raise AnswerError(f"a vector of {given} numbers for a module of {sum(sizes)}")
    parts = torch.split(vector, sizes) if vector is not None and sizes else ()
    return {name: part.view(target[name].shape) for name, part in zip(target, parts, strict=True)}


def layout_id(extractor: nn.Module) -> str:
    """Names an extractor at its start: a hash of names, types, shapes and bits, then its numbers (and counters)."""
    state, shape = module_state(extractor), flat(extractor)
    counters = "" if shape.integers is None else f"-{len(shape.integers)}"
    return f"{digest(state)[:16]}-{len(shape.floats)}{counters}"


def is_layout_id(group: str) -> bool:
    return re.fullmatch(LAYOUT_ID, group) is not None


def sizes_in(group: str) -> dict[str, int]:
    """Reads from a group's id how long its vectors are: L numbers, and I counters."""
    _, num_floats, *counters = group.split("-")
    return {"L": int(num_floats), "I": int(counters[0]) if counters else 0}


def started(build: Callable[[], SplitModel], seed: int, client: int, *, common: bool) -> SplitModel:
    """Builds a client's net with start weights of its own, or, if `common`, with the start extractor of its group."""
    with seeded(seed, "start", client=client):
        net = build()
    if common:
        with seeded(seed, "start"):
            twin = build()
        copy_in(module_state(twin.extractor), module_state(net.extractor))
    return net
