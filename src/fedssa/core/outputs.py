"""A model may return its logits inside something else: an object, a dict or a tuple."""

from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.samples import Inputs

LOGITS = "logits"


class Taking(nn.Module):
    """Runs a module and takes the logits out of what it returns."""

    def __init__(self, module: nn.Module, output: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.output = output

    @override
    def forward(self, *inputs: Inputs, **named: Tensor) -> object:
        return taken(self.module(*inputs, **named), self.output)


def taken(out: object, output: str | None = None) -> object:
    """Takes the entry `output`; without a name, that named logits, or else the first tensor.

    What holds no such entry is returned as it is, and refused by whoever wanted logits. A module may well return a
    tensor in one mode and a tuple in the other.
    """
    if isinstance(out, Tensor):
        return out
    entries = entries_in(out)
    if output is not None:
        return entries.get(output, out)
    return entries.get(LOGITS, next((entry for entry in entries.values() if isinstance(entry, Tensor)), out))


def entries_in(out: object) -> dict[str, object]:
    """Returns what an output holds, by name; entries of a plain tuple or list are named 0, 1, …"""
    if isinstance(out, Mapping):
        return {str(name): entry for name, entry in out.items()}
    if isinstance(out, (tuple, list)):
        names = getattr(out, "_fields", range(len(out)))
        return {str(name): entry for name, entry in zip(names, out, strict=True)}
    return dict(getattr(out, "__dict__", {})) | ({LOGITS: getattr(out, LOGITS)} if hasattr(out, LOGITS) else {})
