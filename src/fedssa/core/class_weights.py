"""Class weights make a client's rare classes count more in the loss of its own labels."""

import torch
from torch import Tensor

from fedssa.core.fitting import ClassWeights
from fedssa.errors import SettingsError


def class_weights(said: ClassWeights, y: Tensor, num_classes: int) -> Tensor | None:
    """Returns a weight for each class [S] whose mean over a client's training labels y is 1, or None for no weights.

    Balanced are w_c = n / (S_k · n_c), with n samples, n_c of class c, and S_k classes that the client has; of classes
    that it has not, w_c is 0.
    """
    if said == "none":
        return None
    counts = torch.bincount(y, minlength=num_classes).float()
    if said == "balanced":
        return torch.where(counts > 0, len(y) / ((counts > 0).sum() * counts.clamp(min=1)), 0.0)
    refuse_other_length(said, num_classes)
    given = torch.tensor(said, dtype=torch.float32, device=y.device)
    return given * (len(y) / (given * counts).sum())


def refuse_other_length(said: ClassWeights, num_classes: int) -> None:
    if not isinstance(said, str) and len(said) != num_classes:
        raise SettingsError(f"local.class_weights: has {len(said)} numbers, and the task {num_classes} classes")
