"""Clients' outputs on public samples can be compared, whatever their models are."""

from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.training import outputs


def next_probabilities(client: Client, ctx: Context) -> Tensor:
    """Returns the softmax outputs of the client's net on X_{t+1}: [P, S]."""
    return softmax(outputs(client, ctx.public_next), dim=1)


def soft_cross_entropy(target: Tensor, z: Tensor) -> Tensor:
    """Returns −Σ_c q_c·log softmax(z)_c, mean over the batch."""
    return -(target * log_softmax(z, dim=1)).sum(dim=1).mean()
