"""A contrastive loss pulls views of what belongs together towards one another, and pushes the others away."""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize


def supcon(features: Tensor, labels: Tensor, tau: float, tau_base: float, *, normalised: bool) -> Tensor:
    """Returns the supervised contrastive loss; every sample has a positive, because its other view is there."""
    if normalised:
        features = normalize(features, dim=1)
    similarity = features @ features.T / tau
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_prob = similarity - similarity.masked_fill(~others, -math.inf).logsumexp(dim=1, keepdim=True)
    positives = (labels[:, None] == labels[None, :]) & others
    per_sample = log_prob.masked_fill(~positives, 0.0).sum(dim=1) / positives.sum(dim=1)
    return -(tau / tau_base) * per_sample.mean()
