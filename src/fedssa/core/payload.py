"""Tensors on the wire and on disk: their size, their digest, their bytes (safetensors)."""

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedssa.errors import AnswerError

Tensors = dict[str, Tensor]
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def num_params(tensors: Tensors) -> int:
    """Floating-point values: the paper's measure of communication."""
    return sum(t.numel() for t in tensors.values() if t.is_floating_point())


def num_bytes(tensors: Tensors) -> int:
    """All bytes of all tensors, class ids and counts too."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def digest(tensors: Tensors) -> str:
    """Equal digests mean equal names, shapes, types and bits."""
    result = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        result.update(json.dumps([name, str(tensor.dtype), tuple(tensor.shape)]).encode())
        result.update(bytes_of(tensor))
    return result.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, not a copy."""
    if tensor.numel() == 1:  # it is contiguous with any stride
        tensor = own(tensor)
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def own(tensor: Tensor) -> Tensor:
    """A contiguous, detached copy that shares no memory with anything."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def owned(tensors: Tensors) -> Tensors:
    return {name: own(tensor) for name, tensor in tensors.items()}


def all_finite(tensors: Tensors) -> bool:
    """A NaN or an infinity is always an extreme value; looking for those two is faster than at every element."""
    floats = (t for t in tensors.values() if t.is_floating_point() and t.numel())
    return all(math.isfinite(extreme) for t in floats for extreme in torch.aminmax(t))


def expect(payload: Tensors, layout: Layout) -> None:
    """Exactly these names, types and shapes."""
    if payload.keys() != layout.keys():
        names = ", ".join(sorted(payload.keys() ^ layout.keys())[:3])
        raise AnswerError(f"other tensors than the method sends ({names[:100]})")
    for name, (dtype, shape) in layout.items():
        tensor = payload[name]
        if (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
            raise AnswerError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}")


def layout_of(tensors: Tensors) -> Layout:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def pack(meta: dict[str, Any], tensors: Tensors) -> bytes:
    """One safetensors blob with a JSON object in its metadata."""
    return save(tensors, metadata={"meta": json.dumps(meta)})


def unpack(blob: bytes) -> tuple[dict[str, Any], Tensors]:
    try:
        tensors = load(blob)
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        meta = json.loads(header["__metadata__"]["meta"])
    except Exception as error:  # safetensors raises its own, undocumented classes
        raise AnswerError(f"not a message of ours: {error}") from error
    if not isinstance(meta, dict):
        raise AnswerError("not a message of ours: its metadata is no object")
    return meta, owned(tensors)
