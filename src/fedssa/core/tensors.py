"""Tensors go by name: they are hashed, packed as safetensors, and copied such that the copy shares no memory."""

import json
import math
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import pairwise
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fedssa.errors import AnswerError, ModelError
from fedssa.kernels.devices import CPU

Tensors = dict[str, Tensor]
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def digest(tensors: Tensors) -> str:
    """Equal digests mean equal names, shapes, types and bits."""
    result = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        result.update(json.dumps([name, str(tensor.dtype), tuple(tensor.shape)]).encode())
        result.update(bytes_of(tensor))
    return result.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns the memory of a contiguous tensor, not a copy."""
    if tensor.numel() == 1:  # a single number counts as contiguous with any stride
        tensor = own(tensor)
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def own(tensor: Tensor) -> Tensor:
    """Returns a contiguous, detached copy on the CPU that shares no memory with anything."""
    return tensor.detach().to(CPU, copy=True, memory_format=torch.contiguous_format)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Looks only at the extremes, which is faster: a NaN or an infinity among the elements is always one of them."""
    floats = (
        torch.view_as_real(t) if t.is_complex() else t
        for t in tensors
        if (t.is_floating_point() or t.is_complex()) and t.numel()
    )
    return all(math.isfinite(extreme) for t in floats for extreme in torch.aminmax(t))


def is_plain(tensor: Tensor) -> bool:
    """Tells whether we can compute with it: it is dense, and its floats are of a type that torch has arithmetic for."""
    is_odd = tensor.is_floating_point() and tensor.dtype not in FLOATS
    return tensor.layout == torch.strided and not tensor.is_quantized and not is_odd


def layout_of(tensors: Tensors) -> Layout:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def module_state(module: nn.Module) -> Tensors:
    """Returns all parameters and buffers, those a state_dict leaves out too, as live tensors (not copies)."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def overlapping(tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, str] | None:
    """Names two tensors that share memory, if any do; the tensors of a meta device have none."""
    spans = sorted((*_span(tensor), name) for name, tensor in tensors if tensor.numel() and tensor.data_ptr())
    for (device, _, end, first), (other, begin, _, second) in pairwise(spans):
        if device == other and begin < end:
            return first, second
    return None


def _span(tensor: Tensor) -> tuple[str, int, int]:
    """Returns where a tensor lies: its device, and there the bytes from its first to its last number."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return str(tensor.device), begin, begin + (last + 1) * tensor.element_size()


@torch.no_grad()
def copy_in(source: Tensors, target: Tensors) -> None:
    """Writes one state into the tensors of another; both must have the same names and shapes."""
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (source, target)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "a state of another layout: a model must be built the same way each time, and a method must keep all that "
            "it keeps from client_init on"
        )
    for name, tensor in target.items():
        tensor.copy_(source[name])


def pack(meta: dict[str, Any], tensors: Tensors) -> bytes:
    """Makes one safetensors blob with a JSON object in its metadata."""
    return save(tensors, metadata={"meta": json.dumps(meta, separators=(",", ":"), allow_nan=False)})


def unpack(blob: bytes) -> tuple[dict[str, Any], Tensors]:
    tensors = tensors_of(blob)
    try:
        meta = json.loads(_header_of(blob)["__metadata__"]["meta"])
    except Exception as error:  # a header may hold anything
        raise AnswerError(f"not a message of ours: {error}") from error
    if not isinstance(meta, dict):
        raise AnswerError("not a message of ours: its metadata is no object")
    return meta, tensors


def save_sealed(tensors: Tensors, about: dict[str, str]) -> bytes:
    """Makes a safetensors file whose metadata say what it is about, with a digest of all that."""
    return _in_order(save(tensors, metadata={**about, "digest": _seal_of(tensors, about)}))


def load_sealed(blob: bytes) -> tuple[dict[str, str], Tensors]:
    """Reads what `save_sealed` made, or raises AnswerError; files of older editions have no digest."""
    tensors = tensors_of(blob)
    about = _header_of(blob).get("__metadata__") or {}
    sealed = about.pop("digest", None)
    if sealed is not None and sealed != _seal_of(tensors, about):
        raise AnswerError("its digest does not fit its content")
    return about, tensors


def _seal_of(tensors: Tensors, about: dict[str, str]) -> str:
    return sha256((digest(tensors) + json.dumps(about, sort_keys=True)).encode()).hexdigest()


def _in_order(blob: bytes) -> bytes:
    """Puts the metadata in order, since safetensors writes several in any, and equal models should be equal files."""
    header, length = _header_of(blob), int.from_bytes(blob[:8], "little")
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    return len(said).to_bytes(8, "little") + said + blob[8 + length :]


def _header_of(blob: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")]) if blob else {}
    return header


def blob_of(tensors: Tensors) -> bytes:
    """Packs tensors alone, for where their metadata travel beside them; no tensors give no bytes."""
    return save({name: own(tensor) for name, tensor in tensors.items()}) if tensors else b""


def tensors_of(blob: bytes) -> Tensors:
    try:
        loaded = load(blob) if blob else {}
    except Exception as error:  # safetensors raises its own, undocumented classes
        raise AnswerError(f"not a message of ours: {error}") from error
    return {name: own(tensor) for name, tensor in loaded.items()}
