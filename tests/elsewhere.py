"""A device that is not the CPU, for machines without one: it computes what the CPU would, and refuses to mix.

A tensor of it says that it is on `meta`, torch's device without memory, and holds its numbers as a tensor of the CPU.
So results are those of the CPU to the last bit. What a real accelerator refuses is refused here: an operation on
tensors of both. What one allows is allowed: copies between devices, single numbers, and places of the CPU as indices.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from fedssa.kernels.devices import CPU

ELSEWHERE = torch.device("meta")
aten = torch.ops.aten
BY_PLACES = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)


class Mixed(AssertionError):
    """Tensors of two devices met. It is no RuntimeError, because a method may catch that of an SVD."""


class There(Tensor):
    """A tensor elsewhere."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "There":
        made: There = Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=ELSEWHERE
        )
        made.numbers = numbers
        return made

    @override
    def tolist(self) -> Any:
        return self.numbers.tolist()

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise Mixed(f"{func}: of a tensor elsewhere, where that device is not there")


class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes the device be there, for what runs inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        return False  # else it would import torch's compiler

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(_tensors((args, tuple(kwargs.values()))))
        if func not in (aten.copy_.default, aten._to_copy.default):
            _refuse_mixed(func, args, tensors)
        if "device" in kwargs:
            is_there = kwargs["device"] == ELSEWHERE
            kwargs = kwargs | {"device": CPU}
        else:
            is_there = any(isinstance(one, There) for one in (args[:1] if func is aten.copy_.default else tensors))
        kwargs = {name: _each(_numbers, one) for name, one in kwargs.items()}
        out = func(*_each(_numbers, args), **kwargs)
        if not is_there:
            return out
        written = {id(one.numbers): one for one in tensors if isinstance(one, There)}  # if it is in place
        return _each(lambda one: written[id(one)] if id(one) in written else There(one), out)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to all tensors of an operation's arguments or results."""
    if isinstance(value, (tuple, list)):
        return type(value)([_each(function, one) for one in value])
    return function(value) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, Tensor):
        yield value


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.numbers if isinstance(tensor, There) else tensor


def _refuse_mixed(func: Any, args: Any, tensors: list[Tensor]) -> None:
    if any(one.device == ELSEWHERE and not isinstance(one, There) for one in tensors):
        raise Mixed(f"{func}: of a tensor that torch made elsewhere by itself; use a tensor as index, not a list")
    if func in BY_PLACES and isinstance(args[0], There):
        tensors = list(_tensors((args[0], args[2:3])))
    here = [one for one in tensors if one.ndim and not isinstance(one, There)]
    if here and any(isinstance(one, There) for one in tensors):
        raise Mixed(f"{func}: of tensors elsewhere and one of the CPU, {list(here[0].shape)}")


class SaysWhere(TorchFunctionMode):
    """Refuses to create a tensor without saying on which device."""

    factories: ClassVar = set(_device_constructors())

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.factories and kwargs.get("device") is None:
            raise Mixed(f"{resolve_name(func)}: creates a tensor and does not say where; say device=")
        return func(*args, **kwargs)
