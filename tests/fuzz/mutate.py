"""Small mistakes of every kind: in bytes, in text, in JSON and in tensors. Each is drawn by a given generator."""

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedssa.core.tensors import Tensors

TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
)
NUMBERS = (
    0,
    1,
    -1,
    7,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64,
    10**400,
    0.5,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    "",
    "head",
    "x" * 300,
    "\0",
    "\ud800",
    "../../etc",
    [],
    {},
    [[]],
    {"a": 1},
)


# -- bytes and text ------------------------------------------------------------------------------------------------
def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """What a disk or a wire may make of bytes; never the same bytes, unless there are none."""
    if not content:
        return bytes(rng.randrange(1, 9))
    at, kind = rng.randrange(len(content)), rng.randrange(7)
    if kind <= 2:
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 3:
        return content[:at]
    if kind == 4:
        return content[:at] + rng.randbytes(rng.randrange(1, 30)) + content[at:]
    if kind == 5:
        return content[:at] + content[at + rng.randrange(1, 30) :]
    length = min(len(content) - at, rng.randrange(1, 600))
    zeroed = content[:at] + bytes(length) + content[at + length :]
    return zeroed if zeroed != content else content + b"\0"


# -- JSON ----------------------------------------------------------------------------------------------------------
def damaged_json(value: Any, rng: random.Random) -> Any:
    """The same object, in which now one node is replaced, gone, renamed, doubled or has company."""
    holder, key = rng.choice(_places(value))
    kind = rng.randrange(6)
    if kind <= 1:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    elif kind == 2:
        del holder[key]
    elif kind == 3:
        holder[key] = _beside(holder[key], rng)
    elif isinstance(holder, dict):
        name = rng.choice((f"{key}2", "", "untuned", "prototype", "9" * 30, "-1", "k" * 2000))
        holder[name] = holder[key] if kind == 4 else holder.pop(key)
    else:
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(rng.choice(ODD)))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Where every node stands: its holder, and its key there."""
    places, left = [], [value]
    for node in left:  # which grows
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, part in items:
            places.append((node, key))
            left.append(part)
    return places


def _beside(value: Any, rng: random.Random) -> Any:
    """Something near the value, of its type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return rng.choice((value + 1, -value, value * 2, value - 1, value + 3))
    if isinstance(value, str):
        return damaged_bytes(value.encode("utf-8", "replace"), rng).decode("latin-1")
    return [value] if isinstance(value, dict) else dict(enumerate(value))


# -- tensors -------------------------------------------------------------------------------------------------------
def damaged_tensors(tensors: Tensors, rng: random.Random) -> Tensors:
    """One tensor of another type or shape, with other numbers, gone, renamed or with company."""
    if not tensors:
        return {"more": torch.zeros(rng.randrange(3))}
    name = rng.choice(sorted(tensors))
    others = {key: tensor for key, tensor in tensors.items() if key != name}
    kind = rng.randrange(8)
    if kind == 0:
        return others
    if kind == 1:
        return others | {rng.choice((f"{name}2", "x", f"x.{name}", "k" * 3000, name.upper())): tensors[name]}
    if kind == 2:
        return tensors | {rng.choice((f"{name}.0", "more", "")): tensors[name].clone()}
    change = rng.choice((_retyped, _retyped, _reshaped, _reshaped, _renumbered, _renumbered, _seen_otherwise))
    return others | {name: change(tensors[name], rng)}


def _retyped(tensor: Tensor, rng: random.Random) -> Tensor:
    return tensor.to(rng.choice(TYPES))


def _seen_otherwise(tensor: Tensor, rng: random.Random) -> Tensor:
    """The same bytes as another type."""
    content = tensor.contiguous().reshape(-1).view(torch.uint8)
    kind = rng.choice(TYPES)
    return content[: len(content) // kind.itemsize * kind.itemsize].view(kind) if kind != torch.bool else content


def _reshaped(tensor: Tensor, rng: random.Random) -> Tensor:
    shapes: list[Callable[[], Tensor]] = [
        lambda: tensor[None],
        lambda: tensor.reshape(-1),
        lambda: torch.zeros(0, dtype=tensor.dtype),
        lambda: torch.zeros((), dtype=tensor.dtype),
        lambda: tensor.flatten()[: rng.randrange(tensor.numel() + 1)].clone(),
        lambda: torch.cat([tensor, tensor]) if tensor.dim() else tensor,
        lambda: tensor.flip(0) if tensor.dim() else tensor,
        lambda: tensor.transpose(0, -1).contiguous() if tensor.dim() else tensor,
        lambda: torch.zeros(0, 2**40, dtype=tensor.dtype),
        lambda: torch.zeros(*[1] * 60, dtype=tensor.dtype),
    ]
    return rng.choice(shapes)()


def _renumbered(tensor: Tensor, rng: random.Random) -> Tensor:
    """One number, or all of them, replaced by an odd one."""
    changed = tensor.clone().reshape(-1)
    places = slice(None) if rng.random() < 0.3 or not len(changed) else slice(at := rng.randrange(len(changed)), at + 1)
    if tensor.is_floating_point():
        odd = rng.choice((float("nan"), float("inf"), -1.0, 1e30, 3e38, 0.5, 2.0**62, 0.0))
        changed[places] = torch.tensor(odd).to(tensor.dtype)
    else:
        odd = rng.choice((-1, 0, 1, 2**62, -(2**63), 5, 3))
        changed[places] = torch.tensor(odd).to(tensor.dtype)
    return changed.reshape(tensor.shape)
