"""What a client uploads is clipped and carries Gaussian noise, right before it leaves, whatever its method is.

All floats of a payload are one vector u. What leaves is u · min(1, C / ‖u‖) + σ·C·N(0, I). Whole numbers (class ids,
counts, marks) leave as they are. `fedssa.accounting.privacy` says what that is worth.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedssa.core.message import leaves, mapped
from fedssa.core.noise import Noise
from fedssa.errors import ClientError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Uploads are clipped and carry Gaussian noise right before they leave a client."""

    clip: Annotated[float, Gt(0)]  # C, the largest norm of an upload: all its floats as one vector
    sigma: Annotated[float, Ge(0)]  # the noise of each number has the standard deviation sigma · clip; 0: none
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5  # δ, for which ε is told


def protected(payload: T, privacy: Privacy, noise: Noise) -> T:
    """Returns the payload, which is on the CPU, clipped and with noise; raises ClientError if it has no floats."""
    norm = norm_of(payload)
    factor = 1.0 if norm <= privacy.clip else privacy.clip / norm
    scale = privacy.sigma * privacy.clip

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, float):
            return leaf * factor + (scale * float(noise.gaussian(1)) if scale else 0.0)
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        drawn = scale * noise.gaussian(*leaf.shape) if scale else 0.0
        return (leaf.double() * factor + drawn).to(leaf.dtype)

    made: T = mapped(changed, payload)
    return made


def norm_of(payload: object) -> float:
    """Returns the norm of all floats as one vector."""
    floats = [leaf for _, leaf in leaves(payload) if _is_float(leaf)]
    if not floats:
        raise ClientError("[privacy]: its upload has no floats, so there is nothing that could carry noise")
    squares = (torch.as_tensor(leaf, dtype=torch.float64).square().sum() for leaf in floats)
    return math.sqrt(sum(map(float, squares)))


def _is_float(leaf: object) -> bool:
    return leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, float)


def refuse_variances(models: list[nn.Module]) -> None:
    """Refuses models whose variances travel with their weights: with noise some would be below 0."""
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            raise ClientError(
                "[privacy]: batch normalisation sends variances, which with noise may be below 0; use a model with "
                "group or layer normalisation, or a method that sends no models"
            )
