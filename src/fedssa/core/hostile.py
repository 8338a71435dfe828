"""Hostile clients of a simulation train or upload what harms the others; no site runs any of this."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, get_args, get_origin

import torch
from annotated_types import Ge, Gt, Len, Lt
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import AnyAnswer
from fedssa.core.fields import Like, Shaped
from fedssa.core.message import hints, rules
from fedssa.core.samples import Samples
from fedssa.core.seeds import numpy_rng, torch_rng
from fedssa.errors import SettingsError

Who = Annotated[float, Gt(0), Lt(1)] | Annotated[tuple[Annotated[int, Ge(0)], ...], Len(1)]
LARGEST = 1e30  # of an attack's numbers, so that they are finite and so are sums of them


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Extend as a frozen, keyword-only dataclass: its fields are the attack's options."""

    changes_uploads: ClassVar[bool] = True

    clients: Who = 0.2  # that are hostile: a share of all, drawn by the seed, or a list of their numbers

    def who(self, num_clients: int, seed: int) -> tuple[int, ...]:
        """Returns the hostile clients in ascending order; of a share, at least one."""
        if isinstance(self.clients, float):
            num = max(1, round(self.clients * num_clients))
            drawn = numpy_rng(seed, "hostile").choice(num_clients, num, replace=False)
            return tuple(sorted(int(client) for client in drawn))
        if max(self.clients) >= num_clients or len(set(self.clients)) >= num_clients:
            raise SettingsError(
                f"hostile.clients = {list(self.clients)}: should be some of 0 to {num_clients - 1}, not all"
            )
        return tuple(sorted(set(self.clients)))

    def taught(self, samples: Samples) -> Samples:
        """Returns what a hostile client trains on."""
        return samples

    def number(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        """Returns what a hostile client uploads in place of a tensor of floats."""
        return tensor

    def uploaded(self, answer: AnyAnswer, seed: int, t: int) -> AnyAnswer:
        """Returns a hostile client's answer; only its payload is another, of a form that a server accepts."""
        rng = torch_rng(seed, "hostile", t=t, client=answer.client)
        return replace(answer, payload=_changed(answer.payload, None, lambda tensor: self.number(tensor, rng)))


@dataclass(frozen=True, kw_only=True)
class NoAttack(Attack):
    """Nothing is changed, for a run to compare with: accuracy is that of the same clients as under an attack."""

    changes_uploads: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Uploads are turned round: multiplied by −strength."""

    strength: Annotated[float, Gt(0)] = 10.0

    @override
    def number(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        return -self.strength * tensor


@dataclass(frozen=True, kw_only=True)
class Scale(Attack):
    """Uploads are multiplied by strength."""

    strength: Annotated[float, Gt(0)] = 100.0

    @override
    def number(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        return self.strength * tensor


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Gaussian noise is added to uploads."""

    strength: Annotated[float, Gt(0)] = 10.0  # its deviation, in root mean squares of each tensor

    @override
    def number(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        return tensor + self.strength * _rms(tensor) * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)


@dataclass(frozen=True, kw_only=True)
class SameValue(Attack):
    """All numbers of a tensor are one and the same."""

    strength: Annotated[float, Gt(0)] = 10.0  # that number, in root mean squares of the tensor

    @override
    def number(self, tensor: Tensor, rng: torch.Generator) -> Tensor:
        return torch.full_like(tensor, self.strength * _rms(tensor))


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Each class of the client's training samples gets the label of its next one, the last that of the first."""

    changes_uploads: ClassVar[bool] = False

    @override
    def taught(self, samples: Samples) -> Samples:
        classes, place = torch.unique(samples.y, return_inverse=True)
        return Samples(samples.x, classes.roll(-1)[place])


ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "sign-flip": SignFlip,
    "scale": Scale,
    "noise": Noise,
    "same-value": SameValue,
    "label-flip": LabelFlip,
}


def has_floats(kind: Any) -> bool:
    """Tells whether messages of a type hold tensors of floats."""
    return any(_may_be_float(hint) for hint in hints(kind).values())


def _may_be_float(hint: Any) -> bool:
    for rule in rules(hint):
        if isinstance(rule, (Shaped, Like)):
            return isinstance(rule, Like) or rule.dtype.is_floating_point
    if is_dataclass(get_origin(hint) or hint):
        return has_floats(hint)
    return hint is Tensor or any(map(_may_be_float, get_args(hint)))


def _changed(value: Any, hint: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Changes every tensor of floats, and leads it back to what the rules of its field allow."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or not value.numel():
            return value
        changed = change(value).nan_to_num().clamp(-LARGEST, LARGEST)
        for rule in rules(hint):
            changed = rule.led_back(changed) if isinstance(rule, Shaped) else changed
        return changed
    if is_dataclass(value) and not isinstance(value, type):
        known = hints(type(value))
        return replace(
            value, **{f.name: _changed(getattr(value, f.name), known[f.name], change) for f in fields(value)}
        )
    if isinstance(value, Mapping):
        return {key: _changed(part, None, change) for key, part in value.items()}
    return tuple(_changed(part, None, change) for part in value) if isinstance(value, tuple) else value


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())
