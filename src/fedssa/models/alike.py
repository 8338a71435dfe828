"""Two models are alike if nothing but their weights tells them apart.

Then one client's model can be a copy of another's with its own state loaded. Anything that a copy would share with its
original rules that out: a function that remembers something, for example, or an object that is not plain data.
"""

import types
from collections import OrderedDict
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedssa.core.tensors import digest

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, range, Enum)
REBUILT = ("_flat_weights", "_flat_weight_refs")  # by torch's recurrent layers, when they are copied
STATE = ("_parameters", "_buffers")


class NotPlain(Exception):
    """A copy of this object may share something with it."""


def picture(*modules: nn.Module) -> Any | None:
    """Describes all of some modules but the values of their state, or returns None if a copy may not be one of its own.

    Equal pictures mean that the modules are alike.
    """
    try:
        return _Painter().of(modules)
    except NotPlain:
        return None


class _Painter:
    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, object]] = {}  # with the objects, so that no id is used again

    def of(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return type(value), value
        if isinstance(value, (type, types.ModuleType)):  # copies share these with their original in any case
            return value
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        return type(value), self._inside(value)

    def _inside(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            return digest({"": value.detach()})
        if kind in (tuple, list, torch.Size):
            return [self.of(item) for item in value]
        if kind in (set, frozenset):
            return {self.of(item) for item in value}
        if kind in (dict, OrderedDict):
            return [(self.of(key), self.of(item)) for key, item in value.items()]
        if kind is partial:
            return [self.of(part) for part in (value.func, value.args, value.keywords)]
        if kind is types.BuiltinFunctionType and isinstance(value.__self__, (types.ModuleType, type, type(None))):
            return value
        if kind is types.FunctionType and not value.__closure__ and not value.__dict__:
            return value.__code__, self.of(value.__defaults__), self.of(value.__kwdefaults__)
        return self._object(value)

    def _module(self, module: nn.Module) -> Any:
        """Takes of the state only what it looks like."""
        if hasattr(type(module), "__deepcopy__"):  # it may share anything, and do anything
            raise NotPlain
        state = {key: self._state(getattr(module, key)) for key in STATE}
        rest = {key: self.of(item) for key, item in vars(module).items() if key not in (*STATE, *REBUILT)}
        return state | rest

    def _state(self, tensors: dict[str, Tensor | None]) -> Any:
        return {name: None if tensor is None else self._tensor(tensor) for name, tensor in tensors.items()}

    def _tensor(self, tensor: Tensor) -> Any:
        number, _ = self._seen.setdefault(id(tensor), (len(self._seen), tensor))
        return number, type(tensor), tensor.dtype, tensor.shape, tensor.requires_grad

    def _object(self, value: Any) -> Any:
        """Takes an object of a user's for what is in it, if that is all that is copied."""
        kind: Any = type(value)
        special = ("__deepcopy__", "__copy__", "__getstate__", "__slots__", "__call__")
        if not hasattr(value, "__dict__") or any(name in vars(base) for base in kind.__mro__[:-1] for name in special):
            raise NotPlain
        if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
            raise NotPlain
        return self.of(vars(value))
