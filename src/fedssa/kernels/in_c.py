"""What is in C is called through ctypes, from a library that is built with the package."""

import ctypes
import hashlib
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from fedssa.kernels import in_torch
from fedssa.kernels.in_torch import as_floats
from fedssa.kernels.moves import Moves

LIBRARY = "_native"  # named in setup.py, too
Level = Literal["c-plain", "c-avx2", "c-avx512", "c-avx512-linear"]
LEVELS: tuple[Level, ...] = get_args(Level)  # in the order of conv_relu_pool.c
LARGEST_STEPPED, SMALLEST_STEPPED = 256, 2**16  # samples of a batch, numbers of a weight
# Below, a call costs more than the product, or too little of a tile is used: samples, a weight's numbers and its sides.
FEWEST_MULTIPLIED, SMALLEST_MULTIPLIED, NARROWEST_MULTIPLIED = 8, 2**13, 32
TRIED = (1, 7, 64, LARGEST_STEPPED)  # batches
LARGEST = 2**31  # C counts in 32 bits the floats of an image, of padded kernels and 16 winners for each of its cells


class Call(ctypes.Structure):
    """This is `Call` of conv_relu_pool.c, field by field."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("num", "height", "width", "channels_in", "channels_out", "rows", "columns")
        ),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "out", "winners")),
        *((name, ctypes.c_void_p) for name in ("grad", "grad_x", "grad_weight", "grad_bias")),
    )


class LinearProduct(ctypes.Structure):
    """This is `LinearProduct` of linear.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num", "rows", "depth", "across")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "start", "out")),
    )


class LinearStep(ctypes.Structure):
    """This is `LinearStep` of linear.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num", "outputs", "inputs")),
        *((name, ctypes.c_void_p) for name in ("grad", "x", "weight", "velocity")),
        *((name, ctypes.c_float) for name in ("lr", "momentum")),
        ("first", ctypes.c_int32),
    )


class Batch(ctypes.Structure):
    """This is `Batch` of batch.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num", "height", "width", "channels", "num_samples")),
        *((name, ctypes.c_void_p) for name in ("samples", "table", "index", *Moves._fields, "out")),
    )


@cache
def _library() -> ctypes.CDLL | OSError:
    files = [Path(__file__).with_name(LIBRARY + suffix) for suffix in EXTENSION_SUFFIXES]
    file = next((file for file in files if file.exists()), None)
    if file is None:
        return OSError("it was not built")
    try:
        library = ctypes.CDLL(str(file))
        library.fedssa_sources.restype = ctypes.c_char_p
    except OSError as error:
        return error
    except AttributeError:  # another compiler made a library without our functions
        return OSError("it lacks functions")
    return OSError("it was built from other sources") if _is_stale(library.fedssa_sources()) else library


def _is_stale(built_from: bytes) -> bool:
    """Tells whether the sources, which lie beside the library in a checkout, have changed since it was built."""
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    return bool(sources) and built_from != digest.encode()


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert not isinstance(library, OSError), "the C kernel was not built"
    return library


def missing() -> str | None:
    """Says why there is no C kernel here; None if there is one."""
    library = _library()
    if isinstance(library, OSError):
        return f"there is no C kernel ({library}); install a C compiler (gcc or clang), then fedssa anew"
    return None


@cache
def best_level() -> int:
    """Returns the widest of LEVELS that this machine runs."""
    library = _library()
    return 0 if isinstance(library, OSError) else int(library.fedssa_level())


def amx_is_broken() -> bool:
    """Tells whether torch would fail in 16 bits here; without the library nobody knows."""
    library = _library()
    return not isinstance(library, OSError) and bool(library.fedssa_amx_is_broken())


def can_convolve(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    if _watched(x, weight, bias) or not x.dtype == weight.dtype == bias.dtype == torch.float32:
        return False
    return 4 * x[0].numel() < LARGEST and 16 * weight.numel() < LARGEST  # a cell is four pixels or more


def can_gather(samples: Tensor) -> bool:
    return samples.ndim == 4 and samples.dtype in (torch.uint8, torch.float32) and not _watched(samples)


def _watched(*tensors: Tensor) -> bool:
    """Tells whether torch must see each operation, or a tensor has no memory that C can read.

    A tracer, a compiler or torch.func would miss what C does.
    """
    for t in tensors:  # plain loops here and below: each layer asks in each step
        if type(t) not in (Tensor, torch.nn.Parameter) or not t.is_cpu:
            return True
    return torch._C._is_tracing() or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, level: int) -> Tensor:
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"a bias of {bias.numel()} for {len(weight)} channels")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias)):
        out: Tensor = _ConvReluPool.apply(x, weight, bias, level)  # type: ignore[no-untyped-call]
        return out
    return _forward(level, _nhwc(x), _nhwc(weight), bias.contiguous(), None)


def _nhwc(x: Tensor) -> Tensor:
    """Turns [A, C, H, W] into contiguous [A, H, W, C], without a copy if it is channels_last in memory."""
    return x.detach().permute(0, 2, 3, 1).contiguous()


def _forward(level: int, x: Tensor, weight: Tensor, bias: Tensor, winners: Tensor | None) -> Tensor:
    out = x.new_empty(_size_of_out(x, weight))
    _call("fedssa_forward", level, x, weight, bias=bias, out=out, winners=winners)
    return out.permute(0, 3, 1, 2)


def _size_of_out(x: Tensor, weight: Tensor) -> tuple[int, ...]:
    (num, height, width, channels), (channels_out, rows, columns, wanted) = x.shape, weight.shape
    size = (num, (height - rows + 1) // 2, (width - columns + 1) // 2, channels_out)
    if channels != wanted or min(size) < 1:
        raise ValueError(f"images of {channels}×{height}×{width} do not fit a kernel of {wanted}×{rows}×{columns}")
    return size


def _call(function: str, level: int, x: Tensor, weight: Tensor, **tensors: Tensor | None) -> None:
    pointers = {name: t.data_ptr() for name, t in {"x": x, "weight": weight, **tensors}.items() if t is not None}
    num, height, width, channels_in = x.shape
    channels_out, rows, columns, _ = weight.shape
    call = Call(num, height, width, channels_in, channels_out, rows, columns, **pointers)
    if getattr(_loaded(), function)(ctypes.byref(call), level):
        raise MemoryError(f"no memory for a batch of {num}")


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, level: int) -> Tensor:
        x, weight, bias = _nhwc(x), _nhwc(weight), bias.detach().contiguous()
        winners = x.new_empty(_size_of_out(x, weight), dtype=torch.uint8)
        ctx.save_for_backward(x, weight, winners)
        ctx.level = level
        return _forward(level, x, weight, bias, winners)

    @staticmethod
    @override
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, winners = ctx.saved_tensors
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(weight.shape[0])
        _call(
            "fedssa_backward",
            ctx.level,
            x,
            weight,
            winners=winners,
            grad=_nhwc(grads[0]),
            grad_x=grad_x,
            grad_weight=grad_weight,
            grad_bias=grad_bias,
        )
        grad_x = None if grad_x is None else grad_x.permute(0, 3, 1, 2)
        return grad_x, grad_weight.permute(0, 3, 1, 2), grad_bias, None


@cache
def _table() -> Tensor:
    return as_floats(torch.arange(256, dtype=torch.uint8))


def _refuse_other_kinds(index: Tensor, moves: Moves | None) -> None:
    """Refuses what torch would cast or broadcast, because C would read beyond its end."""
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(f"an index of {index.dtype} {list(index.shape)}: should be int64 [B]")
    kinds = [(t.dtype, t.shape) for t in moves or ()]
    number, flag, num = torch.int64, torch.bool, index.shape[0]
    if moves and kinds != [(number, (num,)), (number, (num,)), (flag, (num,)), (number, (num, 4))]:
        raise ValueError(f"moves of {kinds} do not fit a batch of {num}")


def gather(samples: Tensor, index: Tensor, moves: Moves | None) -> Tensor:
    _refuse_other_kinds(index, moves)
    num_samples, height, width, channels = samples.shape
    samples, index, num = samples.contiguous(), index.contiguous(), index.shape[0]
    out = torch.empty(num, height, width, channels)
    moved = {} if moves is None else {name: tensor.contiguous() for name, tensor in moves._asdict().items()}
    tensors = {"samples": samples, "index": index, "out": out, **moved}
    if samples.dtype == torch.uint8:
        tensors["table"] = _table()
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    if _loaded().fedssa_gather(ctypes.byref(Batch(num, height, width, channels, num_samples, **pointers))):
        raise IndexError(f"an index is not of {num_samples} samples")
    return out


# -- linear layers -------------------------------------------------------------------------------------------------
def can_multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Tells whether C can compute this layer, and it pays; torch does what it cannot, and refuses what is wrong."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not is_multiplied(weight) or torch.is_autocast_enabled("cpu") or _watched(*tensors):
        return False
    if x.dtype != torch.float32 or (bias is not None and not _is_row(bias, weight.shape[0])):
        return False
    return x.ndim > 1 and x.shape[-1] == weight.shape[1] and x.numel() >= FEWEST_MULTIPLIED * weight.shape[1]


def is_multiplied(weight: Tensor) -> bool:
    """Tells whether C computes layers of this weight."""
    large = weight.ndim == 2 and weight.numel() >= SMALLEST_MULTIPLIED and min(weight.shape) >= NARROWEST_MULTIPLIED
    return large and weight.dtype == torch.float32 and weight.is_contiguous()


def _is_row(bias: Tensor, size: int) -> bool:
    return bias.dtype == torch.float32 and bias.ndim == 1 and bias.shape[0] == size and bias.is_contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x weightᵀ + bias, for an x [..., inputs] and a weight [outputs, inputs]; it is no view of anything."""
    return _product(x, weight, bias, across=False)


def linear_grad_x(grad: Tensor, weight: Tensor) -> Tensor:
    """Returns grad weight, for a gradient [..., outputs] of a layer's output."""
    return _product(grad, weight, None, across=True)


def _product(x: Tensor, weight: Tensor, start: Tensor | None, *, across: bool) -> Tensor:
    rows, depth = (weight.shape[1], weight.shape[0]) if across else weight.shape
    x, num = x.detach().contiguous(), x.numel() // depth
    out = x.new_empty((*x.shape[:-1], rows))
    pointers = x.data_ptr(), weight.data_ptr(), None if start is None else start.data_ptr(), out.data_ptr()
    if _loaded().fedssa_linear_product(ctypes.byref(LinearProduct(num, rows, depth, across, *pointers))):
        raise MemoryError(f"no memory for a batch of {num}")
    return out


def linear_grad_weight(grad: Tensor, x: Tensor) -> Tensor:
    """Returns gradᵀ x, for a gradient [B, outputs] of a layer's output and its input x [B, inputs]."""
    gradient = x.new_empty(grad.shape[1], x.shape[1])
    _step(None, gradient, grad, x, lr=0.0, momentum=0.0, first=True)
    return gradient


def linear_step(
    weight: Tensor, velocity: Tensor, grad: Tensor, x: Tensor, *, lr: float, momentum: float, first: bool
) -> None:
    """Moves a weight [outputs, inputs] by its gradient, which is gradᵀ x: grad is [B, outputs], x is [B, inputs].

    With the `first` step the velocity becomes the gradient, whatever it was.
    """
    shapes = [list(t.shape) for t in (grad, x, weight, velocity)]
    if shapes != [[len(x), len(weight)], [len(x), weight.shape[1]], shapes[2], shapes[2]]:
        raise ValueError(f"a gradient of {shapes[0]} and an input of {shapes[1]} do not fit {shapes[2]}, {shapes[3]}")
    _step(weight, velocity, grad, x, lr=lr, momentum=momentum, first=first)


def _step(weight: Tensor | None, velocity: Tensor, grad: Tensor, x: Tensor, **how: float) -> None:
    grad, x = grad.contiguous(), x.detach().contiguous()
    (num, inputs), outputs = x.shape, grad.shape[1]
    pointers = grad.data_ptr(), x.data_ptr(), None if weight is None else weight.data_ptr(), velocity.data_ptr()
    if _loaded().fedssa_linear_step(ctypes.byref(LinearStep(num, outputs, inputs, *pointers, *how.values()))):
        raise MemoryError(f"no memory for a batch of {num}")


# -- steps of linear layers with torch's bits ----------------------------------------------------------------------
def can_step(weight: Tensor) -> bool:
    """Tells whether C can take the steps of this weight with torch's bits, and it pays.

    torch rounds what is left behind its last whole vector in another way, and has another product for one output.
    """
    large = weight.ndim == 2 and len(weight) > 1 and weight.numel() >= SMALLEST_STEPPED and weight.numel() % 16 == 0
    return large and weight.dtype == torch.float32 and weight.is_contiguous() and not _watched(weight)


def fits_step(x: Tensor, weight: Tensor) -> bool:
    """Tells whether a layer of this weight may hand over its input; a larger batch is added up in another order."""
    small = x.ndim == 2 and 0 < len(x) <= LARGEST_STEPPED and x.dtype == torch.float32
    return small and not torch.is_autocast_enabled("cpu") and not _watched(x, weight)


@cache
def steps_like_torch() -> bool:
    """Tries whether steps have the bits of torch here, whose products may add in another order on another machine."""
    return all(_same_step(num, outputs=30, inputs=80, first=first) for num in TRIED for first in (True, False))


@torch.no_grad()
def _same_step(num: int, outputs: int, inputs: int, *, first: bool) -> bool:
    grad, x, weight, velocity = (
        torch.arange(1, 1 + rows * columns, dtype=torch.float32).mul_(7.0 + rows).sin_().view(rows, columns)
        for rows, columns in ((num, outputs), (num, inputs), (outputs, inputs), (outputs, inputs))
    )
    ours, theirs = (weight, velocity), (weight.clone(), velocity.clone())
    for step, moved in ((linear_step, ours), (in_torch.linear_step, theirs)):
        step(*moved, grad, x, lr=0.01, momentum=0.9, first=first)
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
